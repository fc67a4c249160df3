"""Engines: which of them run a drafter as it is written down, why the others do not, and the commands.

What is said here was read off vLLM 0.32, llama.cpp b11434 and SGLang's public scheduler files. An engine that would load a
drafter and then run it wrongly is named like one that refuses it. The module writes nothing.

    for name, engine in ENGINES.items():
        print(name, engine.objections(facts, "deepspec") or engine.commands(facts, "my/drafter", "my/target"))
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection

from draftlab.export.facts import Facts

STS_FILE, SPS_FILE = "calibration.json", "sps.json"  # beside the weights


class Engine(ABC):
    """Interface of all engines; ``heads`` are the sequential heads that it runs."""

    name: str
    heads: tuple[str, ...]

    def objections(self, facts: Facts, layout: str) -> list[str]:
        """Why it does not run this drafter in the format ``layout``; empty if it does."""
        found = []
        if facts.head not in self.heads:
            found.append(
                f"{self.name} runs head={' or head='.join(self.heads)}, not head={facts.head} ({self.why_not_head})"
            )
        return found + self.own_objections(facts, layout)

    why_not_head = "it would take it for head=markov"

    @abstractmethod
    def own_objections(self, facts: Facts, layout: str) -> list[str]:
        """The rest of them."""

    @abstractmethod
    def commands(self, facts: Facts, drafter: str, target: str, extras: Collection[str] = ()) -> list[str]:
        """How to serve ``target`` with ``drafter``, one command a line; ``extras`` are the files beside the weights."""


def method(facts: Facts) -> str:
    """The family as engines call it: an anchor-first DFlash runs as a DSpark."""
    if facts.family == "DFlash" and facts.sample_from_anchor:
        return "dspark"
    return facts.family.lower()


class VLLM(Engine):
    """vLLM 0.32."""

    name, heads = "vLLM", ("markov", "none")

    def own_objections(self, facts: Facts, layout: str) -> list[str]:
        """Per-head norms of Eagle3, and blocks without a markov table."""
        found = []
        if facts.family == "Eagle3" and facts.qk_norm:
            found.append("vLLM's Eagle3 layer has no per-head norms (drafter.qk_norm=false)")
        if method(facts) == "dspark" and not facts.rank:
            found.append("vLLM always builds a markov head in its method dspark, and this drafter has none")
        return found

    def commands(self, facts: Facts, drafter: str, target: str, extras: Collection[str] = ()) -> list[str]:
        """vllm serve; the drafted tokens are given, since their default counts the inputs of a block."""
        config = {"method": method(facts), "model": drafter, "num_speculative_tokens": facts.block_size}
        return [f"vllm serve {target} --speculative-config '{json.dumps(config)}'"]


class SGLang(Engine):
    """SGLang; of its models, only what its scheduler files say is known."""

    name, heads = "SGLang", ("markov", "none")
    why_not_head = "no such head is known of it"

    def own_objections(self, facts: Facts, layout: str) -> list[str]:
        """Per-head norms of Eagle3."""
        if facts.family == "Eagle3" and facts.qk_norm:
            return ["SGLang's Eagle3 layer has no per-head norms (drafter.qk_norm=false)"]
        return []

    def commands(self, facts: Facts, drafter: str, target: str, extras: Collection[str] = ()) -> list[str]:
        """The server, with calibration and SPS table if the folder has them."""
        command = (
            f"python -m sglang.launch_server --model-path {target} --speculative-algorithm {method(facts).upper()} "
            f"--speculative-draft-model-path {drafter}"
        )
        flags = {
            STS_FILE: "--speculative-dspark-confidence-sts-path",
            SPS_FILE: "--speculative-dspark-sps-table-path",
        }
        return [" ".join([command, *(f"{flag} {drafter}/{file}" for file, flag in flags.items() if file in extras)])]


class LlamaCpp(Engine):
    """llama.cpp b11434, behind its converter."""

    name, heads = "llama.cpp", ("markov", "none")
    why_not_head = "its converter refuses it"

    def own_objections(self, facts: Facts, layout: str) -> list[str]:
        """Confidences without a table, trained heads, other Eagle3s, Gemma's variants, the speculators form of DFlash."""
        found = []
        if facts.confidence and not facts.rank:
            found.append("llama.cpp does not load a confidence head without a markov head")
        if facts.own_head and not facts.reduced and facts.family != "Eagle3":
            found.append(
                "llama.cpp's converter drops a trained LM head over the whole vocabulary (drafter.train_head=false)"
            )
        if facts.family == "Eagle3" and (facts.qk_norm or len(facts.target_layer_ids) != 3):
            found.append("llama.cpp runs an Eagle3 without per-head norms over exactly three tapped layers")
        if facts.family == "DFlash" and not facts.sample_from_anchor and layout == "speculators":
            found.append("llama.cpp does not read the speculators form of DFlash; use format=dflash")
        if not facts.plain:
            found += self._gemma(facts)
        return found

    def _gemma(self, facts: Facts) -> list[str]:
        found = [] if facts.style.keys_as_values else ["llama.cpp's Gemma 4 drafter uses keys as values"]
        if facts.logit_softcap:
            found.append(
                f"llama.cpp's Gemma 4 drafter has no soft cap on logits (the target has {facts.logit_softcap})"
            )
        if facts.reduced:
            found.append("llama.cpp's Gemma 4 drafter has no reduced draft vocabulary")
        if facts.family == "Eagle3":
            found.append("llama.cpp has no Eagle3 with Gemma 4's layer")
        return found

    def commands(self, facts: Facts, drafter: str, target: str, extras: Collection[str] = ()) -> list[str]:
        """Conversion and server; the kind is given, since it is not told from weights without a markov table."""
        convert = "python convert_hf_to_gguf.py"
        return [
            f"{convert} {target} --outtype f16 --outfile target.gguf",
            f"{convert} {drafter} --target-model-dir {target} --outtype f16 --outfile draft.gguf",
            f"llama-server -m target.gguf -md draft.gguf --spec-type draft-{method(facts)} --spec-draft-n-max {facts.block_size}",
        ]


ENGINES: dict[str, Engine] = {"vllm": VLLM(), "sglang": SGLang(), "llama.cpp": LlamaCpp()}


def require_engine(name: str, facts: Facts, layout: str) -> None:
    """Refuse a drafter that engine ``name`` does not run.

    Raises:
        ValueError: no such engine, or its objections.
    """
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)} or null, got {name!r}")
    objections = ENGINES[name].objections(facts, layout)
    if objections:
        raise ValueError(f"engine={name} does not run this drafter: {'; '.join(objections)}")
