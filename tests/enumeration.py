"""Every random outcome of a decode loop at once: one batch row a path, weighted by its probability.

All draws of DraftLab go through :func:`draftlab.sampling.sample`. Inside :meth:`Enumeration.running` it draws nothing:
row r takes the outcome that the digits of its own path number spell (mixed radix, one digit a draw) and its weight is
multiplied by that outcome's probability. With as many rows as there are paths, sums over rows are exact expectations.

    paths = Enumeration(num_paths=27)                     # e.g. three draws over three tokens
    with paths.running():
        ...                                               # decode 27 equal prompts
    paths.weights                                         # [27], sums to 1
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import torch


class Enumeration:
    """``copies`` groups of rows, one a prompt, of ``num_paths`` rows each."""

    def __init__(self, num_paths: int, copies: int = 1):
        self.num_paths = num_paths
        self.codes = torch.arange(num_paths).repeat(copies)
        self.weights = torch.ones(num_paths * copies, dtype=torch.float64)
        self.outcomes = 1  # product of the radices drawn so far

    def draw(self, law, generator=None):
        assert len(law) == len(self.codes), "every draw must be one of all rows"
        law = law.double() / law.double().sum(-1, keepdim=True)
        digit = self.codes % law.shape[-1]
        self.codes = self.codes // law.shape[-1]
        self.outcomes *= law.shape[-1]
        chance = law.gather(-1, digit.unsqueeze(-1)).squeeze(-1)
        self.weights = self.weights * chance
        # An impossible outcome has weight 0 from here on; it goes on with a possible one, so that nothing divides by 0.
        return torch.where(chance > 0, digit, law.argmax(-1))

    @contextmanager
    def running(self):
        with mock.patch("draftlab.sampling._draw", self.draw):
            yield self
        # Fewer draws than planned (an argmax needs none) leave several rows on one path; they share its weight.
        assert self.num_paths % self.outcomes == 0, f"{self.outcomes} paths were drawn, {self.num_paths} planned"
        self.weights = self.weights * self.outcomes / self.num_paths


def output_law(tokens, weights, vocab_size):
    """Law over sequences [V^n] from sequences ``tokens`` [paths, n] and their ``weights`` [paths]."""
    index = torch.zeros(len(tokens), dtype=torch.int64)
    for column in tokens.unbind(1):
        index = index * vocab_size + column
    return torch.zeros(vocab_size ** tokens.shape[1], dtype=torch.float64).index_add(0, index, weights)
