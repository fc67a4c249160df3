"""Values of a configuration against the types that constructors declare, before anything is constructed.

    {_target_: draftlab.heads.MarkovHead, rank: 1.5}    ->    ValueError: head.rank: expected int, got 1.5

Every node with a ``_target_`` of this package is looked at, nested ones too. What a parameter may be is its annotation, so
no second list of types exists; ``true`` is no number, and ``1`` will do for a float. Ranges belong to the constructors.

    check_types(cfg)
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

import hydra
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import PydanticUserError, TypeAdapter, ValidationError

PACKAGE = "draftlab."
OTHERS = "**"  # in a table of types: of every name that it does not hold
HYDRA_KEYS = ("_target_", "_partial_", "_convert_", "_recursive_", "_args_")


def check_types(tree: Any, where: str = "") -> None:
    """Refuse a value that is not of its parameter's type. What is missing or refers to nothing is left to OmegaConf.

    Raises:
        ValueError: the first such value, with its key, what was expected and what was given.
    """
    types = parameter_types(tree.get("_target_")) if isinstance(tree, DictConfig) else {}
    for name, value in _items(tree):
        key = f"{where}[{name}]" if isinstance(tree, ListConfig) else f"{where}.{name}".lstrip(".")
        expected = types.get(name, types.get(OTHERS, Any)) if name not in HYDRA_KEYS else Any
        if not _holds_nodes(value):
            _check(expected, value, key)
        check_types(value, key)


def parameter_types(target: Any) -> dict[str, Any]:
    """Annotations of the parameters of what ``target`` names (``**``: of further ones), as far as they can be evaluated."""
    if not isinstance(target, str) or not target.startswith(PACKAGE):
        return {}
    try:
        function = hydra.utils.get_object(target)
    except Exception:  # whatever importing raised, constructing raises again, in Hydra's words
        return {}
    types: dict[str, Any] = {}
    for one in _signatures(function):
        for name, parameter in inspect.signature(one).parameters.items():
            try:
                annotation = eval(parameter.annotation, vars(sys.modules[one.__module__]))
            except (NameError, TypeError):  # a class that only type checkers import, or no annotation at all
                annotation = Any
            types.setdefault(OTHERS if parameter.kind is parameter.VAR_KEYWORD else name, annotation)
    return types


def _signatures(function: Any) -> Iterator[Any]:
    """What takes the keywords: a function, or the constructors of a class as far up as ``**`` hands them on."""
    if not inspect.isclass(function):
        yield function
        return
    for base in function.__mro__[:-1]:
        constructor = vars(base).get("__init__")
        if constructor is None:
            continue
        yield constructor
        if all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(constructor).parameters.values()):
            return


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
        adapter = TypeAdapter(annotation)
    except PydanticUserError:  # no type of plain values
        return
    try:
        adapter.validate_json(json.dumps(plain), strict=True)  # as JSON, a list will do for a tuple
    except ValidationError:
        expected = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        for prefix in ("typing.", "collections.abc."):
            expected = expected.replace(prefix, "")
        raise ValueError(f"{key}: expected {expected}, got {plain!r}") from None
