"""docs/: commands run or say what they need, files written out in them work, links and pictures exist, keys are real.

A ``bash`` block is executed, one that opens with ``bash needs=gpu`` is composed only. A ``python`` or ``yaml`` block with ``file=``
is written to that place before the commands run. Commands that the README has too are run by test_readme.py.
"""

from __future__ import annotations

import re
import shlex
from itertools import chain
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import readme_examples
from commands import ROOT, blocks, commands, execute, lines_of
from docs_examples import EXAMPLES

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = {path.name: path.read_text(encoding="utf-8") for path in DOCS}
NEEDS = {"gpu", "hub", "account", "servers"}
FILES = (".py", ".json", ".csv", ".yaml", ".html", ".parquet", ".jsonl")  # with these endings a dotted word is no key
CONF = ROOT / "conf"
TOPS = sorted(path.stem for path in CONF.glob("*.yaml"))
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())


def own_commands() -> list[str]:
    """Commands of the docs that are to be run and that the README does not have."""
    found = dict.fromkeys(chain.from_iterable(commands(text) for text in PAGES.values()))
    return [
        command for command in found if command not in readme_examples.EXAMPLES and not command.startswith("export ")
    ]


def every_command() -> list[tuple[str, str]]:
    """(page, command) of all bash blocks, run or not."""
    return [
        (page, line)
        for page, text in PAGES.items()
        for _, body in blocks(text, "bash")
        for line in lines_of(body)
        if not line.startswith("export ")
    ]


def write_files(folder: Path) -> list[Path]:
    """Write the blocks with ``file=`` of all pages under ``folder``."""
    written = []
    for text in PAGES.values():
        for rest, body in chain(blocks(text, "python"), blocks(text, "yaml")):
            if rest.startswith("file="):
                path = folder / rest.removeprefix("file=")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(body, encoding="utf-8")
                written.append(path)
    return written


@pytest.fixture(scope="module")
def desk(workshop):
    """The workshop with the files of the docs in it."""
    assert len(write_files(workshop["folder"])) >= 3
    return workshop


@pytest.mark.parametrize("command", own_commands())
def test_a_command_of_the_docs_does_what_it_says(command, desk, monkeypatch, capfd):
    assert command in EXAMPLES, f"docs/ has a new command: add an example to docs_examples.py, {command!r}"
    monkeypatch.syspath_prepend(str(desk["folder"] / "my"))  # export PYTHONPATH=my
    execute(command, EXAMPLES[command], desk, monkeypatch, capfd)


def test_no_example_is_left_of_a_command_that_is_gone():
    assert set(EXAMPLES) == set(own_commands())


def test_what_a_block_needs_is_one_of_few_words():
    marked = [rest for text in PAGES.values() for rest, _ in blocks(text, "bash") if rest]
    assert marked
    for rest in marked:
        assert rest.startswith("needs=") and set(rest.removeprefix("needs=").split(",")) <= NEEDS, rest


# What a page names exists


def anchors(text: str) -> set[str]:
    """Link targets of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_of_a_page_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", PAGES[page]):
        name, _, anchor = link.partition("#")
        path = (ROOT / "docs" / name).resolve() if name else ROOT / "docs" / page
        assert path.exists() and path.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), link


def test_every_page_is_listed_in_the_index_and_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/README.md)" in readme
    for page in set(PAGES) - {"README.md"}:
        assert f"]({page})" in PAGES["README.md"], page


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_project_that_a_page_names_exist(page):
    for name in re.findall(r"`((?:src|conf|tests|data|benchmarks|results)/[\w./-]*)`", PAGES[page]):
        assert (ROOT / name).exists(), name


# Keys of the configuration


def keys_of(tree, prefix="") -> set[str]:
    """Dotted keys of everything under ``tree``."""
    found = set()
    for key, value in tree.items():
        found.add(f"{prefix}{key}")
        if isinstance(value, dict):
            found |= keys_of(value, f"{prefix}{key}.")
    return found


@pytest.fixture(scope="module")
def known_keys() -> set[str]:
    """Every key of every top file with every choice of its groups."""
    found = set(GROUPS) | {"evaluation@_global_"}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for top in TOPS:
            entries = [
                entry
                for entry in OmegaConf.load(CONF / f"{top}.yaml").get("defaults", [])
                if not isinstance(entry, str)
            ]
            groups = {key.split("@")[0] for entry in entries for key in entry} & set(GROUPS) - {
                "evaluation",
                "experiment",
            }
            choices = [[]] + [[f"{group}={path.stem}"] for group in groups for path in (CONF / group).glob("*.yaml")]
            for words in choices:
                found |= keys_of(OmegaConf.to_container(compose(top, overrides=words), resolve=False))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_no_key_that_does_not_exist(page, known_keys):
    prose = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.S | re.M)
    roots = {key.split(".")[0] for key in known_keys}
    named = 0
    for code in re.findall(r"`([^`\n]+)`", prose):
        for word in code.split():
            key, given, _ = word.partition("=")
            dotted = re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", key) and key.split(".")[0] in roots
            is_file = Path(key).suffix in FILES
            if (given and re.fullmatch(r"[a-z_.0-9@]+", key)) or (dotted and not is_file):
                assert key in known_keys, f"{page}: `{code}`"
                named += 1
    assert named or page in ("README.md", "comparison.md")


def test_a_key_that_does_not_exist_would_be_found(known_keys):
    assert "data.batch_size" in known_keys and "schedule.value" in known_keys and "loss.terms.ce.weight" in known_keys
    assert "data.batchsize" not in known_keys and "head.rang" not in known_keys


@pytest.mark.parametrize(("page", "command"), every_command())
def test_every_command_also_those_that_are_not_run_composes(page, command, tmp_path):
    words = shlex.split(command)
    script = ROOT / words[1] if words[0] in ("python", "bash") else None
    if script is None:
        assert words[0] == "make" and f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        return
    assert script.is_file(), command
    top, overrides = script.stem, [word for word in words[2:] if "=" in word and not word.startswith("--")]
    if top not in TOPS or "--config-dir=my" in words:
        return  # benchmarks read their own words; the files of the docs are composed where they are run
    with initialize_config_dir(str(CONF), version_base="1.3"):
        compose(top, overrides=overrides)


def test_pages_are_short_enough_to_be_read():
    for page, text in PAGES.items():
        assert len(text.splitlines()) <= 300, page
