"""Every target, drafter, head, loss and experiment composes and constructs with every other, or is refused as listed here.

Whether a combination makes sense is decided by two of its choices, so the combinations tried cover all pairs instead of the whole
product: with the default target every pair of drafter, head and loss; elsewhere every choice with every target and experiment.
"""

import contextlib
import inspect
import io
import itertools
import re
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


# The pairs that make no sense, and a part of the message that says so; all others must construct.
NEEDS_NO_HEAD, NEEDS_CONFIDENCE = "takes head=none", "has no confidence head"
REFUSED_HEADS = {  # (drafter, head); found before the loss is looked at
    ("dflash", "markov"): NEEDS_NO_HEAD,
    ("dflash", "gated"): NEEDS_NO_HEAD,
    ("dflash", "rnn"): NEEDS_NO_HEAD,
    ("dflash", "domino"): NEEDS_NO_HEAD,
    **{(chain, head): NEEDS_NO_HEAD for chain in ("eagle3", "mtp") for head in choices("head") if head != "none"},
}
REFUSED_LOSSES = {  # (drafter, loss)
    ("dflash", "dspark"): NEEDS_CONFIDENCE,
    ("dflash", "dpace"): NEEDS_CONFIDENCE,
    **{(chain, loss): NEEDS_CONFIDENCE for chain in ("eagle3", "mtp") for loss in ("dspark", "dpace")},
}


EVERY = list(itertools.product(choices("drafter"), choices("head"), choices("loss")))


def refusal(drafter: str, head: str, loss: str) -> str | None:
    return REFUSED_HEADS.get((drafter, head), REFUSED_LOSSES.get((drafter, loss)))


def pairs_told(combination: tuple[str, ...]) -> set:
    """The pairs of choices that trying ``combination`` tells about: all if it constructs, else the one it is refused for."""
    drafter, head, loss = combination
    if (drafter, head) in REFUSED_HEADS:
        return {("drafter", drafter, "head", head)}
    if (drafter, loss) in REFUSED_LOSSES:
        return {("drafter", drafter, "loss", loss)}
    return {("drafter", drafter, "head", head), ("drafter", drafter, "loss", loss), ("head", head, "loss", loss)}


def choices_told(combination: tuple[str, ...]) -> set:
    """The choices that trying ``combination`` tells about: all if it constructs."""
    return set() if refusal(*combination) else set(zip(("drafter", "head", "loss"), combination, strict=True))


def few(told) -> list[tuple[str, ...]]:
    """Few combinations that tell all there is, chosen greedily."""
    missing, chosen = set().union(*map(told, EVERY)), []
    while missing:
        best = max(EVERY, key=lambda combination: len(missing & told(combination)))
        chosen.append(best)
        missing -= told(best)
    return chosen


def script_of(experiment: str) -> str:
    """The entry script that an experiment belongs to: the one that its first comment lines name, else train."""
    head = (CONF / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8").split("\n\n")[0]
    named = re.findall(r"^# python src/(\w+)\.py", head, re.MULTILINE)
    return named[0] if named else "train"


EXPERIMENTS = [None, *(name for name in choices("experiment") if script_of(name) == "train")]
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


def constructs_as_listed(combinations, overrides: list[str]) -> dict:
    """The (drafter, head, loss) among ``combinations`` that construct or are refused otherwise than listed."""
    wrong = {}
    for drafter, head, loss in combinations:
        message = construct([*overrides, f"drafter={drafter}", f"head={head}", f"loss={loss}"])
        expected = refusal(drafter, head, loss)
        if (message is None) != (expected is None) or (expected and expected not in message):
            wrong[drafter, head, loss] = message or "was not refused"
    return wrong


def experiment_overrides(experiment: str | None) -> list[str]:
    return [f"experiment={experiment}"] if experiment else []


def elsewhere():
    """(target, experiment) beside the default: one of the two moved is quick, both moved is slow."""
    for target, experiment in itertools.product(choices("target"), EXPERIMENTS):
        if target != DEFAULT_TARGET or experiment is not None:
            marks = [] if experiment is None or target == DEFAULT_TARGET else [pytest.mark.slow]
            yield pytest.param(target, experiment, marks=marks, id=f"{target}-{experiment}")


def test_every_pair_of_drafter_head_and_loss_constructs_or_is_refused_as_listed():
    assert constructs_as_listed(few(pairs_told), [f"target={DEFAULT_TARGET}"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("target", [target for target in choices("target") if target != DEFAULT_TARGET])
def test_every_pair_constructs_or_is_refused_as_listed_with_every_target(target, target_overrides):
    assert constructs_as_listed(few(pairs_told), target_overrides(target)) == {}


@pytest.mark.parametrize(("target", "experiment"), elsewhere())
def test_every_drafter_head_and_loss_constructs_or_is_refused_as_listed(target, experiment, target_overrides):
    overrides = [*target_overrides(target), *experiment_overrides(experiment)]
    assert constructs_as_listed(few(choices_told), overrides) == {}


def test_the_combinations_tried_tell_about_every_choice_and_every_pair():
    groups = ("drafter", "head", "loss")
    wanted = {
        (first, a, second, b)
        for first, second in itertools.combinations(groups, 2)
        for a, b in itertools.product(choices(first), choices(second))
    }
    assert set().union(*map(pairs_told, few(pairs_told))) == wanted
    assert {(group, name) for group in groups for name in choices(group)} == set().union(
        *map(choices_told, few(choices_told))
    )


def test_what_is_listed_as_refused_exists():
    assert set(REFUSED_HEADS) <= set(itertools.product(choices("drafter"), choices("head")))
    assert set(REFUSED_LOSSES) <= set(itertools.product(choices("drafter"), choices("loss")))


@pytest.mark.parametrize("drafter", choices("drafter"))
@pytest.mark.parametrize("target", choices("target"))
def test_a_drafters_usual_partners_construct_with_every_target(target, drafter, target_overrides):
    assert construct([*target_overrides(target), f"drafter={drafter}"]) is None


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_constructs_as_it_is(experiment):
    assert construct(experiment_overrides(experiment)) is None


def test_the_command_line_wins_over_what_drafter_target_and_experiment_name():
    cfg = compose("train", overrides=["drafter=dflash", "head=markov", "loss=dspark", "data=laptop", "block=block7"])
    assert cfg.head._target_.endswith("MarkovHead") and "tv" in cfg.loss.terms
    assert "laptop" in cfg.data.path and cfg.block.decay_gamma == 7


@pytest.mark.parametrize("target", choices("target"))
@pytest.mark.parametrize(("drafter", "block_size", "loss"), [("eagle3", 7, "soft_ce"), ("mtp", 1, "ce")])
def test_a_chain_keeps_its_own_block_and_depth_with_every_target(target, drafter, block_size, loss, target_overrides):
    cfg = compose("train", overrides=[*target_overrides(target), f"drafter={drafter}"])
    parts = build(cfg, meta=True)
    assert (parts.block.block_size, len(parts.drafter.layers), list(parts.loss.terms)) == (block_size, 1, [loss])
    assert parts.block.num_anchors == cfg.trainer.num_anchors  # as many as the machine takes
    assert parts.drafter.draft_vocab_size == (cfg.drafter.draft_vocab_size or parts.spec.vocab_size)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["drafter=eagle3", "block.ttt_length=0"], "block.ttt_length"),
        (["drafter=eagle3", "block.step_decay=0"], "block.step_decay"),
        (["drafter=eagle3", "block.step_decay=1.5"], "block.step_decay"),
        (["drafter=eagle3", "block=block7_one_plus_n"], "block.sample_from_anchor"),
        (["drafter=mtp", "target.target_layer_ids=[1,40]"], "target.target_layer_ids"),
    ],
)
def test_bad_input_of_a_chain_is_refused_by_name(overrides, message):
    assert message in (construct(overrides) or "was not refused")


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
    tops = [script_of(choice)] if group == "experiment" else [name for name in TOP if group in compose_groups(name)]
    for top in tops:
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
