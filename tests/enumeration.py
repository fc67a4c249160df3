"""Every random outcome of a decode loop at once: one batch row a path, weighted by its probability.

All draws of DraftLab go through :func:`draftlab.sampling.sample`. Inside :meth:`Enumeration.running` it draws nothing:
row r takes the outcome that the digits of its own path number spell (mixed radix, one digit a draw) and its weight is
multiplied by that outcome's probability. With as many rows as there are paths, sums over rows are exact expectations.

    paths = Enumeration(num_paths=27)                     # e.g. three draws over three tokens
    with paths.running():
        ...                                               # decode 27 equal prompts
    paths.weights                                         # [27], sums to 1

A draw of some rows only needs :meth:`Enumeration.of_rows_that_draft`, which tells them from what the drafter leaves out.
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
        self.outcomes = torch.ones(
            num_paths * copies, dtype=torch.int64
        )  # product of the radices that a row drew so far
        self.some: torch.Tensor | None = None  # rows of a draw that is not one of all

    def draw(self, law, generator=None):
        rows = torch.arange(len(self.codes)) if len(law) == len(self.codes) else self.some
        assert rows is not None and len(law) == len(rows), "every draw must be one of all rows, or of those that draft"
        law = law.double() / law.double().sum(-1, keepdim=True)
        digit = self.codes[rows] % law.shape[-1]
        self.codes[rows] //= law.shape[-1]
        self.outcomes[rows] *= law.shape[-1]
        chance = law.gather(-1, digit.unsqueeze(-1)).squeeze(-1)
        self.weights[rows] *= chance
        # An impossible outcome has weight 0 from here on; it goes on with a possible one, so that nothing divides by 0.
        return torch.where(chance > 0, digit, law.argmax(-1))

    @contextmanager
    def running(self):
        with mock.patch("draftlab.sampling._draw", self.draw):
            yield self
        # Fewer draws than planned (an argmax needs none) leave several rows on one path; they share its weight.
        drawn = self.outcomes.unique()
        assert bool((self.num_paths % drawn == 0).all()), f"{drawn.tolist()} paths were drawn, {self.num_paths} planned"
        self.weights = self.weights * self.outcomes / self.num_paths

    @contextmanager
    def of_rows_that_draft(self, drafter):
        """Within, a draw of fewer rows is one of those that ``drafter`` is told to draft."""
        propose = drafter.propose

        def noting(*args, leaving_out=None, **options):
            drafts = None if leaving_out is None else leaving_out.drafts
            self.some = None if drafts is None else drafts.nonzero().squeeze(-1)
            options |= {} if leaving_out is None else {"leaving_out": leaving_out}
            proposal = propose(*args, **options)
            self.some = None
            return proposal

        with mock.patch.object(drafter, "propose", noting):
            yield self


def output_law(tokens, weights, vocab_size):
    """Law over sequences [V^n] from sequences ``tokens`` [paths, n] and their ``weights`` [paths]."""
    index = torch.zeros(len(tokens), dtype=torch.int64)
    for column in tokens.unbind(1):
        index = index * vocab_size + column
    return torch.zeros(vocab_size ** tokens.shape[1], dtype=torch.float64).index_add(0, index, weights)
