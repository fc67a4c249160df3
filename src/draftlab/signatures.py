"""What a constructor of this package takes, read out of its source: nothing is imported, which would take seconds.

    draftlab.heads.MarkovHead    ->    {"rank": int, …}        draftlab/heads/__init__.py names the file, its class the types

A name leads to a file, through ``from … import`` to a further one, and there to a function or a class; a class without a
constructor of its own takes its fields, if it is a dataclass, or what its base takes. Annotations are evaluated with what
Python itself brings; a class of this package becomes an empty one of its name, anything else :class:`~typing.Any`. The module
knows nothing of configurations.

    >>> parameter_types("draftlab.sampling.Sampling")["temperature"]
    <class 'float'>
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "draftlab"
FOLDER = Path(__file__).parent
OTHERS = "**"  # in a table of types: of every name that it does not hold
CONSTRUCTOR = "__init__"

Definition = ast.FunctionDef | ast.ClassDef
Place = tuple[str, Definition]  # the module that holds a definition, and the definition


def parameter_types(target: Any) -> dict[str, Any]:
    """Annotations of the parameters of what the dotted name ``target`` names (``**``: of further ones); none if nothing of this
    package has that name, which constructing then says in Hydra's words."""
    place = _find(target) if isinstance(target, str) and target.startswith(f"{PACKAGE}.") else None
    types: dict[str, Any] = {}
    for module, name, annotation in () if place is None else _parameters(*place):
        types.setdefault(name, _evaluate(annotation, module))
    return types


def defines(target: str) -> bool:
    """Whether the dotted name is of a function or class that a module of this package defines, not of one that it imports."""
    return _find(target) is not None


@functools.cache
def _source(module: str) -> ast.Module | None:
    """The parsed file of ``module``; None if it is none of this package's."""
    first, *rest = module.split(".")
    if first != PACKAGE:
        return None
    for path in (FOLDER.joinpath(*rest) / "__init__.py", FOLDER.joinpath(*rest).with_suffix(".py")):
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return None


def _find(target: str) -> Place | None:
    """The definition that a dotted name leads to: a module's, or one inside a class."""
    parts = target.split(".")
    known = [i for i in range(1, len(parts)) if _source(".".join(parts[:i])) is not None]
    if not known:
        return None
    place = _define(".".join(parts[: known[-1]]), parts[known[-1]])
    for name in parts[known[-1] + 1 :]:
        place = None if place is None else _member(*place, name)
    return place


def _define(module: str, name: str) -> Place | None:
    """Where the global ``name`` of ``module`` is defined, if it is a function or a class of this package."""
    tree = _source(module)
    for node in () if tree is None else _statements(tree):
        if isinstance(node, Definition) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _define(_imported(module, node), alias.name)
    return None


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those at the top of a module, and those under ``if TYPE_CHECKING``, which say where a late export comes from."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.If) else (node,)


def _imported(module: str, node: ast.ImportFrom) -> str:
    """The absolute name of the module that ``node`` in ``module`` imports from."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    is_package = FOLDER.joinpath(*parts[1:], "__init__.py").is_file()
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _member(module: str, node: Definition, name: str) -> Place | None:
    """A method of a class; one that a base defines is looked for there."""
    if not isinstance(node, ast.ClassDef):
        return None
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == name:
            return module, one
    for base in _bases(module, node):
        if (found := _member(*base, name)) is not None:
            return found
    return None


def _bases(module: str, node: ast.ClassDef) -> Iterator[Place]:
    """The definitions of the bases of a class that are this package's."""
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name) and (place := _define(module, name.id)) is not None:
            yield place


def _parameters(module: str, node: Definition) -> Iterator[tuple[str, str, ast.expr | None]]:
    """Module, name and annotation of everything that a call takes by name."""
    if isinstance(node, ast.FunctionDef):
        yield from _arguments(module, node)
        return
    own = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == CONSTRUCTOR), None)
    if own is not None:
        yield from _arguments(module, own)
        if own.args.kwarg is None:
            return
    elif _is_dataclass(node):
        yield from _fields(module, node)
    for base in _bases(module, node):
        yield from _parameters(*base)


def _arguments(module: str, node: ast.FunctionDef) -> Iterator[tuple[str, str, ast.expr | None]]:
    arguments = node.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield module, one.arg, one.annotation
    if arguments.kwarg is not None:
        yield module, OTHERS, arguments.kwarg.annotation


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _fields(module: str, node: ast.ClassDef) -> Iterator[tuple[str, str, ast.expr]]:
    """The fields of a dataclass that its constructor takes."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            annotation, value = ast.unparse(one.annotation), ast.unparse(one.value) if one.value else ""
            if "ClassVar" not in annotation and "init=False" not in value:
                yield module, one.target.id, one.annotation


def _evaluate(annotation: ast.expr | None, module: str) -> Any:
    """The type that an annotation of ``module`` means."""
    if annotation is None:
        return Any
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):  # written in quotes
        annotation = ast.parse(annotation.value, mode="eval").body
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    try:
        return eval(ast.unparse(annotation), {name: _type(module, name) for name in names})
    except (AttributeError, LookupError, TypeError):  # a type of another library, or a name that is no class
        return Any


def _type(module: str, name: str) -> Any:
    """What the global ``name`` of ``module`` means in an annotation.

    Raises:
        LookupError: it is neither a class of this package nor anything of Python's.
    """
    if hasattr(builtins, name):
        return getattr(builtins, name)
    for node in _statements(_source(module)):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            source = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            if (alias.asname or alias.name) == name and source and source.split(".")[0] in sys.stdlib_module_names:
                return getattr(importlib.import_module(source), alias.name)
    place = _define(module, name)
    if place is None or not isinstance(place[1], ast.ClassDef):
        raise LookupError(f"{name} in {module}")
    return _empty_class(place[0], name)


@functools.cache
def _empty_class(module: str, name: str) -> type:
    """Stands for a class of this package: of its name, and no plain value is an object of it."""
    return type(name, (), {"__module__": module})
