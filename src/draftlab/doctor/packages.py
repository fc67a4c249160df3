"""Installed versions against the ranges that the installed package states in its metadata (pyproject.toml).

torch<2.14,>=2.6                        needed by everything
openai>=3.0; extra == "serve"           needed by what the extra is for: USES

packages()                              # a Finding for each
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from draftlab.doctor.finding import Finding

PACKAGE = "draftlab"
EVERYTHING = "everything"
INSTALL = "pip install -e ."
USES = {  # extra of pyproject.toml -> what asks for it
    "dev": "make test, make lint",
    "engines": "make engine-test, format=gguf",
    "notebooks": "notebooks/",
    "ray": "hydra/launcher=ray",
    "serve": "engine=openai",
    "slurm": "hydra/launcher=submitit_slurm",
    "wandb-report": "report=wandb",
}


def packages() -> list[Finding]:
    """Python, then every package that this one asks for, those of extras last."""
    try:
        wanted = metadata.requires(PACKAGE) or []
        python = metadata.metadata(PACKAGE)["Requires-Python"]
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return [Finding(PACKAGE, "not installed", lacks=EVERYTHING, remedy=INSTALL, needed=True)]
    found = [Finding(PACKAGE, version), interpreter(platform.python_version(), python or "")]
    seen: dict[str, Finding] = {}
    for extra, requirement in sorted(_requirements(wanted), key=lambda pair: pair[0]):
        seen.setdefault(requirement.name, check(requirement, installed(requirement.name), extra))
    return [*found, *seen.values()]


def interpreter(version: str, wanted: str) -> Finding:
    """Python itself."""
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return Finding("python", version, wanted)
    remedy = f"make PYTHON=<a Python {wanted}>"
    return Finding("python", version, wanted, lacks=EVERYTHING, remedy=remedy, needed=True)


def check(requirement: Requirement, version: str | None, extra: str = "") -> Finding:
    """The package of ``requirement``, of which ``version`` is installed (None: nothing); ``extra`` asks for it ("": all do)."""
    wanted = str(requirement.specifier)
    if version is not None and requirement.specifier.contains(version, prereleases=True):
        return Finding(requirement.name, version, wanted)
    lacks = USES.get(extra, f"the extra {extra}") if extra else EVERYTHING
    remedy = f"pip install -e '.[{extra}]'" if extra else INSTALL
    return Finding(requirement.name, version or "not installed", wanted, lacks=lacks, remedy=remedy, needed=not extra)


def installed(name: str) -> str | None:
    """The version of package ``name``; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements(lines: list[str]) -> Iterator[tuple[str, Requirement]]:
    """Extra ("" for none) and requirement of every line that counts on this machine; the package itself is none."""
    extras = {"", *USES, *(line.rpartition("extra == ")[2].strip("\"' ") for line in lines if "extra == " in line)}
    for requirement in map(Requirement, lines):
        if requirement.name == PACKAGE:  # an extra that takes others along
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield "", requirement
            continue
        for extra in sorted(extras - {""}):
            if requirement.marker.evaluate({"extra": extra}):
                yield extra, requirement
