"""Loading a target by its spec: the frozen model, its tokenizer, or only its two ends.

Every load compares the spec with the model's own config and runs the self-check of its last hidden state, so a wrong
YAML or a wrong tensor never trains silently. The module knows nothing of chats or drafters; files come from
:mod:`draftlab.target.source`. Transformers is imported by what needs it, since it is slow to import.

    target = load_target(spec, device="cuda")
    ends = load_ends(spec)                                 # embedding and LM head, without the layers between
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftlab.target.derive import check_against_config, read_config
from draftlab.target.ends import TargetEnds
from draftlab.target.frozen import FrozenTarget
from draftlab.target.source import fetch, resolve
from draftlab.target.spec import TargetSpec


def torch_dtype(spec: TargetSpec, device: str | torch.device = "cpu") -> torch.dtype:
    """Dtype of the frozen weights on ``device``; ``auto`` is bfloat16 on CUDA and float32 elsewhere."""
    if spec.dtype == "auto":
        return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    return getattr(torch, spec.dtype)


def load_target(spec: TargetSpec, device: str | torch.device = "cpu") -> FrozenTarget:
    """The frozen target on ``device``, checked against its spec and against itself.

    Raises:
        ValueError: no such model, sizes other than the spec's, missing weights, or a failed self-check.
    """
    from transformers.utils.logging import disable_progress_bar

    folder = fetch(spec.path, spec.revision)
    config = read_config(str(folder), trust_remote_code=spec.trust_remote_code)
    check_against_config(spec, config)
    if not sys.stderr.isatty():
        disable_progress_bar()  # one line a step is for terminals, not for log files
    placement = {} if torch.device(device).type == "cpu" else {"device_map": {"": device}}
    model, report = _read_model(folder, spec, config, dtype=torch_dtype(spec, device), **placement)
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ValueError(
            f"target {spec.name!r}: {len(missing)} weights are missing in {spec.path!r}, the first is {missing[0]}; "
            "they would be random. The folder is incomplete or of another architecture"
        )
    target = FrozenTarget(model, spec)
    target.self_check(torch.linspace(0, spec.vocab_size - 1, 8).long()[None])
    return target


def _read_model(folder: Path, spec: TargetSpec, config, **options):
    """The model and what was found of it; quantised weights stay so where transformers and its helpers run them here."""
    from transformers import AutoModelForCausalLM

    options |= {"trust_remote_code": spec.trust_remote_code, "output_loading_info": True, "weights_only": True}
    try:
        return AutoModelForCausalLM.from_pretrained(str(folder), **options)
    except pickle.UnpicklingError:  # its text advises to load it all the same
        raise ValueError(
            f"target {spec.name!r}: the pickled weights (*.bin) in {spec.path!r} hold more than tensors, and loading them could "
            "run any program; use a model with safetensors"
        ) from None
    except SafetensorError as error:
        raise ValueError(
            f"target {spec.name!r}: weights in {spec.path!r} are damaged or cut short ({error}); fetch them again"
        ) from None
    except (ImportError, RuntimeError, ValueError) as error:
        if getattr(config, "quantization_config", None) is None:
            raise
        raise ValueError(
            f"target {spec.name!r} at {spec.path!r} has quantised weights that cannot be loaded here "
            f"({(str(error).strip().splitlines() or [type(error).__name__])[0]}). Install what it names, use a machine with the "
            "GPU that it needs, or give the model in float32 or bfloat16, or as a GGUF file (target.path=….gguf)"
        ) from error


def load_tokenizer(spec: TargetSpec):
    """The target's own tokenizer.

    Raises:
        ValueError: there is none at the spec's path.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            resolve(spec.path), revision=spec.revision, trust_remote_code=spec.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"target {spec.name!r}: no tokenizer could be read at {spec.path!r} ({str(error).splitlines()[0]}). "
            "Expected a folder or hub id with the tokenizer files of the model"
        ) from error


def load_ends(spec: TargetSpec, device: str | torch.device = "cpu") -> TargetEnds:
    """Embedding and LM head of a target, read without its layers where the weights are safetensors."""
    folder = fetch(spec.path, spec.revision)
    config = read_config(str(folder), trust_remote_code=spec.trust_remote_code)
    check_against_config(spec, config)
    names = _end_names(config, spec)
    files = _tensor_files(folder)
    keys = {role: _find_key(files, name) for role, name in names.items()}
    if any(key is None for key in keys.values()):  # no safetensors, or foreign names: read it all
        return load_target(spec, device).ends
    read = {role: _read_tensor(files[key], key).to(device, torch_dtype(spec, device)) for role, key in keys.items()}
    return TargetEnds(
        read["embedding"],
        read.get("head"),
        read.get("head_bias"),
        spec.embedding_scale,
        spec.logit_scale,
        spec.logit_softcap,
    )


def _end_names(config, spec: TargetSpec) -> dict[str, str]:
    """Parameter names of the ends, looked up on a model built without memory."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=spec.trust_remote_code)
    head = model.get_output_embeddings()
    wanted = {"embedding": model.get_input_embeddings().weight, "head_bias": getattr(head, "bias", None)}
    if not spec.tied:
        wanted["head"] = head.weight
    names = {id(parameter): name for name, parameter in model.named_parameters()}  # a tied pair under its first name
    return {role: names[id(parameter)] for role, parameter in wanted.items() if parameter is not None}


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Safetensors file of every stored tensor name; empty for other formats."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {key: folder / name for key, name in weight_map(index).items()}
    single = folder / "model.safetensors"
    if not single.is_file():
        return {}
    with _opened(single) as opened:
        return dict.fromkeys(opened.keys(), single)


def weight_map(index: Path) -> dict[str, str]:
    """File beside ``index`` of every tensor name.

    Raises:
        ValueError: it is no such list, or names something that is not a file of its folder.
    """
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if all(isinstance(name, str) and name not in ("", "..") and Path(name).name == name for name in files.values()):
            return files
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{index}: expected a weight_map of tensor names to files beside it; it was damaged or changed")


def _find_key(files: dict[str, Path], name: str) -> str | None:
    """The stored name of a parameter; multimodal checkpoints order the prefixes otherwise, so a unique tail counts."""
    if name in files:
        return name
    tail = ".".join(name.split(".")[-2:])
    matching = [key for key in files if key == tail or key.endswith(f".{tail}")]
    return matching[0] if len(matching) == 1 else None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A safetensors file of a target.

    Raises:
        ValueError: it is missing or damaged.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be read ({error}); fetch the target's weights again") from None


def _read_tensor(file: Path, key: str) -> Tensor:
    with _opened(file) as opened:
        return opened.get_tensor(key)
