"""Each part imports only from the parts to its left in ORDER, and entry scripts hold no logic of their own."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "draftlab"
ORDER = [
    *("memory", "signatures", "typed", "cli"),
    *("configuration", "runs", "accounts", "hardware"),
    *("types", "acceptance", "sampling", "blocks"),
    *("target", "data"),
    *("heads", "drafters"),
    *("losses", "metrics"),
    *("calibration", "scheduling"),
    *("training", "callbacks"),
    *("decode", "serving"),
    *("report", "export", "engines", "sweeps"),
    *("doctor", "__main__"),
]


def imported_parts(path: Path, source: str) -> set[str]:
    """Names right under ``draftlab`` that a file imports, however it writes the import."""
    parts = set()
    package = ("draftlab", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            modules = [f"{module}.{alias.name}" for alias in node.names] if module == "draftlab" else [module]
        else:
            continue
        parts |= {name.split(".")[1] for name in modules if name.startswith("draftlab.")}
    return parts


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def wrong_imports(path: Path, source: str) -> list[str]:
    own = part_of(path)
    return [
        f"{path.relative_to(SOURCE)} imports draftlab.{part}, which stands right of {own}"
        for part in sorted(imported_parts(path, source) - {own})
        if part in ORDER and ORDER.index(part) > ORDER.index(own)
    ]


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_every_part_has_a_place_in_the_order():
    assert {part_of(path) for path in FILES} - set(ORDER) == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_part_imports_only_from_its_left(path):
    source = path.read_text(encoding="utf-8")
    assert wrong_imports(path, source) == []
    assert imported_parts(path, source) <= set(ORDER)


@pytest.mark.parametrize(
    "line",
    [
        "import draftlab.report.tables",
        "from draftlab.report import tables",
        "from draftlab import report",
        "from ..report import tables",
        "from ..report.tables import length_table",
        "def late():\n    from draftlab.decode.loop import speculative_decode",
    ],
)
def test_an_import_from_the_right_is_found_however_it_is_written(line):
    assert len(wrong_imports(PACKAGE / "losses" / "terms.py", line)) == 1


@pytest.mark.parametrize(
    "line", ["from draftlab.types import Batch", "from .terms import x", "import torch", "from . import y"]
)
def test_imports_from_the_left_and_of_the_own_part_are_fine(line):
    assert wrong_imports(PACKAGE / "losses" / "terms.py", line) == []


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_an_entry_script_is_thin_and_needs_no_other_one_to_start(path):
    source = path.read_text(encoding="utf-8")
    scripts = {script.stem for script in SOURCE.glob("*.py")}
    for node in ast.parse(source).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not scripts & set(names), f"{path.name} imports another entry script at its top"
    assert len(source.splitlines()) <= 120, (
        f"{path.name} is longer than an entry script should be; move work to draftlab"
    )


def test_no_two_test_files_share_a_name():
    """Pytest imports them by their name alone, and leaves out the second."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
