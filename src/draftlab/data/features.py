"""Target features of small sets: computed once, kept on disk, mapped into memory, used again by every later run.

For every token of every sample: ``features`` [M*D] (raw layer outputs), ``last_hidden`` [D] (after the final norm) and,
if asked, ``log_normalizer`` = log Σ_v exp(logit_v), taken from the *stored* last hidden state so that both describe one
law. Shards are safetensors files written atomically; ``manifest.json`` comes last. The folder carries an *identity*
(target, layers, tokenizer, template, length, dtypes, samples): another identity is refused, naming the key; the same one
resumes at the first missing shard (cases 12 and 13). What is stored in bfloat16 is also computed in it where the CPU has
instructions for it, over three times as fast; the residual stream and the sum of the normalizer stay float32. When a
finished folder is opened, the target's own logits are compared with the stored states (case 1).

    store = compute_features(target, samples, folder, identity, FeatureSettings())
    features, last_hidden, log_normalizer = store[index]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from draftlab.data.files import claim, digest, reopen, seal
from draftlab.data.progress import Progress
from draftlab.data.samples import Sample
from draftlab.hardware import has_fast_bfloat16
from draftlab.types import Batch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class FeatureSettings:
    """How features are computed and stored; ``batch_tokens`` and ``shard_tokens`` bound what is held at a time.

    ``compute_dtype`` is that of matrix products: ``auto`` (see :func:`compute_dtype`) or a dtype. Without ``layers`` features are
    0 wide: some drafters read the last hidden state only.
    """

    dtype: str = "bfloat16"
    log_normalizer: bool = True
    compute_dtype: str = "auto"
    batch_tokens: int = 4096
    shard_tokens: int = 16384
    layers: bool = True


def compute_dtype(target: Any, settings: FeatureSettings) -> torch.dtype:
    """What ``auto`` stands for: bfloat16 on a CPU with instructions for it if it is also stored, else the target's."""
    if settings.compute_dtype != "auto":
        return DTYPES[settings.compute_dtype]
    capable = target.device.type == "cpu" and has_fast_bfloat16(target.device)
    return torch.bfloat16 if capable and settings.dtype == "bfloat16" else target.dtype


def cache_root() -> Path:
    """Where things that can be computed again are kept: ``$DRAFTLAB_CACHE``, or ``~/.cache/draftlab``."""
    return Path(os.environ.get("DRAFTLAB_CACHE") or Path.home() / ".cache" / "draftlab")


def features_identity(target: Any, samples: Sequence[Sample], settings: FeatureSettings, text: dict) -> dict[str, Any]:
    """What must agree for stored features to be this run's; ``text`` names tokenizer, template and max_length."""
    return {
        **text_identity(target, samples, text),
        "format": 1,
        "feature_dtype": settings.dtype,
        "compute_dtype": str(compute_dtype(target, settings)),
        "log_normalizer": settings.log_normalizer,
        "shard_tokens": settings.shard_tokens,
        **({} if settings.layers else {"layers": False}),
    }


def text_identity(target: Any, samples: Sequence[Sample], text: dict) -> dict[str, Any]:
    """The part of an identity that says which states of which target these are, however they are stored."""
    spec = target.spec
    return {
        "target": {
            "name": spec.name,
            "revision": spec.revision,
            "dtype": str(target.dtype),
            "weights": _fingerprint(target),
        },
        "target_layer_ids": list(spec.target_layer_ids),
        **text,
        "samples": digest([[sample.id, digest(sample.input_ids.tolist())] for sample in samples]),
    }


def compute_features(
    target: Any, samples: Sequence[Sample], folder: Path | None, identity: dict, settings: FeatureSettings
) -> FeatureStore:
    """Features of all ``samples``, read from ``folder`` or computed into it; None: in the cache, named by the identity.

    Raises:
        ValueError: the folder holds features of another identity, or stored states that are not this target's.
    """
    folder = folder or cache_root() / "features" / digest(identity)
    claim(folder, identity, "features", "data.cache_dir")
    shards = plan_shards(samples, settings.shard_tokens)
    missing = [index for index in range(len(shards)) if not _is_whole(_shard_path(folder, index))]
    if missing:
        reopen(folder, identity)
        size = sum(map(len, samples)) * _bytes_per_token(target.spec, settings)
        print(f"features of {len(samples)} samples, {size / 1e9:.2f} GB: {folder}", flush=True)
        done = sum(len(shard) for index, shard in enumerate(shards) if index not in set(missing))
        with Progress("features", total=len(samples), done=done, unit="tokens") as progress:
            for index in missing:
                part = [samples[i] for i in shards[index]]
                _write_shard(_shard_path(folder, index), _read_features(target, part, settings))
                progress.advance(len(part), sum(map(len, part)))
    seal(folder, {"identity": identity, "shards": len(shards), "samples": len(samples)})
    spec = target.spec
    store = FeatureStore(folder, samples, shards, (spec.feature_size * settings.layers, spec.hidden_size))
    store.check(target, samples, compute_dtype(target, settings))
    return store


def plan_shards(samples: Sequence[Sample], shard_tokens: int) -> list[list[int]]:
    """Sample indices of every shard, up to ``shard_tokens`` each; sorted by length, which saves padding."""
    shards: list[list[int]] = []
    filled = 0
    for index in sorted(range(len(samples)), key=lambda i: (len(samples[i]), i)):
        if not shards or filled + len(samples[index]) > shard_tokens:
            shards.append([])
            filled = 0
        shards[-1].append(index)
        filled += len(samples[index])
    return shards


class FeatureStore:
    """Features by sample index, mapped from the shards of a finished folder; ``widths`` are M*D (or 0) and D.

    Raises:
        ValueError: a shard that holds other tensors than those of its samples.
    """

    def __init__(
        self, folder: Path, samples: Sequence[Sample], shards: list[list[int]], widths: tuple[int, int]
    ) -> None:
        self.folder = folder
        tokens = [sum(len(samples[index]) for index in members) for members in shards]
        self._tensors = [_open_shard(_shard_path(folder, index), count, widths) for index, count in enumerate(tokens)]
        self._place: dict[int, tuple[int, int, int]] = {}
        for shard, members in enumerate(shards):
            start = 0
            for index in members:
                self._place[index] = (shard, start, start + len(samples[index]))
                start += len(samples[index])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """``features`` [T, M*D], ``last_hidden`` [T, D] and ``log_normalizer`` [T] or None of sample ``index``."""
        shard, start, stop = self._place[index]
        tensors = self._tensors[shard]
        normalizer = tensors.get("log_normalizer")
        parts = tensors["features"][start:stop], tensors["last_hidden"][start:stop]
        return *parts, None if normalizer is None else normalizer[start:stop]

    def check(self, target: Any, samples: Sequence[Sample], compute_dtype: torch.dtype) -> None:
        """Refuse stored states whose logits are not the target's own (case 1)."""
        shortest = min(self._place, key=lambda index: len(samples[index]))
        target.self_check(samples[shortest].input_ids.long()[None], self[shortest][1][None], compute_dtype)


def _read_features(target: Any, samples: Sequence[Sample], settings: FeatureSettings) -> dict[str, Tensor]:
    """Features of a shard's samples, concatenated over their tokens."""
    tensors = read_states(target, samples, settings, DTYPES[settings.dtype])
    if settings.log_normalizer:
        compute = compute_dtype(target, settings)
        tensors["log_normalizer"] = _log_normalizer(target, samples, tensors["last_hidden"], compute)
    return tensors


def read_states(
    target: Any, samples: Sequence[Sample], settings: FeatureSettings, dtype: torch.dtype
) -> dict[str, Tensor]:
    """``features`` [K, M*D or 0] and ``last_hidden`` [K, D] of all K tokens of ``samples``, in ``dtype`` on the CPU."""
    compute = compute_dtype(target, settings)
    parts: dict[str, list[Tensor]] = {"features": [], "last_hidden": []}
    per_batch = max(1, settings.batch_tokens // max(map(len, samples)))
    for first in range(0, len(samples), per_batch):
        group = samples[first : first + per_batch]
        with torch.autocast(target.device.type, compute, enabled=compute != target.dtype):
            batch = target.read(collate(group).to(target.device), log_normalizer=False)
        real = batch.attention_mask
        parts["features"].append(batch.features[real][:, : None if settings.layers else 0].to("cpu", dtype))
        parts["last_hidden"].append(batch.last_hidden[real].to("cpu", dtype))
    return {name: torch.cat(values) for name, values in parts.items()}


def _log_normalizer(target: Any, samples: Sequence[Sample], last_hidden: Tensor, compute: torch.dtype) -> Tensor:
    """log Σ_v exp(logit_v) of stored states [K, D] whose next token is supervised, the only ones that teach.

    It costs the whole LM head a token, so elsewhere it is infinite instead: every probability there is 0.
    """
    teaches = torch.cat([functional.pad(sample.loss_mask[1:], (0, 1)) for sample in samples])
    normalizer = torch.full((len(last_hidden),), torch.inf)
    states = last_hidden[teaches].to(target.device, target.dtype)
    normalizer[teaches] = target.log_normalizer(states, compute).cpu()
    return normalizer


def collate(samples: Sequence[Sample]) -> Batch:
    """A right-padded batch [B, T] without features."""
    lengths = torch.tensor([len(sample) for sample in samples])
    ids = pad_sequence([sample.input_ids.long() for sample in samples], batch_first=True)
    return Batch(
        input_ids=ids,
        attention_mask=torch.arange(ids.shape[1]) < lengths[:, None],
        loss_mask=pad_sequence([sample.loss_mask for sample in samples], batch_first=True),
        sample_ids=tuple(sample.id for sample in samples),
        domains=tuple(sample.domain for sample in samples),
    )


def _write_shard(path: Path, tensors: dict[str, Tensor]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(tensors, name)
        with open(name, "rb") as file:  # noqa: PTH123
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:06d}.safetensors"


def _is_whole(path: Path) -> bool:
    """True if a shard exists and is as long as its header says; a cut one is computed again."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False


def _open_shard(path: Path, tokens: int, widths: tuple[int, int]) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}); remove it, and it is computed again") from None
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    expected = {"features": [tokens, widths[0]], "last_hidden": [tokens, widths[1]]}
    if found not in (expected, expected | {"log_normalizer": [tokens]}):
        raise ValueError(
            f"{path} is a foreign shard: it holds {found}, expected {expected}; remove it, and it is computed again"
        )
    return tensors


def _bytes_per_token(spec: Any, settings: FeatureSettings) -> int:
    size = (spec.feature_size * settings.layers + spec.hidden_size) * DTYPES[settings.dtype].itemsize
    return size + (4 if settings.log_normalizer else 0)


def _fingerprint(target: Any) -> str:
    """Digest of a few values of every weight, to tell apart models of one name."""
    values = [parameter.detach().flatten()[:4].float().tolist() for parameter in target.model.parameters()]
    return digest(values)
