"""The formats (``format=deepspec|dflash|speculators``), each a group of layouts, and which of them is right for a drafter.

    layout = choose("deepspec", facts)                       # refuses what the format cannot carry, and names one that can
    layout = recognise(config)                               # of a foreign config.json

It knows nothing of files and weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlab.export.deepspec import GemmaBlock, QwenBlock, StandaloneDFlash
from draftlab.export.eagle import GemmaChain, LlamaChain, QwenChain
from draftlab.export.facts import Facts
from draftlab.export.layout import Layout, common_objections
from draftlab.export.speculators import SpeculatorDFlash, SpeculatorDSpark, SpeculatorEagle3

FORMATS: Mapping[str, tuple[Layout, ...]] = {
    "deepspec": (QwenBlock(), GemmaBlock(), LlamaChain(), QwenChain(), GemmaChain()),
    "dflash": (StandaloneDFlash(),),
    "speculators": (SpeculatorDSpark(), SpeculatorDFlash(), SpeculatorEagle3()),
}


def able(facts: Facts) -> list[str]:
    """The formats that can carry a drafter of these facts."""
    return [name for name in FORMATS if _fitting(name, facts)]


def check_format(name: str) -> None:
    """Refuse what is no format.

    Raises:
        ValueError: another word.
    """
    if name not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, gguf; got {name!r}")


def choose(name: str, facts: Facts) -> Layout:
    """The layout of format ``name`` that carries ``facts``.

    Raises:
        ValueError: no such format, or none of its layouts can; the reasons are given, and the formats that can.
    """
    check_format(name)
    fitting = _fitting(name, facts)
    if fitting:
        return fitting[0]
    reasons = common_objections(facts) or _fewest(name, facts)
    others = able(facts)
    advice = f"format={' or format='.join(others)} can" if others else "no format can"
    raise ValueError(f"format={name} cannot carry this drafter: {'; '.join(reasons)}. {advice[0].upper() + advice[1:]}")


def recognise(config: Mapping[str, Any], where: str) -> Layout:
    """The layout of a foreign config.json.

    Raises:
        ValueError: none here reads it; what it calls itself is named.
    """
    for layouts in reversed(FORMATS.values()):  # a speculator may bear another layout's name, too
        for layout in layouts:
            if layout.recognises(config):
                return layout
    known = sorted({name for layouts in FORMATS.values() for layout in layouts for name in layout.architectures})
    found = {key: config[key] for key in ("architectures", "speculators_model_type") if key in config}
    raise ValueError(
        f"{where}: unknown layout ({found or 'architectures is missing'}); expected architectures to be one of {', '.join(known)}, "
        "or speculators_model_type dspark, dflash or eagle3"
    )


def _fitting(name: str, facts: Facts) -> list[Layout]:
    return [layout for layout in FORMATS[name] if facts.family in layout.families and not layout.objections(facts)]


def _fewest(name: str, facts: Facts) -> list[str]:
    """The objections of the layout that comes closest."""
    objections = [layout.objections(facts) for layout in FORMATS[name] if facts.family in layout.families]
    return min(objections, key=len) if objections else [f"it is not for drafter={facts.family.lower()}"]
