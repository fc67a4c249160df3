"""Sweep files: what is broken is refused in words that say where; what is accepted is valid for W&B."""

from pathlib import Path

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import load_sweep_config

from draftlab.sweeps import read_sweep

OWN = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))
GOOD = {"a": {"values": [1, 2]}}
BASE = {
    "program": "program.py",
    "method": "grid",
    "command": ["${interpreter}", "${program}", "${args_no_hyphens}"],
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "bayes"}, "wandb sweep FILE"),
        ({"method": "gird"}, "method must be one of grid, random, got 'gird'"),
        ({"method": None}, "method must be one of grid, random, got None"),
        ({"program": None}, "program is missing"),
        ({"program": "no_such.py"}, "program no_such.py: no such file"),
        ({"program": 3}, "program must be a text"),
        ({"command": None}, "args_no_hyphens"),
        ({"command": ["${interpreter}", "${program}", "${args}"]}, r"must hold ${args_no_hyphens} once, got 0"),
        ({"command": ["${interpreter}", "${args_no_hyphens}"]}, r"must hold ${program} once"),
        ({"command": ["${args_no_hyphens}", "${program}"]}, r"${args_no_hyphens} after ${program}"),
        ({"command": ["${python}", "${program}", "${args_no_hyphens}"]}, r"unknown macro ${python}"),
        ({"parameter": {}}, "unknown key parameter"),
        ({"run_cap": 0}, "run_cap"),
        ({"run_cap": True}, "run_cap must be a whole number above 0, got True"),
        ({"metric": "loss"}, "metric must have a name"),
        ({"metric": {"name": "loss", "goal": "more"}}, "metric.goal must be one of maximize, minimize"),
        ({"metric": {"name": "loss", "gaol": "maximize"}}, "metric has no setting gaol"),
        ({"metric": {"name": "loss", 1: 2, "foo": 3}}, "metric has no setting 1, foo"),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_what_is_wrong(bench, changed, message):
    bench.write(GOOD, **changed)
    with pytest.raises(ValueError) as caught:
        read_sweep("try.yaml")
    assert message in str(caught.value) and "sweep file try.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"values": []}, "at least one entry"),
        ({"values": 3}, "values must be a list"),
        ({"values": [1, None]}, "'null' in quotes"),
        ({"values": [1, "1"]}, "the same entry twice"),
        ({"value": None}, "value has no value"),
        ({"vlaues": [1]}, "expected value, values, min and max, or a distribution"),
        ({"values": [1], "q": 2}, "q is not one of its settings"),
        ({"min": 1}, "expected value, values, min and max, or a distribution"),
        ({"min": 3, "max": 3}, "min 3 is not below max 3"),
        ({"min": 0.1, "max": 1.0}, "a grid cannot list the values of uniform"),
        ({"distribution": "normal"}, "a grid cannot list the values of normal"),
        ({"values": [1, 2], "probabilities": [0.5, 0.5]}, "a grid cannot list"),
        ({"values": [1, 2], "probabilities": [0.5]}, "2 numbers that sum to 1"),
        ({"values": [1, 2], "probabilities": [0.5, 0.6]}, "2 numbers that sum to 1"),
        ({"values": [[None]]}, "the null in [None] cannot be written as an argument"),
        ({"value": [1, {"x": [None]}]}, "the null in"),
        ({1: 2, "b": 3}, "the names of settings are words such as values, got 1"),
        ({"distribution": ["normal"]}, "unknown distribution ['normal']"),
        ({"distribution": "int_uniform", "min": 0, "max": 10**400}, "must be a whole number"),
        ({"distribution": "log_normals"}, "unknown distribution 'log_normals'"),
        ({"distribution": "uniform", "min": 0.1}, "max has no value"),
        ({"distribution": "uniform", "min": "1e-3", "max": 1}, "write 1.0e-3"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "min of log_uniform_values must be above 0"),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0}, "q of q_uniform must be above 0"),
        ({"distribution": "normal", "sigma": -1}, "sigma of normal must be 0 or above"),
        ({"distribution": "int_uniform", "min": 1.5, "max": 3}, "must be a whole number"),
        ({"parameters": {"b": {"value": 1}}}, "head.key"),
        ([1, 2], "expected settings such as values"),
    ],
)
def test_a_broken_parameter_is_refused_by_name(bench, settings, message):
    bench.write({"head": settings})
    with pytest.raises(ValueError, match="head") as caught:
        read_sweep("try.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize("parameters", [None, {}, [1], {"1a": {"value": 1}}, {"a b": {"value": 1}}])
def test_parameters_must_be_there_and_have_names_that_wandb_takes(bench, parameters):
    bench.write(parameters)
    with pytest.raises(ValueError, match="parameter"):
        read_sweep("try.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: grid\nparameters:\n  a: {values: [1, 2}\n", "line 3"),
        (
            "method: grid\nparameters:\n  a: {value: 1}\n  a: {value: 2}\n",
            "line 4, column 3: not valid YAML: a stands twice",
        ),
        ("\tmethod: grid\n", "line 1"),
        ("- grid\n", "expected keys"),
        ("", "expected keys"),
    ],
)
def test_malformed_yaml_is_refused_with_the_line(bench, text, message):
    (bench.folder / "try.yaml").write_text(text)
    with pytest.raises(ValueError) as caught:
        read_sweep("try.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "&v [1, *v]"], ids=["3000 brackets", "holds itself"])
def test_endless_nesting_is_refused_with_the_name_of_the_file(bench, value):
    (bench.folder / "try.yaml").write_text(yaml.safe_dump(BASE) + f"parameters:\n  a: {{values: [{value}]}}\n")
    with pytest.raises(ValueError, match=r"sweep file try\.yaml: brackets nested too deeply"):
        read_sweep("try.yaml")


def test_a_missing_file_is_refused_with_the_files_of_the_project(bench):
    with pytest.raises(ValueError, match="no such file") as caught:
        read_sweep("sweeps/gama.yaml")
    assert "sweeps/gamma.yaml" in str(caught.value)


def test_a_file_of_the_project_is_found_from_any_folder(bench):
    sweep = read_sweep("sweeps/gamma.yaml")
    assert sweep.name == "gamma" and Path(sweep.program).name == "train.py" and Path(sweep.program).is_file()


def test_what_only_wandbs_server_does_is_said(bench):
    bench.write(GOOD, early_terminate={"type": "hyperband", "min_iter": 3})
    assert "every run goes to its end" in read_sweep("try.yaml").notes[0]


def wandbs_own(module: str):
    """A module of W&B's own package, which holds the schema and the engine of its server."""
    return pytest.importorskip(f"sweeps.{module}", reason="needs W&B's sweeps package: pip install 'wandb[sweeps]'")


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_every_sweep_of_the_project_is_valid_by_wandbs_own_schema(path):
    config = wandbs_own("config")
    content = load_sweep_config(str(path))
    assert config.schema_violations_from_proposed_config(content) == []
    assert dict(config.SweepConfig(content))["parameters"].keys() == content["parameters"].keys()


ACCEPTED = [
    {"value": 3},
    {"value": [0, 1]},
    {"values": ["a", "b"]},
    {"distribution": "categorical", "values": [True, False]},
    {"values": [1, 2], "probabilities": [0.25, 0.75]},
    {"min": 1, "max": 5},
    {"min": 1, "max": 5.0},
    {"distribution": "uniform", "min": 1, "max": 5},
    {"distribution": "q_uniform", "min": 1, "max": 5, "q": 2},
    {"distribution": "log_uniform_values", "min": 1.0e-4, "max": 1.0e-2},
    {"distribution": "q_log_uniform_values", "min": 1, "max": 100},
    {"distribution": "inv_log_uniform_values", "min": 1.0e-4, "max": 1.0e-2},
    {"distribution": "normal", "mu": 1},
    {"distribution": "q_normal", "sigma": 3, "q": 0.5},
    {"distribution": "log_normal"},
    {"distribution": "q_log_normal"},
    {"distribution": "beta", "a": 2, "b": 3},
    {"distribution": "q_beta", "q": 0.1},
]


@pytest.mark.parametrize("settings", ACCEPTED, ids=str)
def test_what_is_accepted_here_is_valid_for_wandb(bench, settings):
    violations = wandbs_own("config").schema_violations_from_proposed_config
    path = bench.write({"a": settings}, method="random", metric={"name": "val/loss", "goal": "minimize", "target": 1.0})
    assert read_sweep(path).parameters[0].name == "a"
    assert violations(yaml.safe_load(Path(path).read_text())) == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_every_sweep_of_the_project_compares_what_validation_logs(path):
    metric = read_sweep(path).metric
    assert metric.name == "val/accepted_length" and metric.maximize
