"""Foreign files never run anything: no pickle is loaded, no archive is unpacked over other files, no configuration calls a program.

Every gadget here writes a file when it goes off, and is shown to go off where somebody is careless.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import pickle
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from drafting import tiny_drafter
from draftlab.data.chat import Chat
from draftlab.data.shards import META, Member, Shard, write_shard
from draftlab.export.adopt import read_foreign
from draftlab.runs import read_run_config
from draftlab.target import load_ends, load_target, load_tokenizer
from draftlab.training import load_drafter, read_checkpoint
from draftlab.training.resume import check_resume

SOURCE = Path(__file__).parents[2] / "src"


class Gadget:
    """Touches ``path`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def mark(tmp_path) -> Path:
    """The file that a gadget writes; a test fails if one was written."""
    path = tmp_path / "owned"
    yield path
    assert not path.exists(), "a foreign file ran a program"


def test_the_gadget_is_live(tmp_path):
    pickle.loads(pickle.dumps(Gadget(tmp_path / "owned")))
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "read",
    [
        read_checkpoint,
        lambda path: load_drafter(path, tiny_drafter()),
        lambda path: check_resume(tiny_drafter(), path, world_size=1),
    ],
    ids=["read", "load", "resume"],
)
def test_a_checkpoint_with_a_program_in_it_is_refused_by_name(tmp_path, mark, read, zipped):
    path = tmp_path / "evil.ckpt"
    content = {"state_dict": {"drafter.a": torch.zeros(2)}, "draftlab": Gadget(mark), "global_step": 1}
    torch.save(content, path) if zipped else path.write_bytes(pickle.dumps(content))
    with pytest.raises(
        ValueError, match=r"evil\.ckpt (holds more than tensors and plain types|is cut short or damaged)"
    ):
        read(path)


def test_training_itself_resumes_without_unpickling(monkeypatch):
    from draftlab.training import run

    seen = {}

    class Trainer:
        def fit(self, module, **options):
            seen.update(options)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.fit(Trainer(), None, None, Path("a.ckpt"))
    assert seen["weights_only"] is True and seen["ckpt_path"] == "a.ckpt"


def spec_of(folder: Path, **options):
    """Spec of the tiny target in ``folder``."""
    return dataclasses.replace(tiny.tiny_spec(tiny.tiny_model(vocab_size=128)), path=str(folder), **options)


@pytest.mark.parametrize("load", [load_target, load_ends])
def test_pickled_weights_of_a_target_run_nothing(tmp_path, mark, load):
    folder = tiny.save_tiny_target(tmp_path / "target")
    spec = spec_of(folder)
    assert load(spec) is not None
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, "extra": Gadget(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickle|safetensors"):
        load(spec)


def test_pickled_weights_of_a_target_that_hold_tensors_only_still_load(tmp_path):
    folder = tiny.save_tiny_target(tmp_path / "target")
    spec = spec_of(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert load_target(spec).spec.vocab_size == 128


def test_a_foreign_checkpoint_of_pickles_is_refused_and_its_index_leads_nowhere_else(tmp_path, mark):
    (tmp_path / "a" / "b").mkdir(parents=True)
    folder = tmp_path / "a" / "b"
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Gadget(mark)))
    with pytest.raises(ValueError, match="pickled weights only"):
        read_foreign(folder, {})
    save_file({"secret": torch.ones(1)}, tmp_path / "outside.safetensors")
    for name in ("../../outside.safetensors", str(tmp_path / "outside.safetensors"), "..", "/etc/passwd"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"secret": name}}))
        with pytest.raises(ValueError, match="files beside it"):
            read_foreign(folder, {})


@pytest.mark.parametrize("name", ["../owned", "/tmp/../owned", "000000003.pyd", "000000003.pickle", "link"])
def test_members_of_a_shard_are_bytes_at_an_offset_and_never_files_or_objects(tmp_path, mark, name):
    """Whatever a member is called, and if it is a link: nothing is extracted, and only checked bytes are read."""
    payload = pickle.dumps(Gadget(mark))
    write_shard(tmp_path / "shard.tar", {"stamp": "a"}, [Member(3, "s", 5, payload)])
    with tarfile.open(tmp_path / "shard.tar") as archive:
        meta, first = archive.extractfile(META).read(), archive.getmembers()[1]
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        header = tarfile.TarInfo(META)
        header.size = len(meta)
        archive.addfile(header, io.BytesIO(meta))
        first.name = name
        if name == "link":
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(mark)
            archive.addfile(link)
        archive.addfile(first, io.BytesIO(payload))
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "shard.tar").write_bytes(made.getvalue())
    before = sorted(tmp_path.rglob("*"))
    if name == "link":  # one header too many
        with pytest.raises(ValueError, match=r"shard\.tar"):
            Shard(inside / "shard.tar").payload(3)
    else:
        assert Shard(inside / "shard.tar").payload(3) == payload
    assert sorted(tmp_path.rglob("*")) == before


PROGRAMS = [
    *("os.system", "subprocess.run", "builtins.exec", "torch.load", "hydra.utils.call", "numpy.load", "pickle.loads"),
    *("draftlab.cli.os.system", "draftlab.signatures.importlib.import_module", "draftlab.nothing", "draftlab", ""),
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_configuration_of_a_run_calls_parts_of_a_drafter_and_no_program(tmp_path, name):
    (tmp_path / ".hydra").mkdir()
    for tree in (f"head: {{_target_: '{name}'}}", f"loss: {{terms: {{ce: [{{deep: {{_target_: '{name}'}}}}]}}}}"):
        (tmp_path / ".hydra" / "config.yaml").write_text(f"{tree}\n")
        with pytest.raises(ValueError, match=r"config\.yaml: (head|loss\.terms\.ce\.0\.deep) is to be made by"):
            read_run_config(tmp_path)


@pytest.mark.parametrize(
    "name", ["draftlab.heads.MarkovHead", "draftlab.blocks.BlockSpec.training_time_test", "my_heads.Head"]
)
def test_parts_of_ours_and_of_the_users_own_modules_are_called(tmp_path, name):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(
        f"head: {{_target_: {name}}}\ntrainer: {{_target_: lightning.Trainer}}\n"
    )
    assert read_run_config(tmp_path).head._target_ == name


REMOTE = "from pathlib import Path\nPath({path!r}).touch()\n"


def with_remote_code(folder: Path, mark: Path) -> Path:
    """A target of a made-up family whose code lies in its folder."""
    tiny.save_tiny_target(folder)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "evil", "auto_map": names}))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer |= {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "evil.py").write_text(REMOTE.format(path=str(mark)))
    return folder


@pytest.mark.parametrize("load", [load_target, load_ends, load_tokenizer])
def test_code_in_a_targets_folder_is_not_run_unless_asked(tmp_path, mark, monkeypatch, load):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a prompt"))
    folder = with_remote_code(tmp_path / "target", mark)
    spec = spec_of(folder)
    assert spec.trust_remote_code is False
    with pytest.raises(ValueError, match=r"target|tokenizer"):
        load(spec)


def test_code_in_a_targets_folder_is_run_when_asked_so_that_the_test_before_means_something(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = with_remote_code(tmp_path / "target", tmp_path / "owned")
    spec = spec_of(folder, trust_remote_code=True)
    with pytest.raises(Exception):  # noqa: B017 - it has no such class
        load_target(spec)
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for %}",
    ],
)
def test_a_chat_template_reaches_no_python_and_is_refused_in_words(template):
    with pytest.raises(ValueError, match="chat template"):
        Chat(tiny.tiny_tokenizer(chat_template=template))


CALLS = {
    "pickle.load",
    "pickle.loads",
    "tarfile.extractall",
    "zipfile.extractall",
    "os.system",
    "exec",
    "marshal.loads",
}
EVALUATED = {
    "draftlab/signatures.py",
    "draftlab/data/builtin/templates.py",
}  # annotations and templates of our own source


def unsafe(path: Path) -> list[str]:
    """Calls of a source file that could run what a foreign file says."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name, options = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        careless = (
            name in CALLS
            or (name.endswith((".extractall", "load_pickle", "read_pickle")))
            or (name == "torch.load" and options.get("weights_only") != "True")
            or (name.endswith("yaml.load") and "Loader" not in options)
            or (name == "eval" and str(path.relative_to(SOURCE)) not in EVALUATED)
            or options.get("allow_pickle") == "True"
            or options.get("trust_remote_code") == "True"
            or options.get("shell") == "True"
        )
        found += [f"{path.relative_to(SOURCE)}:{node.lineno}: {name}"] if careless else []
    return found


def test_no_source_file_unpickles_evaluates_or_unpacks():
    assert [call for path in sorted(SOURCE.rglob("*.py")) for call in unsafe(path)] == []


@pytest.mark.parametrize(
    "line",
    ["torch.load(a)", "pickle.load(f)", "yaml.load(t)", "eval(x)", "f(trust_remote_code=True)", "t.extractall()"],
)
def test_the_search_finds_careless_calls(tmp_path, monkeypatch, line):
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    (tmp_path / "a.py").write_text(f"{line}\n")
    assert len(unsafe(tmp_path / "a.py")) == 1
