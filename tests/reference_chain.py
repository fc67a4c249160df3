"""Slow twins of the chain: one slot, one pair, one key at a time; and Training-Time Test over all positions at once.

:func:`chain_hidden` shares no code with draftlab: plain loops in float64 over a drafter's named weights. :func:`full_ttt`
runs the drafter's own layers, but over every position of one sequence with an explicit mask over all keys of all steps.

    hidden = chain_hidden(drafter, embedding, states, ids, anchor, previous)     # [G, D]
    hidden = full_ttt(drafter, states, ids, num_steps=7)                         # step j of pair t at [j, t]
"""

from __future__ import annotations

import math

import torch

from draftlab.drafters.attention import attend
from reference import rms_norm, silu, turn, weights_of


class _Chain:
    """Weights and sizes of a chain, and its steps in loops."""

    def __init__(self, drafter):
        self.w = weights_of(drafter)
        self.eps, self.theta, self.head_dim = drafter.spec.rms_norm_eps, drafter.spec.rope_theta, drafter.sizes.head_dim
        self.num_layers, self.num_heads = len(drafter.layers), drafter.sizes.num_heads
        self.num_kv_heads = drafter.sizes.num_kv_heads
        self.cache = [[] for _ in range(self.num_layers)]  # per layer: what attention read, and its position

    def norm(self, name, x):
        return rms_norm(x, self.w[f"{name}.weight"], self.eps)

    def pair(self, state, embedded):
        if "eh_proj.weight" in self.w:
            joined = torch.cat([self.norm("enorm", embedded), self.norm("hnorm", state)])
            return self.w["eh_proj.weight"] @ joined
        return torch.cat([embedded, state])

    def head_of(self, layer, kind, x, head, position):
        rows = slice(head * self.head_dim, (head + 1) * self.head_dim)
        part = self.w[f"layers.{layer}.self_attn.{kind}_proj.weight"][rows] @ x
        if kind == "v":
            return part
        name = f"layers.{layer}.self_attn.{kind}_norm"
        return turn(self.norm(name, part) if f"{name}.weight" in self.w else part, position, self.theta)

    def attend(self, layer, x, position):
        outputs = []
        for head in range(self.num_heads):
            kv = head // (self.num_heads // self.num_kv_heads)
            query = self.head_of(layer, "q", x, head, position)
            keys = [self.head_of(layer, "k", seen, kv, p) for seen, p in self.cache[layer]]
            scores = [math.exp(float(query @ key) / math.sqrt(self.head_dim)) for key in keys]
            values = [self.head_of(layer, "v", seen, kv, p) for seen, p in self.cache[layer]]
            outputs.append(sum(s / sum(scores) * v for s, v in zip(scores, values, strict=True)))
        return self.w[f"layers.{layer}.self_attn.o_proj.weight"] @ torch.cat(outputs)

    def step(self, state, embedded, position):
        """The state after all layers of one pair, which every later one sees."""
        x = self.pair(state, embedded)
        for layer in range(self.num_layers):
            prefix = f"layers.{layer}"
            if f"{prefix}.hidden_norm.weight" in self.w:
                half = len(x) // 2
                normed = [
                    self.norm(f"{prefix}.input_layernorm", x[:half]),
                    self.norm(f"{prefix}.hidden_norm", x[half:]),
                ]
                read, x = torch.cat(normed), x[half:]
            else:
                read = self.norm(f"{prefix}.input_layernorm", x)
            self.cache[layer].append((read, position))
            x = x + self.attend(layer, read, position)
            m = self.norm(f"{prefix}.post_attention_layernorm", x)
            inner = silu(self.w[f"{prefix}.mlp.gate_proj.weight"] @ m) * (self.w[f"{prefix}.mlp.up_proj.weight"] @ m)
            x = x + self.w[f"{prefix}.mlp.down_proj.weight"] @ inner
        return x


def target_states(drafter, features, last_hidden):
    """g of every position [T, D]: fused features, or the last hidden state where there is no fc."""
    w = weights_of(drafter)
    return features.double() @ w["fc.weight"].T if "fc.weight" in w else last_hidden.double()


def chain_hidden(drafter, embedding, states, ids, anchor, previous):
    """h_1..h_G [G, D] of one block of one sequence.

    ``embedding`` [V, D] is already scaled; ``states`` [T, D] and ``ids`` [T] may reach beyond the anchor, which must not matter;
    ``previous`` [G] are the tokens that slots are fed with, the anchor first.
    """
    chain, hidden = _Chain(drafter), []
    for t in range(anchor - 1):
        chain.step(states[t], embedding[ids[t + 1]].double(), t)
    state = states[anchor - 1]
    for slot, token in enumerate(previous):
        state = chain.step(state, embedding[token].double(), anchor - 1 + slot)
        hidden.append(chain.norm("norm", state))
    return torch.stack(hidden)


def full_ttt(drafter, states, ids, num_steps):
    """h [J, P, D] of J steps from all P pairs of one sequence.

    Step j at pair t is fed with the state of step j-1 there and with token t+1+j; it sees step 0 at pairs 0..t and its own
    pair's steps 1..j. Where token t+1+j is missing, the result means nothing.
    """
    num_pairs = len(ids) - 1
    index = torch.arange(num_pairs)
    written = [[] for _ in drafter.layers]
    state, hidden = states[:-1].unsqueeze(0), []
    for step in range(num_steps):
        token = ids[(index + 1 + step).clamp_max(num_pairs)]
        mask = [index <= index.unsqueeze(-1)] + [index == index.unsqueeze(-1)] * step  # true pairs, then diagonals
        mask = torch.cat(mask, dim=1)
        turned = drafter._rotation((index + step).unsqueeze(0))
        x = drafter.pair(state, drafter.ends.embed(token).unsqueeze(0))
        for layer, kept in zip(drafter.layers, written, strict=True):

            def over_all_steps(queries, keys, values, kept=kept, mask=mask):
                kept.append((keys, values))
                return attend(queries, *(torch.cat(parts, dim=2) for parts in zip(*kept, strict=True)), mask)

            x = layer(x, turned, over_all_steps)
        state = x
        hidden.append(drafter.norm(state)[0])
    return torch.stack(hidden)
