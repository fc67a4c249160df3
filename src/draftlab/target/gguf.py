"""A target out of a GGUF file: turned into an ordinary float32 model folder once, by transformers' own reader.

The folder holds what the quantised weights say, so a drafter trained on it learns what the engine that serves the file computes.
It lies in the cache under the file's name and fingerprint: another file of that name is another target. The module knows nothing
of where files come from.

    folder = gguf_folder(Path("model.Q4_1.gguf"), cache_dir() / "targets")
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from filelock import FileLock

SUFFIX, MAGIC = ".gguf", b"GGUF"
ENDS = 2**20  # bytes read at both ends of a file to tell it from others: its tensors may be gigabytes


def gguf_folder(file: Path, cache: Path) -> Path:
    """The model folder made of ``file``, in ``cache``; made by one process while others wait.

    Raises:
        ValueError: no such file, none that is GGUF, or one that transformers cannot read.
    """
    if not file.is_file():
        raise ValueError(f"target.path: there is no file {file}; expected a GGUF file of a causal LM")
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise ValueError(
                f"target.path: {file} is no GGUF file (it does not start with {MAGIC.decode()}); download it again"
            )
    folder = cache / f"{file.stem}-{fingerprint(file)}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as work:
                print(f"target: converting {file.name} into {folder} (once)", flush=True)
                made = Path(work) / "model"
                try:
                    convert_gguf(file, made)
                except Exception as error:  # its reader raises what it meets: KeyError, TypeError, ImportError, …
                    words = (str(error).strip().splitlines() or [""])[0]
                    raise ValueError(
                        f"target.path: transformers could not read {file} ({type(error).__name__}: {words}). It reads GGUF files "
                        "of some architectures only; give the folder or hub id of the model that the file was made of"
                    ) from error
                made.rename(folder)
    return folder


def fingerprint(file: Path) -> str:
    """Tells a file from another one: size, time of writing, both ends."""
    facts = file.stat()
    found = hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns}".encode())
    with file.open("rb") as opened:
        found.update(opened.read(ENDS))
        opened.seek(max(0, facts.st_size - ENDS))
        found.update(opened.read(ENDS))
    return found.hexdigest()[:8]


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file as an ordinary float32 model folder of transformers."""
    import torch  # with transformers slow to import, and needed here only
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantized = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = quantized.config
    if hasattr(config, "quantization_config"):  # the saved weights are plain; a loader must not look for GGUF
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(quantized.state_dict())
    plain.generation_config = quantized.generation_config
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
