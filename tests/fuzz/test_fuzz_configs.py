"""Any composition of the configuration: valid ones make a drafter that learns on a tiny target, invalid ones are told in a few
words with exit code 1, and no value whatsoever ends in a traceback."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import runpy
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.utils import instantiate
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import tiny
from drafting import random_batch
from draftlab.blocks import draw_anchors, lay_out
from draftlab.configuration import leaves
from draftlab.scheduling import Throughput
from draftlab.training.build import build
from test_configs import choices, refusal

ROOT = Path(__file__).resolve().parents[2]
CHAINS = ("eagle3", "mtp")
GROUPS = ("drafter", "head", "loss", "block", "trainer", "data", "target", "experiment")


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    return tiny.save_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return tmp_path_factory.mktemp("here")


@st.composite
def valid(draw):
    """Overrides that go together, on a tiny target."""
    drafter, head, loss = (draw(st.sampled_from(choices(group))) for group in ("drafter", "head", "loss"))
    assume(refusal(drafter, head, loss) is None)
    words = [
        f"drafter={drafter}",
        f"head={head}",
        f"loss={loss}",
        f"trainer={draw(st.sampled_from(choices('trainer')))}",
    ]
    words += [f"data={draw(st.sampled_from(['jsonl', 'demo', 'laptop']))}", f"seed={draw(st.integers(0, 99))}"]
    if drafter in CHAINS:
        words += draw(st.sampled_from([[], ["block=ttt7", f"block.ttt_length={draw(st.integers(1, 4))}"]]))
    else:
        words += [f"block={draw(st.sampled_from(['block7', 'block7_one_plus_n', 'block7_released', 'laptop']))}"]
        words += [f"block.block_size={draw(st.integers(1, 5))}", f"drafter.num_layers={draw(st.integers(2, 3))}"]
        if drafter == "dspark_exits":
            words += ["drafter.exits=[1]"]
    if head != "none":
        words += [f"head.rank={draw(st.integers(1, 6))}"]
    words += [f"block.num_anchors={draw(st.integers(1, 5))}"]
    words += draw(st.sampled_from([[], ["drafter.draft_vocab_size=40"]]))
    words += draw(st.sampled_from([[], ["loss.chunk_blocks=2"], ["loss.chunk_blocks=null"]]))
    return words


def on(folder) -> list[str]:
    return [
        "target=custom",
        f"target.path={folder}",
        "target.target_layer_ids=[0,1,2]",
        "target.mask_token_id=3",
        "target.name=tiny",
    ]


def composed(name: str, words: list[str]):
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, overrides=words)


@given(words=valid())
def test_what_goes_together_makes_a_drafter_that_learns_on_a_tiny_target(tiny_folder, words):
    with contextlib.redirect_stdout(io.StringIO()):
        parts = build(composed("train", [*on(tiny_folder), *words]))
    drafter, spec = parts.drafter, parts.spec
    if drafter.draft_ids is not None:
        drafter.set_draft_vocabulary(torch.arange(drafter.draft_vocab_size))
    drafter.attach(tiny.tiny_target(vocab_size=128).ends)
    batch = random_batch(spec, (9, 6), dtype=torch.float32)
    anchors, valid_ones = draw_anchors(batch.loss_mask, parts.block.num_anchors, torch.Generator().manual_seed(0))
    blocks = lay_out(batch, anchors, valid_ones, parts.block, spec.mask_token_id)
    logits = drafter.ends.logits(batch.last_hidden)
    batch = dataclasses.replace(batch, log_normalizer=logits.logsumexp(-1))
    report = parts.loss(drafter, drafter(batch, blocks), blocks, batch)
    report.numerator.backward()
    assert torch.isfinite(report.numerator)
    assert drafter.draft_ids is not None or any(
        p.grad is not None and bool(p.grad.abs().sum() > 0) for p in drafter.parameters()
    )


SCHEDULES = choices("schedule")


@given(
    name=st.sampled_from(SCHEDULES),
    words=st.sampled_from(
        [[], ["schedule.smooth=true"], ["schedule.value=0.25"], ["schedule.length=2"], ["schedule.lag=3"]]
    ),
)
def test_a_schedule_from_the_configuration_sends_prefixes(name, words):
    cfg = composed("schedule", [f"schedule={name}"])
    assume(all(word.split("=")[0].split(".")[1] in cfg.schedule for word in words))
    scheduler = instantiate(composed("schedule", [f"schedule={name}", *words]).schedule)
    lengths = scheduler(torch.full((3, 4), 0.5).numpy(), Throughput([1, 15], [2.0, 1.0]))
    assert ((lengths >= 0) & (lengths <= 4)).all()


def plan(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and error output of ``train.py plan=true`` with these words, run in this process; other errors come through."""
    script, errors = ROOT / "src" / "train.py", io.StringIO()
    GlobalHydra.instance().clear()
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[:] = [str(script), *words, "plan=true"], [str(script.parent), *sys.path]
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(folder):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return (end.code or 0), errors.getvalue()
    except (HydraException, OmegaConfBaseException) as error:  # Hydra hands its own on where it believes in a debugger
        return 1, str(error)
    finally:
        sys.argv, sys.path[:] = before
        GlobalHydra.instance().clear()
    return 0, errors.getvalue()


def assert_told(code: int, said: str) -> None:
    """Refused in words: ours on one line, Hydra's own with the choices that there are."""
    assert code == 1 and said.strip() and "Traceback" not in said, said
    if said.startswith("error: "):
        assert len(said.strip().splitlines()) == 1, said


NO_NUMBER = ["x", "null", "[1]", "{a: 1}", "true", "''"]
NO_COUNT = [*NO_NUMBER, "1.5", "0", "-1"]
REFUSED = {
    **dict.fromkeys(
        ("block.block_size", "block.num_anchors", "head.rank", "drafter.num_layers", "data.batch_size"), NO_COUNT
    ),
    "data.max_length": [*NO_COUNT, "1"],
    "data.val_samples": [value for value in NO_COUNT if value != "0"],
    "data.features": ["x", "3", "null", "''"],
    "data.codec": ["x", "int2", "true"],
    "data.packing": ["x", "3", "1.5"],
    "block.decay_gamma": ["x", "0", "-1", ".nan", ".inf", "[1]"],
    "block.sample_from_anchor": ["x", "3", "null"],
    "trainer.optimizer.lr": [*NO_NUMBER, "0", "-1", ".nan", ".inf"],
    "loss.terms.ce.weight": ["x", "null", "-1", ".nan", ".inf", "true"],
    "loss.chunk_gb": ["x", "0", "-1", ".nan", "null"],
    "loss.chunk_blocks": ["x", "0", "-1", "1.5"],
    "loss.position_weights": ["x", "3", "null"],
    "loss.exit_weight": ["x", "-1", "null", ".nan"],
    "drafter.draft_vocab_size": ["x", "0", "-1", "100000000", "1.5"],
    "drafter.exits": ["[0]", "[-1]", "[x]", "3", "[9]"],
    "target.target_layer_ids": ["[]", "[x]", "[99]", "[2,1]", "[-2]", "x", "[1,1]"],
    "target.mask_token_id": ["x", "-1", "10000000", "1.5"],
    "target.dtype": ["x", "int8", "3"],
    "target.sampling.temperature": ["x", "-1", ".nan", "null"],
    "trainer.settings.accumulate_grad_batches": ["0", "-1", "x"],
    "seed": ["x", "null", "1.5", "[1]", "true"],
}


UNKNOWN = [
    "no_such_key",
    *(f"{sign}{key}.no_such" for sign in ("", "+") for key in ("block", "loss.terms.ce", "data.prompts")),
]
NO_OVERRIDE = ["block.block_size", "head=[markov", "head=", "seed=(1", "a b=c", "seed=1,2", "{}", "seed=${x"]


@st.composite
def broken(draw):
    """Overrides of which the last is an unknown choice, an unknown key, no override at all, or a value that cannot be."""
    kind = draw(st.sampled_from(["choice", "key", "syntax", "value", "value", "value"]))
    if kind == "choice":
        return [f"{draw(st.sampled_from(GROUPS))}=no_such_{draw(st.integers(0, 9))}"]
    if kind == "key":
        return [f"{draw(st.sampled_from(UNKNOWN))}=1"]
    if kind == "syntax":
        return [draw(st.sampled_from(NO_OVERRIDE))]
    key = draw(st.sampled_from(sorted(REFUSED)))
    return [f"{key}={draw(st.sampled_from(REFUSED[key]))}"]


@settings(max_examples=1 + settings.default.max_examples // 2)
@given(words=broken())
def test_what_cannot_be_is_told_in_words_with_exit_code_1(here, words):
    assert_told(*plan(words, here))


ODD = [
    *(
        "null",
        "true",
        "-1",
        "0",
        "1",
        "2.5",
        "1e30",
        ".nan",
        "-.inf",
        "x",
        "''",
        "[]",
        "[1,2]",
        "[x]",
        "{}",
        "{a: 1}",
        "???",
    ),
    *("${seed}", "${nothing}", "${oc.env:NO_SUCH}", "'a: b'", "é", "[[1]]", "{_target_: os.getcwd}"),
]


@settings(max_examples=1 + settings.default.max_examples // 2)
@given(data=st.data())
def test_no_value_anywhere_ends_in_a_traceback(here, data):
    """Accepted or refused: whether a value makes sense is not asked here."""
    cfg = composed("train", [])
    every = {key for key, _ in leaves(OmegaConf.to_container(cfg, resolve=False))} - {"plan", "init_from"}
    keys = sorted(key for key in every if not key.endswith("_partial_"))  # how Hydra calls, which no command changes
    key = data.draw(st.sampled_from(keys))
    words = [f"{key}={data.draw(st.sampled_from(ODD))}"]
    code, said = plan(words, here)
    if code:
        assert_told(code, said)
