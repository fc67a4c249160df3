"""A small feature cache for the tests, in this process or as a program that can be killed or started twice:

python tests/cached.py FOLDER DEVICES SECONDS [CODEC]        SECONDS: what a shard takes at least
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

import lightning as L

import tiny
from draftlab.blocks import anchor_candidates
from draftlab.data import predict
from draftlab.data.cache import CacheSettings, cache_identity, open_cache
from draftlab.data.chat import Chat
from draftlab.data.samples import tokenise

SETTINGS = CacheSettings("int4", "int8", "teachers", None, "float32", batch_tokens=400, shard_tokens=400)
TEXT = {"tokenizer": "a", "template": "b", "max_length": 128}


def conversations(count: int = 24, letters: int = 2):
    """Samples of growing length; every third one has a second turn after its answer, every fourth is cut in a question."""
    records = []
    for i in range(1, count + 1):
        answer = "".join(chr(97 + (i * 7 + j * j) % 26) for j in range(letters + i))
        talk = [{"role": "user", "content": "Q" * (i % 5 + 1)}, {"role": "assistant", "content": answer}]
        if i % 3 == 0:
            talk += [{"role": "user", "content": "more"}, {"role": "assistant", "content": "end" * (i % 4 + 1)}]
        records.append({"id": f"s{i}", "messages": talk})
    return tokenise(records, Chat(tiny.tiny_tokenizer()), 90 + letters)[0]


def supervised(samples) -> int:
    """Positions that an anchor can be at, in all samples."""
    return sum(int(anchor_candidates(sample.loss_mask[None]).sum()) for sample in samples)


def target():
    """The tiny target of the cache."""
    return tiny.tiny_target(vocab_size=128)


def writing(frozen, samples, folder, settings=SETTINGS, **text):
    """An unfinished cache in ``folder``."""
    identity = cache_identity(frozen, samples, settings, TEXT | text)
    return predict.Writing(frozen, samples, Path(folder), identity, settings)


def trainer(**options) -> L.Trainer:
    """A silent trainer on the CPU."""
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(accelerator="cpu", enable_checkpointing=False, **silent, **options)


def main() -> None:
    """Write the cache of the command line."""
    folder, devices, seconds, codec = (*sys.argv[1:], "")[:4]
    settings = dataclasses.replace(SETTINGS, codec=codec, rank=16) if codec else SETTINGS
    make = predict.Writing.make

    def slowly(self, index):
        print("writing", flush=True)
        time.sleep(float(seconds))
        return make(self, index)

    predict.Writing.make = slowly
    ranks = {"devices": int(devices), "strategy": "ddp"} if int(devices) > 1 else {"devices": 1}
    predict.write_cache(writing(target(), conversations(), folder, settings), trainer(**ranks))


def write(frozen, samples, folder, settings=SETTINGS, **text):
    """Write a cache; returns its manifest."""
    return predict.write_cache(writing(frozen, samples, folder, settings, **text), trainer())


def opened(frozen, samples, folder, settings=SETTINGS, **text):
    """Open a cache."""
    identity = cache_identity(frozen, samples, settings, TEXT | text)
    return open_cache(frozen, samples, folder, identity, settings)


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


if __name__ == "__main__":
    main()
