"""Any damage to shards, manifests, stored states and checkpoints: what was written, or a ValueError that names the file."""

from __future__ import annotations

import io
import json
import shutil
import tarfile

import pytest
import torch
from damage import altered, as_json, damaged, outcome
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import cached
from drafting import tiny_drafter
from draftlab.data.answers import read_answers, read_manifest
from draftlab.data.features import FeatureSettings, compute_features, text_identity
from draftlab.data.shards import META, Member, Shard, write_shard
from draftlab.data.window import Window
from draftlab.target.weights import weight_map
from draftlab.training import read_checkpoint
from draftlab.training.checkpoint import is_complete, load_drafter

PAYLOADS = {3: b"first payload" * 50, 7: b"second", 9: b"third" * 200}
MEMBERS = [Member(index, f"s{index}", 5, payload) for index, payload in PAYLOADS.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def written(folder) -> bytes:
    """A shard of three conversations."""
    write_shard(folder / "whole.tar", {"stamp": "a", "shard": 0}, MEMBERS)
    return (folder / "whole.tar").read_bytes()


def payloads(path) -> dict[int, bytes]:
    shard = Shard(path)
    return {index: shard.payload(index) for index in PAYLOADS}


@given(st.data())
def test_a_damaged_shard_gives_the_payloads_that_were_written_or_is_refused(folder, written, data):
    found = outcome(payloads, folder / "damaged.tar", data.draw(damaged(written)))
    assert isinstance(found, ValueError) or found == PAYLOADS


@given(st.data())
def test_a_shard_with_another_list_gives_what_its_checksums_vouch_for_or_is_refused(folder, written, data):
    with tarfile.open(fileobj=io.BytesIO(written)) as archive:
        meta = json.loads(archive.extractfile(META).read())
        others = [(member, archive.extractfile(member).read()) for member in archive.getmembers()[1:]]
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        first = as_json(data.draw(altered(meta)))
        header = tarfile.TarInfo(META)
        header.size = len(first)
        archive.addfile(header, io.BytesIO(first))
        for member, payload in data.draw(st.permutations(others)):
            archive.addfile(member, io.BytesIO(payload))
    found = outcome(payloads, folder / "other.tar", made.getvalue())
    assert isinstance(found, ValueError) or found == PAYLOADS


@pytest.fixture(scope="module")
def samples():
    return cached.conversations(8)


@pytest.fixture(scope="module")
def frozen():
    return cached.target()


@pytest.fixture(scope="module")
def cache(frozen, samples, tmp_path_factory):
    """A whole feature cache."""
    place = tmp_path_factory.mktemp("cache")
    cached.write(frozen, samples, place)
    return place


@given(st.data())
def test_a_cache_with_another_manifest_is_the_same_cache_or_refused(frozen, samples, cache, tmp_path_factory, data):
    place = tmp_path_factory.mktemp("copy") / "cache"
    shutil.copytree(cache, place)
    whole = (cache / "manifest.json").read_bytes()
    content = data.draw(damaged(whole) | altered(json.loads(whole)).map(as_json))
    store = outcome(lambda path: cached.opened(frozen, samples, path.parent), place / "manifest.json", content)
    if not isinstance(store, ValueError):
        theirs = cached.opened(frozen, samples, cache)
        assert all(torch.equal(ours, other) for ours, other in zip(store[0], theirs[0], strict=True))


@given(st.data())
def test_the_manifest_of_answers_is_an_object_with_counts_or_refused(folder, data):
    manifest = {"identity": {"a": 1}, "counts": {"answers": 3, "domains": {"chat": 3}}}
    (folder / "answers").mkdir(exist_ok=True)
    content = data.draw(damaged(as_json(manifest)) | altered(manifest).map(as_json))
    found = outcome(lambda path: read_manifest(path.parent), folder / "answers" / "manifest.json", content)
    assert isinstance(found, ValueError) or isinstance(found.get("counts", {}), dict)


ANSWER = {
    **{
        "id": "a",
        "domain": "chat",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
    },
    **{"finish_reason": "stop", "prompt_tokens": 3, "completion_tokens": 2},
}


@given(st.one_of(damaged(as_json(ANSWER) * 2 + b"\n"), altered(ANSWER).map(as_json)))
def test_answers_written_so_far_are_whole_or_refused(folder, content):
    found = outcome(lambda path: list(read_answers(path)), folder / "responses.jsonl", content)
    if not isinstance(found, ValueError):
        assert all(answer["finish_reason"] in ("stop", "length") for answer in found)


@pytest.mark.parametrize(
    ("name", "note", "read"),
    [
        ("position.json", {"batches": 3, "until": None, "reader": "a"}, lambda window: window.position().finished),
        ("producer.json", {"producer": "a", "state": "failed", "message": "full"}, lambda window: window.ended()),
    ],
)
@given(data=st.data())
def test_the_notes_of_a_window_are_read_or_refused(folder, name, note, read, data):
    content = data.draw(damaged(as_json(note)) | altered(note).map(as_json))
    outcome(lambda path: read(Window(path.parent, 10**6)), folder / name, content)


@given(st.data())
def test_stored_states_of_other_shapes_are_refused(frozen, samples, tmp_path_factory, data):
    place, width = tmp_path_factory.mktemp("states"), frozen.spec.feature_size
    settings, identity = FeatureSettings(dtype="float32"), text_identity(frozen, samples, cached.TEXT)
    compute_features(frozen, samples, place, identity, settings)
    tokens = sum(map(len, samples))
    shapes = st.sampled_from([(tokens, width), (tokens - 1, width), (tokens,), (0, 3), (1, tokens, 2)])
    names = data.draw(st.sets(st.sampled_from(["features", "last_hidden", "log_normalizer", "other"])))
    made = {name: torch.zeros(data.draw(shapes)) for name in names}
    save_file(made, place / "shard-000000.safetensors")
    with pytest.raises(ValueError, match="foreign shard"):
        compute_features(frozen, samples, place, identity, settings)


@pytest.fixture(scope="module")
def checkpoint(folder) -> bytes:
    """A small checkpoint file."""
    torch.save({"state_dict": {"drafter.a": torch.arange(6.0)}, "draftlab": {"block_size": 2}}, folder / "whole.ckpt")
    return (folder / "whole.ckpt").read_bytes()


@given(st.data())
def test_a_damaged_checkpoint_is_whole_or_refused(folder, checkpoint, data):
    found = outcome(read_checkpoint, folder / "damaged.ckpt", data.draw(damaged(checkpoint)))
    assert isinstance(is_complete(folder / "damaged.ckpt"), bool)
    if not isinstance(found, ValueError):
        assert torch.equal(found["state_dict"]["drafter.a"], torch.arange(6.0))


@given(altered({"state_dict": {"drafter.a": 1.5}, "draftlab": {"block_size": 2}, "callbacks": {}}))
def test_a_checkpoint_of_other_things_is_no_drafter(folder, content):
    drafter = tiny_drafter()
    torch.save(content, folder / "other.ckpt")
    found = outcome(lambda path: load_drafter(path, drafter), folder / "other.ckpt")
    assert isinstance(found, ValueError)


INDEX = {"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


@given(damaged(as_json(INDEX)) | altered(INDEX).map(as_json))
def test_an_index_of_weights_names_files_of_its_folder_or_is_refused(folder, content):
    found = outcome(weight_map, folder / "model.safetensors.index.json", content)
    assert isinstance(found, ValueError) or all("/" not in name and name not in ("..", "") for name in found.values())
