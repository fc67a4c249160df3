"""Every target × drafter × head × loss × experiment composes and constructs, or is refused for a reason listed here."""

import contextlib
import inspect
import io
import itertools
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException
from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf

from draftlab.cli import user_mistake
from draftlab.training.build import build

CONF = Path(__file__).parents[1] / "conf"
TOP = sorted(path.stem for path in CONF.glob("*.yaml"))
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


# The combinations that make no sense, and a part of the message that says so; all others must construct.
NEEDS_NO_HEAD, NEEDS_CONFIDENCE = "takes head=none", "has no confidence head"
REFUSED = {
    ("dflash", "markov", "ce"): NEEDS_NO_HEAD,
    ("dflash", "markov", "dspark"): NEEDS_NO_HEAD,
    ("dflash", "markov", "no_confidence"): NEEDS_NO_HEAD,
    ("dflash", "gated", "ce"): NEEDS_NO_HEAD,
    ("dflash", "gated", "dspark"): NEEDS_NO_HEAD,
    ("dflash", "gated", "no_confidence"): NEEDS_NO_HEAD,
    ("dflash", "rnn", "ce"): NEEDS_NO_HEAD,
    ("dflash", "rnn", "dspark"): NEEDS_NO_HEAD,
    ("dflash", "rnn", "no_confidence"): NEEDS_NO_HEAD,
    ("dflash", "none", "dspark"): NEEDS_CONFIDENCE,
}
COMBINATIONS = list(itertools.product(choices("drafter"), choices("head"), choices("loss")))
EXPERIMENTS = [None, *choices("experiment")]
DEFAULT_TARGET = "smollm2_135m"


@pytest.fixture(autouse=True)
def _conf():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


@pytest.fixture
def target_overrides(target_folder):
    """What a target needs beside its name; only ``custom`` needs a path."""
    return lambda target: [f"target={target}", *([f"target.path={target_folder}"] if target == "custom" else [])]


def construct(overrides: list[str]) -> str | None:
    """Compose and build on the meta device; the message if a user's mistake is found, None if all went well."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            build(compose("train", overrides=overrides), meta=True)
    except Exception as error:
        mistake = user_mistake(error)
        return mistake if mistake is not None else f"{type(error).__name__}: {error}"
    return None


def pairs():
    """(target, experiment): what composes by default is quick, an experiment moved to another target is slow."""
    for target, experiment in itertools.product(choices("target"), EXPERIMENTS):
        marks = [] if experiment is None or target == DEFAULT_TARGET else [pytest.mark.slow]
        yield pytest.param(target, experiment, marks=marks, id=f"{target}-{experiment}")


@pytest.mark.parametrize(("target", "experiment"), pairs())
def test_every_drafter_head_and_loss_constructs_or_is_refused_as_listed(target, experiment, target_overrides):
    wrong = {}
    for drafter, head, loss in COMBINATIONS:
        overrides = [*target_overrides(target), f"drafter={drafter}", f"head={head}", f"loss={loss}"]
        message = construct([*overrides, *([f"experiment={experiment}"] if experiment else [])])
        expected = REFUSED.get((drafter, head, loss))
        if (message is None) != (expected is None) or (expected and expected not in message):
            wrong[drafter, head, loss] = message or "was not refused"
    assert wrong == {}


def test_what_is_listed_as_refused_exists():
    assert set(REFUSED) <= set(COMBINATIONS)


@pytest.mark.parametrize("drafter", choices("drafter"))
@pytest.mark.parametrize("target", choices("target"))
def test_a_drafters_usual_partners_construct_with_every_target(target, drafter, target_overrides):
    assert construct([*target_overrides(target), f"drafter={drafter}"]) is None


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_constructs_as_it_is(experiment):
    assert construct([f"experiment={experiment}"] if experiment else []) is None


def test_the_command_line_wins_over_what_drafter_target_and_experiment_name():
    cfg = compose("train", overrides=["drafter=dflash", "head=markov", "loss=dspark", "data=laptop", "block=block7"])
    assert cfg.head._target_.endswith("MarkovHead") and "tv" in cfg.loss.terms
    assert "laptop" in cfg.data.path and cfg.block.num_anchors == 512


@pytest.mark.parametrize("group", GROUPS)
def test_an_unknown_choice_is_refused_with_the_list_of_choices(group):
    top = next(name for name in TOP if group in compose_groups(name))
    with pytest.raises(ConfigCompositionException) as caught:
        compose(top, overrides=[f"{group}=no_such_choice"])
    assert "no_such_choice" in str(caught.value)
    assert all(choice in str(caught.value) for choice in choices(group))


def compose_groups(name: str) -> set[str]:
    """Groups that a top file has in its defaults list."""
    entries = OmegaConf.load(CONF / f"{name}.yaml").get("defaults", [])
    return {key.removeprefix("optional ") for entry in entries if isinstance(entry, DictConfig) for key in entry}


def calls(node, path="") -> list[tuple[str, DictConfig]]:
    """(path, node) of everything under ``node`` that Hydra would call."""
    found = []
    if isinstance(node, DictConfig):
        found += [(path, node)] if "_target_" in node else []
        keys = [
            key for key in node if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, key)
        ]
        found += [call for key in keys for call in calls(node[key], f"{path}.{key}")]
    elif isinstance(node, ListConfig):
        found += [call for index, item in enumerate(node) for call in calls(item, f"{path}[{index}]")]
    return found


def check_calls(cfg: DictConfig) -> None:
    """Every ``_target_`` exists and has the arguments that the configuration gives it."""
    for path, node in calls(cfg):
        signature = inspect.signature(get_object(node._target_))
        given = {key: None for key in node if key not in ("_target_", "_partial_", "_convert_", "_recursive_")}
        try:
            signature.bind_partial(**given)
        except TypeError as error:
            raise AssertionError(f"{path.strip('.')}: {node._target_}: {error}") from None


@pytest.mark.parametrize(
    ("group", "choice"), [(group, choice) for group in GROUPS for choice in choices(group)], ids=lambda name: name
)
def test_every_choice_names_things_that_exist_with_the_arguments_they_take(group, choice):
    for top in (name for name in TOP if group in compose_groups(name)):
        extra = ["target.path=folder"] if choice == "custom" else []
        check_calls(compose(top, overrides=[f"{group}={choice}", *extra]))


@pytest.mark.parametrize("name", TOP)
def test_every_top_file_composes_and_names_things_that_exist(name):
    check_calls(compose(name))


@pytest.mark.parametrize("name", TOP)
def test_every_top_file_says_at_its_start_how_it_is_used(name):
    assert (
        f"python src/{name}.py"
        in (CONF / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
        + (CONF / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[1]
    )


@pytest.mark.parametrize("name", TOP)
def test_an_unknown_key_is_refused(name):
    with pytest.raises(HydraException, match="no_such_key"):
        compose(name, overrides=["no_such_key=1"])
