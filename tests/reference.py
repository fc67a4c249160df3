"""Slow twins: the method's formulas as plain loops over positions, heads and slots, from a drafter's named weights.

They share no code with draftlab: one sequence, one block, one query, one key at a time, in float64. Tests hold the
fast paths to them.

    hidden = block_hidden(drafter, embedding, features, input_ids, anchor)      # [G, D]
    bias = unrolled_bias(drafter.markov_head, hidden, previous)                 # [G, W]
"""

from __future__ import annotations

import math

import torch


def weights_of(module):
    """Named weights in float64."""
    return {
        name: tensor.detach().double() for name, tensor in module.state_dict().items() if tensor.is_floating_point()
    }


def rms_norm(x, weight, eps):
    mean_square = sum(float(value) ** 2 for value in x) / len(x)
    return x / math.sqrt(mean_square + eps) * weight


def silu(x):
    return x / (1 + torch.exp(-x))


def turn(x, position, theta):
    """RoPE of one head vector: components i and i + head_dim/2 turn by position · theta^(-2i/head_dim)."""
    half = len(x) // 2
    turned = torch.empty_like(x)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        cos, sin = math.cos(angle), math.sin(angle)
        turned[i] = x[i] * cos - x[i + half] * sin
        turned[i + half] = x[i + half] * cos + x[i] * sin
    return turned


class _Layer:
    """Weights and sizes of one draft layer."""

    def __init__(self, drafter, index):
        prefix = f"layers.{index}."
        self.w = {k.removeprefix(prefix): v for k, v in weights_of(drafter).items() if k.startswith(prefix)}
        self.eps, self.theta = drafter.spec.rms_norm_eps, drafter.spec.rope_theta
        self.head_dim = len(self.w["self_attn.q_norm.weight"])
        self.num_heads = len(self.w["self_attn.q_proj.weight"]) // self.head_dim
        self.num_kv_heads = len(self.w["self_attn.k_proj.weight"]) // self.head_dim

    def part(self, kind, x, head):
        """Head ``head`` of the q, k or v projection of x [D]."""
        rows = slice(head * self.head_dim, (head + 1) * self.head_dim)
        return self.w[f"self_attn.{kind}_proj.weight"][rows] @ x

    def turned(self, kind, x, head, position):
        normed = rms_norm(self.part(kind, x, head), self.w[f"self_attn.{kind}_norm.weight"], self.eps)
        return turn(normed, position, self.theta)

    def attend(self, x, position, seen):
        """Attention output [D] of the normed block state x at ``position`` over ``seen``: pairs (state, position)."""
        outputs = []
        for head in range(self.num_heads):
            kv_head = head // (self.num_heads // self.num_kv_heads)
            query = self.turned("q", x, head, position)
            scores = [float(query @ self.turned("k", s, kv_head, p)) / math.sqrt(self.head_dim) for s, p in seen]
            top = max(scores)
            shares = [math.exp(score - top) for score in scores]
            values = [self.part("v", s, kv_head) for s, _ in seen]
            outputs.append(sum(share / sum(shares) * value for share, value in zip(shares, values, strict=True)))
        return self.w["self_attn.o_proj.weight"] @ torch.cat(outputs)

    def run(self, states, positions, context):
        """Block states after the layer; ``context`` holds pairs (H_ctx, position)."""
        normed = [rms_norm(x, self.w["input_layernorm.weight"], self.eps) for x in states]
        seen = context + list(zip(normed, positions, strict=True))
        result = []
        for x, n, position in zip(states, normed, positions, strict=True):
            x = x + self.attend(n, position, seen)
            m = rms_norm(x, self.w["post_attention_layernorm.weight"], self.eps)
            inner = silu(self.w["mlp.gate_proj.weight"] @ m) * (self.w["mlp.up_proj.weight"] @ m)
            result.append(x + self.w["mlp.down_proj.weight"] @ inner)
        return result


def block_hidden(drafter, embedding, features, input_ids, anchor):
    """h_1..h_G [G, D] of one block of one sequence.

    ``embedding`` [V, D] is already scaled; ``features`` [T, M*D] may reach beyond the anchor, which must not matter;
    ``input_ids`` are the block's I inputs, at positions anchor, anchor + 1, …
    """
    w, eps = weights_of(drafter), drafter.spec.rms_norm_eps
    context = []
    for position in range(anchor):
        context.append((rms_norm(w["fc.weight"] @ features[position].double(), w["hidden_norm.weight"], eps), position))
    states = [embedding[token].double() for token in input_ids]
    positions = [anchor + i for i in range(len(input_ids))]
    for index in range(len(drafter.layers)):
        states = _Layer(drafter, index).run(states, positions, context)
    outputs = states[len(states) - drafter.block.block_size :]
    return torch.stack([rms_norm(x, w["norm.weight"], eps) for x in outputs])


def unrolled_bias(head, hidden, previous):
    """B_1..B_G [G, W] of one block, slot by slot, from ``hidden`` [G, D] and previous tokens [G]."""
    w, biases = weights_of(head), []
    state = torch.zeros(head.rank, dtype=torch.float64)
    for h, token in zip(hidden.double(), previous.tolist(), strict=True):
        looked_up = w["markov_w1.weight"][token]
        if "gate_proj.weight" in w:
            gate = torch.sigmoid(w["gate_proj.weight"] @ torch.cat([h, looked_up]) + w["gate_proj.bias"])
            latent = gate * looked_up
        elif "joint_proj.weight" in w:
            joint = w["joint_proj.weight"] @ torch.cat([state, looked_up, h]) + w["joint_proj.bias"]
            r = head.rank
            gate, candidate, output = joint[:r], joint[r : 2 * r], joint[2 * r :]
            gate = torch.sigmoid(gate)
            state = gate * state + (1 - gate) * torch.tanh(candidate)
            latent = torch.tanh(output)
        elif "gru.weight_ih" in w:
            latent = state = gru_step(w, torch.cat([looked_up, h]), state)
        else:
            latent = looked_up
        biases.append(w["markov_w2.weight"] @ latent)
    return torch.stack(biases)


def gru_step(w, x, state):
    """Next state [R] of a GRU, component by component; weights hold the rows of reset, update and candidate in this order."""
    r, following = len(state), torch.zeros_like(state)
    for i in range(r):
        reset, update, candidate = (
            (
                w["gru.weight_ih"][row] @ x + w["gru.bias_ih"][row],
                w["gru.weight_hh"][row] @ state + w["gru.bias_hh"][row],
            )
            for row in (i, r + i, 2 * r + i)
        )
        open_share = 1 / (1 + math.exp(-float(sum(reset))))
        kept_share = 1 / (1 + math.exp(-float(sum(update))))
        proposed = math.tanh(float(candidate[0]) + open_share * float(candidate[1]))
        following[i] = (1 - kept_share) * proposed + kept_share * state[i]
    return following


def confidence(drafter, hidden, previous):
    """c_1..c_G [G] of one block."""
    w, values = weights_of(drafter), []
    for h, token in zip(hidden.double(), previous.tolist(), strict=True):
        table = w.get("markov_head.markov_w1.weight")
        read = h if table is None else torch.cat([h, table[token]])
        score = float(w["confidence_head.proj.weight"][0] @ read + w["confidence_head.proj.bias"][0])
        values.append(1 / (1 + math.exp(-score)))
    return torch.tensor(values, dtype=torch.float64)
