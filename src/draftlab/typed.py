"""Values of a configuration against the types that constructors declare, before anything is constructed.

    {_target_: draftlab.heads.MarkovHead, rank: 1.5}    ->    ValueError: head.rank: expected int, got 1.5

Every node with a ``_target_`` of this package is looked at, nested ones too. What a parameter may be is its annotation, which
:mod:`draftlab.signatures` reads out of the source, so no second list of types exists and a refusal need not import PyTorch;
``true`` is no number, and ``1`` will do for a float. Ranges belong to the constructors.

    check_types(cfg)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from draftlab.signatures import OTHERS, parameter_types

OBJECTS = ConfigDict(arbitrary_types_allowed=True)  # no value of a configuration is one
HYDRA_KEYS = ("_target_", "_partial_", "_convert_", "_recursive_", "_args_")


def check_types(tree: Any, where: str = "") -> None:
    """Refuse a value that is not of its parameter's type, or that no parameter takes. What is missing or refers to nothing is left
    to OmegaConf.

    Raises:
        ValueError: the first such value, with its key, what was expected and what was given.
    """
    types = parameter_types(tree.get("_target_")) if isinstance(tree, DictConfig) else {}
    for name, value in _items(tree):
        key = f"{where}[{name}]" if isinstance(tree, ListConfig) else f"{where}.{name}".lstrip(".")
        if types and not types.keys() & {name, OTHERS} and name not in HYDRA_KEYS:
            taken = ", ".join(sorted(types.keys() - {"self", "cls"}))
            raise ValueError(f"{key}: {tree._target_} takes nothing of that name; it takes {taken or 'nothing'}")
        expected = types.get(name, types.get(OTHERS, Any)) if name not in HYDRA_KEYS else Any
        if not _holds_nodes(value):
            _check(expected, value, key)
        check_types(value, key)


def _items(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and resolved values of a node; nothing for a plain value."""
    if not isinstance(tree, DictConfig | ListConfig) or tree._is_none() or tree._is_missing():
        return
    for name in range(len(tree)) if isinstance(tree, ListConfig) else list(tree):
        try:
            yield name, tree[name]
        except OmegaConfBaseException:
            continue


def _holds_nodes(value: Any) -> bool:
    """Whether something in ``value`` is constructed first, so that its type is not known yet."""
    if isinstance(value, DictConfig) and "_target_" in value:
        return True
    return any(_holds_nodes(item) for _, item in _items(value))


def _check(annotation: Any, value: Any, key: str) -> None:
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    try:
        adapter = TypeAdapter(annotation, config=OBJECTS)
    except PydanticUserError:  # no type of plain values
        return
    try:
        adapter.validate_json(json.dumps(plain), strict=True)  # as JSON, a list will do for a tuple
    except ValidationError:
        expected = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        for prefix in ("typing.", "collections.abc."):
            expected = expected.replace(prefix, "")
        raise ValueError(f"{key}: expected {expected}, got {plain!r}") from None
