"""Arrival processes against what their definitions say of rate, variance and order; trace files that are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftlab.serving.traffic import Traffic, answer_lengths, bursts, poisson, read_trace, rollouts


def rng(seed=0):
    return np.random.default_rng(seed)


def dispersion(arrival, window):
    """Variance over mean of the arrivals in windows of that many seconds; 1 for a Poisson process."""
    counts = np.bincount((arrival / window).astype(int))[:-1]
    return counts.var() / counts.mean()


def test_a_poisson_process_has_its_rate_and_the_variance_of_one():
    arrival = poisson(40_000, 8.0, rng())
    assert len(arrival) == 40_000 and arrival[-1] == pytest.approx(5000, rel=0.03)
    assert dispersion(arrival, 5.0) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("burstiness", [1.0, 10.0, 100.0])
def test_bursts_keep_the_mean_rate_whatever_the_burstiness(burstiness):
    arrival = bursts(60_000, 8.0, rng(), burstiness, share=0.2, dwell=0.5)
    assert len(arrival) == 60_000 and np.all(np.diff(arrival) >= 0)
    assert arrival[-1] == pytest.approx(7500, rel=0.06)


def test_burstier_traffic_varies_more_and_a_burstiness_of_one_is_poisson():
    varied = [dispersion(bursts(40_000, 8.0, rng(), value, 0.2, 1.0), 1.0) for value in (1.0, 3.0, 10.0, 50.0)]
    assert varied[0] == pytest.approx(1.0, abs=0.1) and np.all(np.diff(varied) > 0.5), varied


def test_the_share_of_arrivals_inside_bursts_is_what_two_states_give():
    """Between bursts nothing arrives when they hold all of it: gaps longer than a burst then part the arrivals."""
    arrival = bursts(400_000, 10.0, rng(), burstiness=1e9, share=0.1, dwell=1.0)
    silent = np.diff(arrival)[np.diff(arrival) > 0.5]
    assert silent.sum() / arrival[-1] == pytest.approx(0.9, abs=0.02)
    assert (silent - 0.5).mean() == pytest.approx(9.0, rel=0.05), "silences have no memory"


def test_rollouts_come_all_at_once_and_the_rest_is_silence():
    assert rollouts(7, 3, 10.0).tolist() == [0, 0, 0, 10, 10, 10, 20]


def test_lengths_have_their_mean_and_a_tail_that_grows_with_the_spread():
    even, heavy = answer_lengths(50_000, 200.0, 0.0, rng()), answer_lengths(50_000, 200.0, 1.2, rng())
    assert set(even) == {200} and heavy.mean() == pytest.approx(200, rel=0.05) and heavy.min() >= 1
    top = np.sort(heavy)[-len(heavy) // 20 :]
    assert top.sum() / heavy.sum() > 0.25, "a twentieth of the answers holds more than a quarter of the tokens"


def test_the_same_seed_gives_the_same_traffic():
    assert np.array_equal(bursts(500, 3.0, rng(4)), bursts(500, 3.0, rng(4)))
    assert not np.array_equal(bursts(500, 3.0, rng(4)), bursts(500, 3.0, rng(5)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: poisson(0, 1.0, rng()),
        lambda: poisson(5, 0.0, rng()),
        lambda: bursts(5, 1.0, rng(), burstiness=0.5),
        lambda: bursts(5, 1.0, rng(), share=1.0),
        lambda: bursts(5, 1.0, rng(), dwell=0.0),
        lambda: rollouts(5, 0, 1.0),
        lambda: answer_lengths(5, 0.5, 1.0, rng()),
        lambda: Traffic([3, 4]),
        lambda: Traffic([3, 4], [0.0, 1.0], users=2),
        lambda: Traffic([3, 0], users=2),
        lambda: Traffic([3, 4], users=0),
        lambda: Traffic([3, 4], [1.0, 0.0]),
        lambda: Traffic([3, 4], [0.0, float("nan")]),
        lambda: Traffic([3, 4], [0.0]),
        lambda: Traffic([], users=1),
    ],
)
def test_traffic_that_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match=r"got|needs|must"):
        make()


ROWS = [
    {"arrival": 12.5, "tokens": 30, "domain": "code", "other": 1},
    {"arrival": 10.0, "tokens": 20, "domain": "chat", "other": 2},
]


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl"])
def test_a_trace_file_is_replayed_in_order_from_second_zero(tmp_path, name):
    traffic = read_trace(write(tmp_path / name, ROWS))
    assert traffic.arrival.tolist() == [0.0, 2.5] and traffic.tokens.tolist() == [20, 30]
    assert traffic.domain.tolist() == ["chat", "code"]


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl"])
@pytest.mark.parametrize("column", ["arrival", "tokens", "domain"])
def test_a_trace_with_a_missing_column_is_refused_by_its_name(tmp_path, name, column):
    rows = [{key: value for key, value in row.items() if key != column} for row in ROWS]
    with pytest.raises(ValueError, match=f"{column} is missing"):
        read_trace(write(tmp_path / name, rows))


def test_a_trace_with_a_value_that_is_no_number_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="row 2 has no finite number in the column tokens: 'many'"):
        read_trace(write(tmp_path / "trace.jsonl", [ROWS[0], {**ROWS[1], "tokens": "many"}]))
    with pytest.raises(ValueError, match="tokens of an answer must be whole"):
        read_trace(write(tmp_path / "trace.csv", [{**ROWS[0], "tokens": 0}, ROWS[1]]))
    with pytest.raises(ValueError, match=r"a .csv or .jsonl file, got '.txt'"):
        read_trace(tmp_path / "trace.txt")
    with pytest.raises(ValueError, match="expected a table as CSV"):
        read_trace(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    "bad", ['{"arrival": [0], "tokens": 3, "domain": "a"}', '{"arrival": 0, "tokens": 1e300, "domain": "a"}']
)
def test_a_value_of_a_trace_that_is_no_count_or_time_is_refused_with_the_file(tmp_path, bad):
    (tmp_path / "odd.jsonl").write_text(bad + "\n")
    with pytest.raises(ValueError, match=r"odd\.jsonl"):
        read_trace(tmp_path / "odd.jsonl")


def test_fields_beyond_a_csvs_header_are_refused_and_not_taken_for_names_of_rows(tmp_path):
    (tmp_path / "shifted.csv").write_text("arrival,tokens,domain\n0,10,5,chat\n1,11,5,chat\n")
    with pytest.raises(ValueError, match=r"shifted\.csv.*more fields"):
        read_trace(tmp_path / "shifted.csv")
