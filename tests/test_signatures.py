"""Types read out of the source are those that an import would find."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import hydra
import pytest

from draftlab import signatures
from draftlab.signatures import OTHERS, parameter_types

CONF = Path(__file__).parents[1] / "conf"
TARGETS = sorted(
    {name for file in CONF.rglob("*.yaml") for name in re.findall(r"_target_: (draftlab[\w.]+)", file.read_text())}
)


def imported_types(target):
    """The slow twin: the annotations of what ``target`` names, as imported."""
    function = hydra.utils.get_object(target)
    constructors = [function]
    if inspect.isclass(function):
        constructors = []
        for base in function.__mro__[:-1]:
            if (constructor := vars(base).get("__init__")) is None:
                continue
            constructors.append(constructor)
            if all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(constructor).parameters.values()):
                break
    types = {}
    for one in constructors:
        for name, parameter in inspect.signature(one).parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                continue
            try:
                annotation = eval(parameter.annotation, vars(sys.modules[one.__module__]))
            except (NameError, TypeError):
                annotation = "typing.Any"
            types.setdefault(OTHERS if parameter.kind is parameter.VAR_KEYWORD else name, str(annotation))
    return types


def test_conf_names_constructors():
    assert len(TARGETS) > 50


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_says_what_an_import_finds(target):
    found = {name: str(annotation) for name, annotation in parameter_types(target).items()}
    expected = imported_types(target)
    for name in found.keys() | expected.keys() - {"self", "cls"}:
        ours, theirs = found.get(name, "typing.Any"), expected.get(name, "typing.Any")
        assert ours == theirs or (ours == "typing.Any" and "draftlab" not in theirs and "torch" in theirs), name


def test_nothing_is_imported():
    code = f"import sys; from draftlab.signatures import parameter_types as p; [p(t) for t in {TARGETS}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if name.startswith("draftlab")] == ["draftlab", "draftlab.signatures"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of three files in the place of this one."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nfrom .near import Near as Renamed\nfrom draftlab.far import Far, function\n"
        "if TYPE_CHECKING:\n    from draftlab.part.near import Late\nimport torch\n"
    )
    (tmp_path / "part" / "near.py").write_text(
        "from dataclasses import dataclass, field\nfrom typing import ClassVar, Literal\nfrom ..far import Far\n"
        "import numpy as np\n"
        "@dataclass(frozen=True)\nclass Near(Far):\n    a: int\n    b: Far | None = None\n    c: np.ndarray = None\n"
        "    d: ClassVar[int] = 3\n    e: list[str] = field(init=False)\n"
        "class Late(Near[int]):\n    def __init__(self, own: Literal['x'], *, a: str, **rest):\n        pass\n"
    )
    (tmp_path / "far.py").write_text(
        "import collections.abc\nfrom collections.abc import Callable\nKind = int\n"
        "class Far:\n    def __init__(self, z: float, free, k: Kind, c: 'Callable[[], int]' = None): pass\n"
        "    @classmethod\n    def made(cls, w: bool): pass\n"
        "def function(s: Callable, /, t: collections.abc.Sequence[int] = (), **u: int): pass\nvalue = 1\n"
    )
    monkeypatch.setattr(signatures, "FOLDER", tmp_path)
    signatures._source.cache_clear()
    yield
    signatures._source.cache_clear()


def names(target):
    return {name: str(annotation).removeprefix("typing.") for name, annotation in parameter_types(target).items()}


@pytest.mark.usefixtures("package")
def test_names_are_followed_through_packages_bases_and_late_exports():
    far = {"self": "Any", "z": "<class 'float'>", "free": "Any", "k": "Any", "c": "Any"}
    near = {"a": "<class 'int'>", "b": "draftlab.far.Far | None", "c": "Any"}
    assert names("draftlab.far.Far") == {**far, "c": "collections.abc.Callable[[], int]"}
    assert names("draftlab.part.Renamed") == {**far, **near}
    late = {"own": "Literal['x']", "a": "<class 'str'>", "**": "Any"}
    assert names("draftlab.part.Late") == {**far, **near, **late}
    for target in ("draftlab.part.Renamed.made", "draftlab.far.Far.made"):
        assert names(target) == {"cls": "Any", "w": "<class 'bool'>"}
    assert (
        names("draftlab.part.function").keys() == {"s", "t", "**"}
        and parameter_types("draftlab.far.function")[OTHERS] is int
    )


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "target",
    ["draftlab", "draftlab.far", "draftlab.nothing.Far", "draftlab.far.value", "draftlab.far.Kind", "draftlab.part.torch",
     "draftlab.far.Far.nothing", "draftlab.far.function.x", "json.dumps", None, 3],
)  # fmt: skip
def test_what_is_no_function_or_class_of_this_package_takes_nothing_that_is_known(target):
    assert parameter_types(target) == {}
