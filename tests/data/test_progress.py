"""Where there is no terminal, progress is a line now and then."""

import pytest

from draftlab.data import progress
from draftlab.data.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is set; every line is due."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "LINE_SECONDS", 5.0)
    return now


def test_a_line_says_how_far_how_fast_and_how_long_still(clock, capsys):
    with Progress("features", total=40) as bar:
        clock[0] = 10.0
        bar.advance(10, 500)
        clock[0] = 40.0
        bar.advance(30, 1500)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "features: 10/40  50 tokens/s  0:00:30 left"
    assert lines[-1] == "features: 40/40  50 tokens/s", "nothing is left at the end"


def test_what_an_earlier_run_had_done_is_named_and_does_not_count_as_speed(clock, capsys):
    with Progress("features", total=1800, done=1700) as bar:
        clock[0] = 20.0
        bar.advance(50)
        clock[0] = 40.0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "features: going on at 1,700 of 1,800"
    assert lines[1] == "features: 1750/1800  0:00:20 left"
