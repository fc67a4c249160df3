"""Any damage to JSON, JSONL, tables, calibrations and traces: a ValueError that names the file, never something else or silence."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from damage import ODD, RAW, altered, as_json, damaged, outcome
from hypothesis import given
from hypothesis import strategies as st

import tiny
from draftlab.calibration import Calibration
from draftlab.data.chat import Chat
from draftlab.data.decontaminate import read_benchmarks
from draftlab.data.files import append_lines, drop_torn_line, read_json, read_jsonl
from draftlab.data.prompts import jsonl_prompts
from draftlab.data.samples import read_samples
from draftlab.data.sources import DatasetPrompts
from draftlab.runs import read_run_config
from draftlab.scheduling import Throughput
from draftlab.serving.traces import COLUMNS, recorded_run
from draftlab.serving.traffic import read_trace

TALK = {
    "id": "a",
    "domain": "chat",
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}],
    "finish_reason": "stop",
}
LINES = [{**TALK, "id": str(index)} for index in range(3)]
TABLE = {"sample_batch_tokens": [1, 2, 4], "sample_steps_per_sec": [9.0, 8.0, 5.5], "max_batch_tokens": 4}
CALIBRATION = {
    "temperatures": [1.0, 1.5],
    "dataset": "heldout",
    "num_samples": 9,
    "ece_before": [0.1, 0.2],
    "ece_after": [0.0, 0.1],
    "drafter": {"block_size": 2, "target": "tiny"},
    "measures": [{"position": 1, "ece": 0.1}],
    "source": "confidence",
}
TRAFFIC = [{"arrival": 0.5 * i, "tokens": 10 + i, "domain": "chat"} for i in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def lines_of(records) -> bytes:
    return b"".join(as_json(record) + b"\n" for record in records)


@st.composite
def files_of(draw, records):
    """A JSONL file of which one line is another object or no object, or whose bytes are damaged."""
    if draw(st.booleans()):
        return draw(damaged(lines_of(records)))
    rows = list(records)
    rows[draw(st.integers(0, len(rows) - 1))] = draw(altered(rows[0]))
    return lines_of(rows)


@given(damaged(as_json(TABLE)))
def test_json_is_read_as_it_is_or_refused(folder, content):
    found = outcome(read_json, folder / "some.json", content)
    if not isinstance(found, ValueError):
        assert same(found, json.loads(content.decode("utf-8-sig")))


@given(st.one_of(damaged(lines_of(LINES)), files_of(LINES)))
def test_every_line_of_a_jsonl_is_an_object_or_the_file_is_refused_with_the_line(folder, content):
    found = outcome(lambda path: list(read_jsonl(path)), folder / "some.jsonl", content)
    if isinstance(found, ValueError):
        assert "line " in str(found) or "empty" in str(found)
        return
    lines = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    expected = [(number, json.loads(line)) for number, line in enumerate(lines, 1) if line.strip()]
    assert same(found, expected)


def same(one, other) -> bool:
    """Equality in which NaN is itself."""
    return json.dumps(one) == json.dumps(other)


@given(damaged(lines_of(LINES)))
def test_what_is_appended_after_a_torn_line_can_be_read(folder, content):
    path = folder / "torn.jsonl"
    path.write_bytes(content)
    drop_torn_line(path)
    assert path.read_bytes() in (content, content[: content.rfind(b"\n") + 1])
    before = outcome(lambda path: list(read_jsonl(path)), path)
    append_lines(path, [TALK])
    after = outcome(lambda path: list(read_jsonl(path)), path)
    if not isinstance(before, ValueError):
        assert same([record for _, record in after], [*(record for _, record in before), TALK])


@given(files_of(LINES))
def test_answers_are_samples_or_counted_with_their_reason(folder, content):
    chat = Chat(tiny.tiny_tokenizer())
    found = outcome(lambda path: read_samples(path, chat, 64), folder / "answers.jsonl", content)
    if not isinstance(found, ValueError):
        samples, counts = found
        rows = sum(bool(line.strip()) for line in content.decode("utf-8-sig").splitlines())
        assert len(samples) == counts.kept and counts.kept + counts.skipped.total() == rows


@pytest.mark.parametrize("read", [jsonl_prompts, lambda path: DatasetPrompts(str(path))()], ids=["jsonl", "dataset"])
@given(content=files_of(LINES))
def test_prompts_of_a_file_ask_something_or_the_file_is_refused(folder, read, content):
    found = outcome(read, folder / "prompts.jsonl", content)
    if not isinstance(found, ValueError):
        assert found and all(prompt.messages and isinstance(prompt.id, str) for prompt in found)


@given(damaged(as_json(LINES)) | altered(LINES).map(as_json))
def test_a_json_array_is_rows_or_refused(folder, content):
    outcome(lambda path: DatasetPrompts(str(path))(), folder / "array.json", content)


@given(files_of([{"id": "a", "turns": ["Hi"]}, {"id": "b", "turns": ["Ho", "Hu"]}]))
def test_benchmarks_are_texts_or_refused(tmp_path_factory, content):
    place = tmp_path_factory.mktemp("benchmarks")
    (place / "some.jsonl").write_bytes(content)
    found = outcome(lambda path: read_benchmarks(path.parent), place / "some.jsonl")
    if not isinstance(found, ValueError):
        assert all(isinstance(turn, str) for turns in found["some"] for turn in turns)


@given(damaged(as_json(TABLE)) | altered(TABLE).map(as_json))
def test_an_sps_table_can_be_looked_up_at_any_size_or_is_refused(folder, content):
    found = outcome(Throughput.load, folder / "sps.json", content)
    if not isinstance(found, ValueError):
        values = found(np.array([0, 1, 3, 10**6]))
        assert np.isfinite(values).all() and (values > 0).all()
        assert (np.diff(found.batch_tokens) > 0).all() and found.batch_tokens[0] >= 1
        assert np.isfinite(found.convex()(np.arange(1, 5))).all()


@given(damaged(as_json(CALIBRATION)) | altered(CALIBRATION).map(as_json))
def test_a_calibration_scales_and_compares_or_is_refused(folder, content):
    found = outcome(Calibration.load, folder / "calibration.json", content)
    if isinstance(found, ValueError):
        return
    scaled = found(np.linspace(-3, 3, len(found.temperatures)))
    assert np.isfinite(scaled).all()
    try:
        found.check({"block_size": 2, "target": "tiny"})
    except ValueError as error:
        assert "calibrate this one" in str(error)
    found.with_measures([{"position": 2}]).save(folder / "again.json")
    assert len(Calibration.load(folder / "again.json").measures) == len(found.measures) + 1


CSV = b"arrival,tokens,domain\n0,10,chat\n0.5,11,math\n2,12,\n"


@given(damaged(CSV) | damaged(lines_of(TRAFFIC)) | files_of(TRAFFIC))
def test_traffic_is_what_the_file_says_or_refused(folder, content):
    path = folder / ("traffic.csv" if content.startswith(b"arrival") else "traffic.jsonl")
    found = outcome(read_trace, path, content)
    if not isinstance(found, ValueError):
        assert len(found.tokens) == len(found.arrival) == len(found.domain)
        assert (found.tokens >= 1).all() and np.isfinite(found.arrival).all() and found.arrival[0] == 0


ROUNDS = [
    {
        **{"temperature": 1.0, "benchmark": "b", "domain": "chat", "prompt_id": str(prompt), "round": index},
        **{"proposed": 2, "accepted": index, "committed": index + 1, "confidence": [0.9, 0.5]},
    }
    for prompt in range(2)
    for index in range(2)
]


@given(altered(ROUNDS), st.none() | st.sampled_from([as_json(CALIBRATION), *RAW[:6]]))
def test_recorded_rounds_can_be_replayed_or_are_refused(tmp_path_factory, rows, calibration):
    place = tmp_path_factory.mktemp("run")
    try:
        pd.DataFrame(rows).to_parquet(place / "rounds.parquet")
    except Exception:  # what no table can hold is no table that could be read
        return
    if calibration is not None:
        (place / "calibration.json").write_bytes(calibration)
    replay(place)


@given(st.data())
def test_a_damaged_table_of_rounds_is_refused_or_read(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("run")
    pd.DataFrame(ROUNDS).to_parquet(place / "rounds.parquet")
    whole = (place / "rounds.parquet").read_bytes()
    (place / "rounds.parquet").write_bytes(data.draw(damaged(whole)))
    replay(place)


def replay(place) -> None:
    """Open the rounds of a run folder as a trace, and go through two rounds of it."""
    trace = outcome(lambda path: recorded_run(path.parent), place / "rounds.parquet")
    if isinstance(trace, ValueError):
        return
    generator = np.random.default_rng(0)
    state = trace.begin(np.array(["", ""]), generator)
    for _ in range(2):
        confidence, reach, state = trace.round(state, generator)
        assert ((confidence >= 0) & (confidence <= 1)).all() and (reach >= 0).all() and (reach <= trace.gamma).all()
    assert (trace.lengths(3, generator) >= 1).all()


def test_the_columns_of_a_trace_are_those_that_are_tried_here():
    assert set(COLUMNS) == set(ROUNDS[0])


@given(damaged(b"target:\n  name: tiny\nblock: {block_size: 7}\n"))
def test_the_configuration_of_a_run_is_keys_and_values_or_refused(tmp_path_factory, content):
    run = tmp_path_factory.mktemp("run")
    (run / ".hydra").mkdir()
    (run / ".hydra" / "config.yaml").write_bytes(content)
    found = outcome(lambda path: read_run_config(path.parents[1]), run / ".hydra" / "config.yaml")
    if not isinstance(found, ValueError):
        assert isinstance(dict(found), dict)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_odd_values_of_a_calibration_never_scale(value):
    """What is no list of positive numbers is refused, texts and truths that NumPy would turn into numbers too."""
    if isinstance(value, list) and value and all(type(v) in (int, float) and v > 0 and math.isfinite(v) for v in value):
        assert Calibration(value).temperatures
        return
    with pytest.raises(ValueError, match="temperatures must be"):
        Calibration(value)
