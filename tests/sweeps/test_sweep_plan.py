"""Commands: the words that `wandb agent` would start, a folder a cell, and mistakes found before anything runs."""

import functools
import queue
from pathlib import Path

import pytest
import wandb.env
import wandb.wandb_agent
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from draftlab.sweeps import make_cells, make_plan, read_sweep
from draftlab.sweeps.plan import _key

ROOT = Path(__file__).parents[2]
OWN = sorted((ROOT / "sweeps").glob("*.yaml"))
SIZES = {"size": {"values": [1, 2]}}
WORK = {"program": "work.py"}


def plan(bench, parameters, overrides=(), count=None, **content):
    sweep = read_sweep(bench.write(parameters, **content))
    return make_plan(sweep, make_cells(sweep, count), Path("out/try"), list(overrides))


@pytest.fixture
def agents_words(monkeypatch):
    """What W&B's own agent starts for given values, instead of starting it."""

    def words(content: dict, values: dict) -> list[str]:
        started = []
        monkeypatch.setattr(
            wandb.wandb_agent, "AgentProcess", lambda command, **rest: started.append(command) or Fake()
        )
        for name in (wandb.env.SWEEP_ID, wandb.env.RUN_ID, wandb.env.SWEEP_PARAM_PATH):
            monkeypatch.setenv(name, "s1")  # the agent sets them in this very process; here they are put back
        agent = wandb.wandb_agent.Agent(None, queue.Queue(), sweep_id="s1")
        agent._sweep_command = list(content["command"])
        args = {name: {"value": value} for name, value in values.items()}
        agent._process_command({"type": "run", "run_id": "r1", "program": content["program"], "args": args})
        return started[0]

    class Fake:
        last_sigterm_time = None

    return words


@functools.cache
def own_plan(path):
    sweep = read_sweep(path)
    return make_plan(sweep, make_cells(sweep), Path("outputs/sweeps") / sweep.name)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_every_cell_of_the_project_starts_what_wandbs_agent_starts(path, agents_words, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    content = yaml.safe_load(path.read_text())
    for job in own_plan(path).jobs:
        theirs = agents_words(content, job.cell.values)
        assert theirs[:3] == ["/usr/bin/env", "python", "src/train.py"]
        assert job.words[0] == "/usr/bin/env" and Path(job.words[2]).resolve() == ROOT / "src" / "train.py"
        assert list(job.words[3:-1]) == theirs[3:] and job.resume == ("resume=true",)
        assert job.words[-1] == f"hydra.run.dir=outputs/sweeps/{path.stem}/{job.cell.name}"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_every_cell_of_the_project_has_the_same_folder_under_wandbs_agent_as_here(path):
    jobs = own_plan(path).jobs
    assert len({job.folder for job in jobs}) == len(jobs)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for job in (jobs[0], jobs[-1]):
            cfg = compose("train", overrides=list(job.arguments), return_hydra_config=True)
            HydraConfig.instance().set_config(cfg)
            assert Path(cfg.hydra.run.dir) == job.folder


def test_the_draft_length_sweep_is_the_papers_grid():
    cells = make_cells(read_sweep(ROOT / "sweeps" / "gamma.yaml"))
    pairs = {(cell.values["drafter"], cell.values["block.block_size"]) for cell in cells}
    assert pairs == {(d, size) for d in ("dspark", "dspark_rnn", "dflash") for size in (4, 8, 12, 16)}


@pytest.mark.parametrize(("group", "left_out"), [("head", set()), ("loss", {"eagle3"})])
def test_the_sweep_over_a_group_has_every_choice_of_it_but_what_it_says(group, left_out):
    cells = make_cells(read_sweep(ROOT / "sweeps" / f"{group}.yaml"))
    choices = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
    assert {cell.values[group] for cell in cells} == choices - left_out


def test_overrides_go_to_every_cell_and_replace_the_files_own(bench):
    command = ["${interpreter}", "${program}", "part=one", "crash_at=5", "${args_no_hyphens}"]
    jobs = plan(bench, SIZES, ["part=two", "+new=1"], command=command, **WORK).jobs
    assert [job.arguments for job in jobs] == [("crash_at=5", f"size={n}", "part=two", "+new=1") for n in (1, 2)]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("size=3", "size is swept in try.yaml"),
        ("hydra.run.dir=x", "--folder"),
        ("word", "expected key=value"),
        ("crash_att=3", "crash_att"),
        ("part=three", "two"),
        ("crash_at=1,2", "Ambiguous"),
    ],
)
def test_an_override_that_cannot_be_is_refused_before_any_run(bench, override, message):
    with pytest.raises(ValueError) as caught:
        plan(bench, SIZES, [override], **WORK)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "command", "message"),
    [
        (
            "+many=yes",
            ["${args_no_hyphens}"],
            "hydra.mode to MULTIRUN; take an experiment that does not, or add hydra.mode=RUN",
        ),
        ("part=two", ["-m", "${args_no_hyphens}"], "its command has -m; leave that word out"),
    ],
)
def test_a_cell_that_hydra_would_make_several_runs_of_is_refused(bench, override, command, message):
    mode = "# @package _global_\nhydra: {mode: MULTIRUN}\n"
    (bench.folder / "conf" / "many").mkdir()
    (bench.folder / "conf" / "many" / "yes.yaml").write_text(mode)
    content = {"command": ["${interpreter}", "${program}", *command], **WORK}
    with pytest.raises(ValueError, match="a cell is one run, and size_1 would be several") as caught:
        plan(bench, SIZES, [override], **content)
    assert message in str(caught.value) and override in str(caught.value)
    assert plan(bench, SIZES, ["+many=yes", "hydra.mode=RUN"], **WORK).jobs  # as the message says


@pytest.mark.parametrize("experiment", ["demo_compare", "compare_smollm2", "table1"])
def test_an_experiment_of_several_runs_is_no_cell_of_a_sweep(experiment):
    sweep = read_sweep(ROOT / "sweeps" / "loss.yaml")
    with pytest.raises(ValueError, match=r"loss\.yaml: a cell is one run, and loss_dspark would be several"):
        make_plan(sweep, make_cells(sweep, 1), Path("out"), [f"experiment={experiment}"])


@pytest.mark.parametrize("blocked", ["out", "out/try", "out/try/size_2"])
def test_a_folder_that_is_a_file_is_refused_before_any_run(bench, blocked):
    (bench.folder / blocked).parent.mkdir(parents=True, exist_ok=True)
    (bench.folder / blocked).write_text("")
    with pytest.raises(ValueError, match=f"{blocked} is not a folder; give another --folder"):
        plan(bench, SIZES)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sizes": {"values": [1, 2]}}, "sizes"),
        ({"part": {"values": ["one", "three"]}}, "three"),
        ({"part.knid": {"value": "x"}}, "part.knid"),
    ],
)
def test_a_parameter_that_does_not_exist_is_refused_by_name_before_any_run(bench, parameters, message):
    with pytest.raises(ValueError, match=r"try\.yaml") as caught:
        plan(bench, parameters, **WORK)
    assert message in str(caught.value) and "Config search path" not in str(caught.value)


def test_a_program_without_hydra_gets_its_values_and_nothing_else(bench):
    job = plan(bench, SIZES).jobs[0]
    assert job.words[2:] == ("program.py", "size=1") and job.resume == () and job.folder == Path("out/try/size_1")


@pytest.mark.parametrize("folder", ["out/a b", "out/a=b,c", "out/it's"])
def test_a_folder_with_odd_letters_reaches_hydra_whole(bench, folder):
    sweep = read_sweep(bench.write(SIZES, **WORK))
    words = make_plan(sweep, make_cells(sweep), Path(folder)).jobs[0].words
    with initialize_config_dir(str(bench.folder / "conf"), version_base="1.3"):
        cfg = compose("work", overrides=list(words[3:]), return_hydra_config=True)
    assert cfg.hydra.run.dir == f"{folder}/size_1"


def test_the_grid_as_a_multirun_has_the_same_cells(bench):
    command = ["${interpreter}", "${program}", "crash_at=5", "run_name=x", "${args_no_hyphens}"]
    (bench.folder / "conf" / "work.yaml").open("a").write("run_name: null\n")
    words = plan(bench, SIZES | {"part": {"value": "two"}}, command=command, **WORK).multirun.split()
    assert words[:3] == ["python", "work.py", "--multirun"]
    assert words[3:] == [
        "hydra/launcher=submitit_slurm",
        "crash_at=5",
        "size=1,2",
        "part=two",
        "hydra.sweep.dir=out/try",
    ]


@pytest.mark.parametrize("launcher", ["submitit_slurm", "submitit_local", "ray"])
def test_a_cluster_launcher_composes_with_the_training_where_it_is_installed(launcher):
    module = "hydra_plugins.hydra_ray_launcher" if launcher == "ray" else "hydra_plugins.hydra_submitit_launcher"
    pytest.importorskip(module, reason=f"hydra/launcher={launcher} is an optional extra that is not installed")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("train", overrides=[f"hydra/launcher={launcher}"], return_hydra_config=True)
    assert "Launcher" in cfg.hydra.launcher._target_


def test_keys_are_read_off_every_form_of_override():
    assert [_key(word) for word in ("a.b=1", "+a.b=1", "++a.b=[c=d]", "~a.b")] == ["a.b"] * 4
