"""Layout: one way to write a drafter down, named by ``architectures`` in its config.json. The formats are groups of layouts.

A layout says which drafters it can carry (:meth:`Layout.objections`), translates facts both ways and names the tensors. What
it cannot carry is refused with the reason and with the formats that can. Weights are :mod:`draftlab.export.tensors`' part.

    layout = choose("deepspec", facts)
    config = layout.config(facts, verifier)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftlab.export.facts import Facts


@dataclass(frozen=True)
class Verifier:
    """How a checkpoint names its target: a hub id (or a short name for a local folder), and its own architectures."""

    name: str
    architectures: tuple[str, ...] = ()


class Layout(ABC):
    """Interface of all layouts.

    ``architectures`` are the names under which it is read, the first is written; ``families`` the drafters it is for;
    ``first_layer`` how the names of the first layer's tensors begin.
    """

    architectures: tuple[str, ...]
    families: tuple[str, ...]
    first_layer: str = "layers.0."

    @abstractmethod
    def objections(self, facts: Facts) -> list[str]:
        """Why this layout cannot carry a drafter of one of its families; empty if it can."""

    @abstractmethod
    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """The whole config.json."""

    @abstractmethod
    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """The facts of a config.json. ``stated`` has what the user says of fields that it does not: block_size,
        sample_from_anchor.

        Raises:
            ValueError: a field is missing, contradicts another or the layout, or says what no drafter here does.
        """

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether a config.json is of this layout."""
        names = config.get("architectures") or []
        return bool(names) and names[0] in self.architectures


def common_objections(facts: Facts) -> list[str]:
    """What no format carries, since no engine does it."""
    found = []
    if facts.head == "domino":
        found.append(
            "head=domino is known to no engine; train with head=markov, which all of them run, or gated or rnn"
        )
    if facts.confidence_input != "normed":
        found.append(
            f"drafter.confidence_input={facts.confidence_input}: engines read the confidence off the normed state; train with "
            "drafter.confidence_input=normed"
        )
    if facts.head_bias:
        found.append(f"the target's LM head has a bias, which engines leave out of draft logits ({facts.family})")
    if facts.family == "MTP":
        found.append(
            "drafter=mtp: engines read MTP modules out of the target's own checkpoint; use dspark, dflash or eagle3"
        )
    return found


def stated_layout(fields, implied: bool, stated: Mapping[str, Any], what: str) -> bool:
    """``sample_from_anchor`` of a checkpoint whose layout implies one: its field, if any, must agree, or the user decides.

    Raises:
        ValueError: the field contradicts what ``what`` implies and the user has not said which is right (case 17).
    """
    if stated.get("sample_from_anchor") is not None:
        return stated["sample_from_anchor"]
    found = fields.flag("sample_from_anchor")
    if found is not None and found != implied:
        layout = "anchor-first" if implied else "1+N"
        raise ValueError(
            f"{fields.where}: sample_from_anchor is {str(found).lower()}, but {what} is {layout} "
            f"({str(implied).lower()}). With the wrong layout a drafter loads and hardly anything is accepted: correct the field, "
            "or give sample_from_anchor=true|false if you know which one the weights were trained in"
        )
    return implied


def stated_size(found: int | None, stated: Mapping[str, Any], field: str, where: str) -> int:
    """Drafted tokens a round: of the checkpoint, or of the user where it does not say.

    Raises:
        ValueError: nobody says, or both do and differ.
    """
    said = stated.get("block_size")
    if found is None and said is None:
        raise ValueError(f"{where}: no {field} says how many tokens are drafted a round; give block_size=<number>")
    if None not in (found, said) and found != said:
        raise ValueError(
            f"block_size={said} was given, but {where} says {found} drafted tokens ({field}); leave it out"
        )
    return said if found is None else found
