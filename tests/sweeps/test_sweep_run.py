"""src/sweep.py as a user starts it: side by side, stopped, killed, crashed, and going on."""

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import fitting
from draftlab.sweeps import make_cells, make_plan, read_sweep, run, run_plan
from draftlab.sweeps.state import read_metric

FOUR = {"n": {"values": [1, 2, 3, 4]}}
LONG = FOUR | {"seconds": {"value": 60}}
OUT = Path("outputs/sweeps/try")


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def cells(folder):
    return json.loads((folder / OUT / "sweep.json").read_text())["cells"]


def states(folder):
    return {name: cell["state"] for name, cell in cells(folder).items()}


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # an orphan may wait as a zombie for its new parent
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def end(process):
    output, _ = process.communicate(timeout=120)
    return output


def test_a_failed_cell_is_shown_with_its_log_and_the_others_go_on(bench):
    sweep = bench.write(FOUR | {"crash_at": {"value": 2}})
    code, output = bench.run(sweep)
    assert code == 1 and "Traceback" not in output
    assert "[2/4] n_2: FAILED (exit code 3)" in output and "    the reason of the crash" in output
    assert "1 of 4 cells failed: n_2" in output and "failed (exit code 3)" in output
    assert states(bench.folder) == {"n_1": "finished", "n_2": "failed", "n_3": "finished", "n_4": "finished"}
    assert sorted(path.parent.name for path in (bench.folder / OUT).glob("*/finished.json")) == ["n_1", "n_3", "n_4"]
    assert "first words of {'n': '3'" in (bench.folder / OUT / "n_3" / "sweep.log").read_text()

    code, output = bench.run(sweep)  # what is finished stays
    assert code == 1 and "1 cells to run, 3 finished before" in output
    assert [line["n"] for line in bench.noted("start")] == ["1", "2", "3", "4", "2"]


def test_a_cell_that_failed_goes_on_with_resume_where_its_program_knows_the_word(bench):
    sweep = bench.write(
        {"size": {"values": [1, 2]}}, program="work.py", metric={"name": "val/score", "goal": "maximize"}
    )
    code, output = bench.run(sweep, "crash_at=2")
    assert code == 1 and "crashed as told" in output
    code, output = bench.run(sweep, "crash_at=2")
    assert code == 0 and "best val/score: 4, size_2" in output
    ran = (bench.folder / "runs.txt").read_text().splitlines()
    assert ran == ["size_1 1 one resume=False", "size_2 2 one resume=False", "size_2 2 one resume=True"]
    assert cells(bench.folder)["size_1"]["metric"] == 2.0  # the last value; later rows have none
    assert (bench.folder / OUT / "size_2" / "metrics.csv").is_file()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("step,m\n1,0.5\n2,0.7\n3,\n", 0.7),
        ("step,m\n1,0.5\n2,nan\n", None),
        ("step,m\n1,\n", None),
        ("step,m\n1,word\n", None),
        ("step\n1\n", None),
        ("", None),
    ],
)
def test_the_metric_of_a_cell_is_the_last_value_that_it_logged(tmp_path, text, value):
    (tmp_path / "metrics.csv").write_text(text)
    assert read_metric(tmp_path / "metrics.csv", "m") == value
    assert read_metric(tmp_path / "no_such.csv", "m") is None


def test_finished_cells_of_other_arguments_are_not_taken_for_these(bench):
    sweep = bench.write(FOUR)
    assert bench.run(sweep, "--count", "2")[0] == 0
    code, output = bench.run(sweep, "more=1")
    assert code == 1 and "n_1 was finished with other arguments (more=1)" in output and len(bench.noted("start")) == 2
    shutil.rmtree(bench.folder / OUT / "n_1")  # as the message says
    code, output = bench.run(sweep, "more=1", "--count", "1")
    assert code == 0 and len(bench.noted("start")) == 3
    code, output = bench.run(sweep, "more=1", "--folder", "elsewhere", "--count", "1")
    assert code == 0 and (bench.folder / "elsewhere" / "n_1" / "finished.json").is_file()


def test_a_cell_that_failed_is_not_resumed_with_other_arguments(bench):
    sweep = bench.write(FOUR)
    assert bench.run(sweep, "crash_at=1", "--count", "1")[0] == 1
    code, output = bench.run(sweep, "crash_at=0", "--count", "1")
    assert code == 1 and "n_1 was started with other arguments (crash_at=0, crash_at=1)" in output


def test_workers_run_side_by_side_and_share_the_threads(bench):
    sweep = bench.write(FOUR | {"seconds": {"value": 1.5}})
    code, output = bench.run(sweep, "--workers", "2", "--gpus", "4,7")
    assert code == 0, output
    notes = sorted(bench.noted(), key=lambda line: line["at"])
    at_once = [sum({"start": 1, "end": -1}[line["what"]] for line in notes[: i + 1]) for i in range(len(notes))]
    assert max(at_once) == 2
    threads = str(max(1, run._cpus() // 2))
    assert {line["threads"] for line in notes} == {threads} and {line["gpu"] for line in notes} == {"4", "7"}


def test_threads_that_the_user_chose_are_kept_and_one_worker_has_them_all(bench):
    sweep = bench.write({"n": {"values": [1, 2]}})
    assert bench.run(sweep, "--workers", "2", OMP_NUM_THREADS="3")[0] == 0
    assert bench.run(sweep, "--folder", "alone")[0] == 0
    assert [line["threads"] for line in bench.noted("start")] == ["3", "3", None, None]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_ends_all_runs_and_says_how_to_go_on(bench, number):
    (bench.folder / "go_1").touch()
    process = bench.start(bench.write(LONG), "--workers", "2")
    wait_for(lambda: len(bench.noted("start")) == 3)
    process.send_signal(number)
    output = end(process)
    assert process.returncode == 130 and "Traceback" not in output
    assert "run the same command again" in output and "1 of 4 cells are finished" in output
    assert len(bench.noted("interrupted")) == 2 and not any(alive(line["pid"]) for line in bench.noted("start"))
    assert states(bench.folder) == {"n_1": "finished", "n_2": "stopped", "n_3": "stopped", "n_4": "waiting"}

    for n in (2, 3, 4):
        (bench.folder / f"go_{n}").touch()
    code, output = bench.run("try.yaml")
    assert code == 0 and [line["n"] for line in bench.noted("start")].count("1") == 1
    assert set(states(bench.folder).values()) == {"finished"}


def test_a_second_ctrl_c_kills_runs_that_do_not_stop(bench):
    process = bench.start(bench.write(LONG | {"stubborn": {"value": 1}}))
    wait_for(lambda: bench.noted("start"))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None and alive(bench.noted("start")[0]["pid"])
    process.send_signal(signal.SIGINT)
    end(process)
    assert process.returncode == 130 and time.monotonic() - began < 30
    assert not alive(bench.noted("start")[0]["pid"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the runs of a killed runner")
def test_after_a_kill_of_the_runner_no_run_is_left_and_the_same_command_goes_on(bench):
    (bench.folder / "go_1").touch()
    process = bench.start(bench.write(LONG), "--workers", "2")
    wait_for(lambda: len(bench.noted("start")) == 3)
    process.kill()
    end(process)
    wait_for(lambda: not any(alive(line["pid"]) for line in bench.noted("start")))
    assert states(bench.folder)["n_1"] == "finished" and states(bench.folder)["n_2"] == "running"
    for n in (2, 3, 4):
        (bench.folder / f"go_{n}").touch()
    code, output = bench.run("try.yaml")
    assert code == 0 and "3 cells to run, 1 finished before" in output
    assert sorted(line["n"] for line in bench.noted("end")) == ["1", "2", "3", "4"]


def test_no_cell_is_started_while_a_run_of_a_killed_runner_goes_on(bench):
    process = bench.start(bench.write(LONG | {"stubborn": {"value": 1}}), "--count", "1")
    wait_for(lambda: bench.noted("start"))
    process.kill()
    end(process)
    second = bench.start("try.yaml", "--count", "1")
    assert "is in use; waiting" in second.stdout.readline()
    assert len(bench.noted("start")) == 1
    (bench.folder / "go_1").touch()
    assert "finished after" in end(second) and second.returncode == 0
    assert [line["what"] for line in bench.noted()] == ["start", "end", "start", "end"]


def test_two_runners_in_one_folder_are_refused(bench, monkeypatch):
    monkeypatch.setattr(run, "LOCK_SECONDS", 0.3)
    sweep = read_sweep(bench.write(FOUR))
    plan = make_plan(sweep, make_cells(sweep), OUT)
    OUT.mkdir(parents=True)
    with (OUT / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="in use"):
            run_plan(plan)
    assert {state.state for state in run_plan(plan)} == {"finished"}


@pytest.mark.skipif(sys.platform != "linux", reason="takes Linux's /proc, where nobody can make a folder")
def test_a_folder_that_cannot_be_made_is_refused(bench):
    code, output = bench.run(bench.write(FOUR), "--folder", "/proc/no_such")
    assert (
        code == 1 and output.startswith("error: run folder /proc/no_such cannot be made") and "Traceback" not in output
    )


def test_a_command_that_cannot_be_started_is_a_failed_cell(bench):
    code, output = bench.run(bench.write(FOUR, command=["no_such_program", "${program}", "${args_no_hyphens}"]))
    assert code == 1 and output.count("FAILED (exit code 127)") == 4 and "no_such_program" in output
    assert "Traceback" not in output


def test_a_run_that_is_killed_is_a_failed_cell_that_names_the_signal(bench):
    process = bench.start(bench.write(LONG), "--count", "1")
    wait_for(lambda: bench.noted("start"))
    os.kill(bench.noted("start")[0]["pid"], signal.SIGKILL)
    assert "FAILED (ended by SIGKILL)" in end(process) and process.returncode == 1


def test_a_dry_run_prints_the_commands_and_starts_nothing(bench):
    code, output = bench.run(bench.write(FOUR), "--dry-run")
    assert code == 0 and output.count("program.py n=") == 4
    assert not (bench.folder / "outputs").exists() and not bench.noted()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: file; see"),
        (["no_such.yaml"], "no_such.yaml: no such file"),
        (["try.yaml", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["try.yaml", "--workers", "-3", "--dry-run"], "--workers must be at least 1, got -3"),
        (["try.yaml", "--workers", "two"], "invalid int value: 'two'"),
        (["try.yaml", "--multirun"], "--multirun"),
        (["try.yaml", "n=3"], "n is swept"),
        (["try.yaml", "--folder", "program.py"], "program.py is not a folder; give another --folder"),
        (["try.yaml", "--folder", "/dev/null/x"], "/dev/null is not a folder; give another --folder"),
        (["try.yaml", "--folder", "x" * 300], "cannot be made"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_message_with_exit_code_1(bench, words, message):
    bench.write(FOUR)
    code, output = bench.run(*words)
    assert code == 1 and message in output and output.startswith("error: ") and "Traceback" not in output
    assert not bench.noted()


@pytest.mark.slow
def test_the_draft_length_sweep_trains_evaluates_and_is_not_run_twice(bench, target_folder):
    fitting.write_answers(bench.folder)
    words = (
        f"target=custom target.path={target_folder} data.path={bench.folder / 'answers.jsonl'} data.features=online "
        "data.batch_size=3 data.val_samples=6 data.num_workers=0 trainer.settings.max_steps=4 "
        "trainer.settings.val_check_interval=2 trainer.settings.log_every_n_steps=1 block.num_anchors=20 "
        "drafter.num_layers=1 logger=csv evaluation.limit=1 evaluation.max_new_tokens=6 evaluation.speed.prompts=0"
    ).split()
    environment = {"OMP_NUM_THREADS": "1", "DRAFTLAB_CACHE": str(bench.folder / "cache"), "HF_HUB_OFFLINE": "1"}
    code, output = bench.run("sweeps/gamma.yaml", "--count", "2", *words, **environment)
    assert code == 0, output
    folder = bench.folder / "outputs" / "sweeps" / "gamma"
    names = ["drafter_dspark-block_size_4", "drafter_dspark-block_size_8"]
    assert all((folder / name / "evaluation.json").is_file() for name in names)
    found = json.loads((folder / "sweep.json").read_text())["cells"]
    assert list(found) == names and all(cell["metric"] >= 1 for cell in found.values())
    assert "best val/accepted_length" in output and "python src/report.py runs=[" in output
    code, output = bench.run("sweeps/gamma.yaml", "--count", "2", *words, **environment)
    assert code == 0 and "0 cells to run, 2 finished before" in output
