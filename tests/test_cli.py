"""User mistakes are one message and exit code 1; our own faults keep their traceback."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from draftlab.cli import INTERRUPTED, entry


def failing(error, cause=None):
    @entry
    def main():
        raise error from cause

    return main


def test_a_value_error_is_printed_alone_with_exit_code_1(capsys):
    with pytest.raises(SystemExit) as caught:
        failing(ValueError("block.block_size must be at least 1, got 0"))()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: block.block_size must be at least 1, got 0\n"


def test_what_a_constructor_says_is_shown_instead_of_hydras_wrapping(capsys):
    with pytest.raises(SystemExit):
        failing(InstantiationException("Error in call to target"), ValueError("its own words"))()
    assert capsys.readouterr().err == "error: its own words\n"


@pytest.mark.parametrize("cause", [None, KeyError("inner")])
def test_another_error_keeps_its_traceback(cause):
    with pytest.raises(RuntimeError):
        failing(RuntimeError("ours"), cause)()


def test_a_fault_of_ours_while_a_value_error_is_handled_is_not_taken_for_a_users_mistake():
    @entry
    def main():
        try:
            int("x")
        except ValueError:
            {}["missing"]

    with pytest.raises(KeyError):
        main()


@pytest.mark.parametrize("given", [(), ({"resume": True},), ({"resume": False},)])
def test_ctrl_c_says_how_to_go_on_and_names_resume_only_where_it_is_needed(capsys, given):
    @entry
    def main(*_):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        main(*map(OmegaConf.create, given))
    said = capsys.readouterr().err
    assert caught.value.code == INTERRUPTED and "the same command again" in said
    assert ("resume=true" in said) == (given == ({"resume": False},))


def test_a_terminated_script_ends_as_after_ctrl_c():
    script = "import time; from draftlab.cli import entry; entry(lambda: (print('on', flush=True), time.sleep(60)))()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "on\n"
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED and "Interrupted" in said and "Traceback" not in said


def test_under_slurm_sigterm_is_left_to_lightning(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert entry(lambda: signal.getsignal(signal.SIGTERM))() == signal.SIG_DFL
        monkeypatch.delenv("SLURM_JOB_ID")
        assert entry(lambda: signal.getsignal(signal.SIGTERM))() == signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.ckpt"), RuntimeError("I/O error: No space left on device")],
)
def test_a_full_disk_is_told_without_traceback_and_how_to_go_on(capsys, error):
    with pytest.raises(SystemExit) as caught:
        failing(error)()
    said = capsys.readouterr().err
    assert (
        caught.value.code == 1
        and "The disk is full" in said
        and "the same command again" in said
        and str(error) in said
    )


def test_results_and_other_exits_pass_through():
    assert entry(lambda value: value + 1)(1) == 2
    with pytest.raises(SystemExit) as caught:
        failing(SystemExit(3))()
    assert caught.value.code == 3


@pytest.mark.parametrize(("content", "stays"), [(None, False), ("a", True)])
def test_a_run_folder_stays_only_if_something_was_written_into_it(tmp_path, monkeypatch, content, stays):
    folder = tmp_path / "run"
    folder.mkdir()
    if content:
        (folder / content).touch()
    running(monkeypatch, {"output_dir": str(folder)})
    with pytest.raises(SystemExit):
        failing(ValueError("refused"))()
    assert folder.exists() == stays


def test_the_working_folder_stays_and_a_configuration_that_was_only_composed_names_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for runtime in ({"output_dir": str(tmp_path)}, {"output_dir": "???"}):
        running(monkeypatch, runtime)
        assert entry(lambda: 5)() == 5 and tmp_path.exists()


def running(monkeypatch, runtime):
    """As if a script of Hydra's ran in this process."""
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": {"runtime": runtime}}))


def test_a_refused_job_of_a_multirun_lets_the_others_go_on_and_is_named_at_the_end(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "work.yaml").write_text(
        "size: 1\nhydra: {output_subdir: null, sweep: {dir: 'out-${choices:x}', subdir: '${size}'}}\n"
        "defaults: [_self_, {override hydra/job_logging: disabled}]\n"
    )
    (tmp_path / "work.py").write_text(
        "import hydra\nfrom pathlib import Path\nfrom hydra.core.hydra_config import HydraConfig\n"
        "from draftlab.cli import entry, leave\n"
        "@hydra.main(config_path='conf', config_name='work', version_base='1.3')\n@entry\ndef main(cfg):\n"
        "    if cfg.size == 2:\n        raise ValueError('size 2 is refused')\n"
        "    (Path(HydraConfig.get().runtime.output_dir) / 'done').touch()\nmain()\nleave()\n"
    )
    command = [sys.executable, "work.py", "--multirun", "size=1,2,3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [path.parent.name for path in sorted(tmp_path.glob("out-multirun/*/done"))] == ["1", "3"]
    assert "refused of this multirun:" in done.stderr and done.stderr.count("size 2 is refused") == 2
    alone = subprocess.run(
        [sys.executable, "work.py", "size=2"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert alone.returncode == 1 and alone.stderr.strip() == "error: size 2 is refused"


def test_what_hydra_says_on_several_lines_is_one_line(capsys):
    with pytest.raises(SystemExit):
        failing(InstantiationException("Error in call to 'a':\nTypeError('b')\n  full_key: c"))()
    assert capsys.readouterr().err == "error: Error in call to 'a':; TypeError('b'); full_key: c\n"
