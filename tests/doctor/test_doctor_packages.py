"""Versions are held against the ranges of the metadata, and each extra knows what it is for."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from draftlab.doctor import packages as module
from draftlab.doctor.packages import USES, check, interpreter, packages

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("version", ["2.6", "2.13.1+cpu", "2.14.0.dev1", "2.6.0+cu128"])
def test_a_version_within_its_range_is_well(version):
    finding = check(Requirement("torch>=2.6,<2.15"), version)
    assert not finding.is_missing and finding.found == version and finding.note == "<2.15,>=2.6"


@pytest.mark.parametrize(
    ("version", "extra", "lacks", "remedy"),
    [
        (None, "", "everything", "pip install -e ."),
        ("2.5.1", "", "everything", "pip install -e ."),
        ("3.0", "", "everything", "pip install -e ."),
        (None, "serve", "engine=openai", "pip install -e '.[serve]'"),
        ("1.0", "other", "the extra other", "pip install -e '.[other]'"),
    ],
)
def test_a_missing_or_foreign_version_says_what_lacks_it_and_what_to_do(version, extra, lacks, remedy):
    finding = check(Requirement("torch>=2.6,<3"), version, extra)
    assert (finding.lacks, finding.remedy, finding.needed) == (lacks, remedy, not extra)
    assert finding.found == (version or "not installed")


def test_python_itself_has_a_range():
    assert not interpreter("3.13.1", ">=3.11").is_missing
    assert interpreter("3.10.4", ">=3.11").needed and "PYTHON=" in interpreter("3.10.4", ">=3.11").remedy


def test_every_requirement_of_the_project_is_looked_at_once(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda _: _stated())
    lines = [*PROJECT["dependencies"], *(line for extra in _extras().values() for line in extra)]
    names = [Requirement(line).name for line in lines]
    found = [finding.what for finding in packages()]
    assert found[:2] == ["draftlab", "python"] and sorted(found[2:]) == sorted({*names} - {"draftlab"})
    assert set(_extras()) == set(USES)


def test_what_two_extras_take_is_missing_for_the_one_that_names_it(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda _: _stated())
    monkeypatch.setattr(module, "installed", lambda name: None if name == "openai" else "99")
    (openai,) = (finding for finding in packages() if finding.what == "openai")
    assert openai.lacks == "engine=openai" and not openai.needed


def test_a_package_of_another_system_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda _: ['nothing; sys_platform == "none"', 'x; extra == "y"', "rich"])
    assert [finding.what for finding in packages()[2:]] == ["rich", "x"]


def test_without_metadata_the_package_is_not_installed(monkeypatch):
    monkeypatch.setattr(module, "PACKAGE", "draftlab-that-nobody-has")
    (finding,) = packages()
    assert finding.needed and finding.is_missing


def _extras():
    return PROJECT["optional-dependencies"]


def _stated():
    """The project's requirements as metadata has them."""
    return [
        *PROJECT["dependencies"],
        *(f'{line}; extra == "{extra}"' for extra, lines in _extras().items() for line in lines),
    ]
