"""What sets runs apart: their recorded configurations as flat keys, the keys that differ, and names made from them.

    block: {block_size: 7}    ->    {"block.block_size": "7"}

Left out are keys that say where something is written or called, and the ``evaluation`` group: what was decoded stands in
evaluation.json and has to agree anyway. ``data.path`` stays, since a drafter trained on other answers is another drafter.
References such as ``${seed}`` stay as they are, so that one changed value is one changed key. Pure functions of text.

    >>> first, second = flat_config("block: {block_size: 4}"), flat_config("block: {block_size: 8}")
    >>> difference_table({"a": first, "b": second}).values.tolist()
    [['block.block_size', '4', '8']]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pandas as pd
import yaml

from draftlab.configuration import leaves

SEED = "seed"
UNTOLD = {  # groups and values that do not change what is trained
    *("run_name", "hydra", "paths", "logger", "plan", "plan_gpu_gb", "resume", "evaluate_after", "evaluation")
}
PLACES = {"path", "dirpath", "folder", "output_dir", "cache_dir", "_partial_"}  # last parts of such keys
TOLD = {"data.path"}
# Families whose constructors take no sequential head: their name says so. Elsewhere head=none is a choice worth naming.
HEADLESS = {"dflash", "eagle3", "mtp"}
MOST = 3  # differing keys that a label names, unless more are needed to tell it from all others

Config = Mapping[str, str]


def flat_config(text: str | None) -> dict[str, str]:
    """A composed configuration (the YAML text of .hydra/config.yaml) as {dotted key: value as text}.

    Raises:
        ValueError: there is none, or it is no YAML mapping.
    """
    if text is None:
        raise ValueError("its .hydra/config.yaml is missing")
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"its .hydra/config.yaml is no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(tree, Mapping):
        raise ValueError("its .hydra/config.yaml holds no keys")
    return {key: value for key, value in leaves(tree) if _told(key)}


def difference_table(configs: Mapping[str, Config]) -> pd.DataFrame:
    """One row a key whose value differs: column ``key``, then one a run; None where a run has no such key."""
    keys = differing(list(configs.values()))
    table = pd.DataFrame({name: [config.get(key) for key in keys] for name, config in configs.items()}, dtype=object)
    table.insert(0, "key", pd.Series(keys, dtype=object), allow_duplicates=True)  # a run may be called so too
    return table


def differing(configs: Sequence[Config]) -> list[str]:
    """Keys that do not have the same value in all of ``configs``, in the order in which they are first met."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({config.get(key) for config in configs}) > 1]


def without(config: Config, keys: Collection[str]) -> dict[str, str]:
    """The configuration without ``keys``."""
    return {key: value for key, value in config.items() if key not in keys}


def seed_groups(configs: Mapping[str, Config]) -> list[list[str]]:
    """Names of runs that differ in nothing but ``seed``, together; groups and names in the order given."""
    groups: dict[frozenset, list[str]] = {}
    for name, config in configs.items():
        groups.setdefault(frozenset(without(config, {SEED}).items()), []).append(name)
    return list(groups.values())


def drafter_name(config: Config) -> str:
    """Family and head, as in 'dspark-markov', 'dspark-none' or 'dflash', from the classes that were built.

    Raises:
        ValueError: the configuration names no drafter.
    """
    family = _class_name(config.get("drafter._target_", ""))
    if not family:
        raise ValueError("its configuration names no drafter (drafter._target_)")
    head = _class_name(config.get("head._target_", "")).removesuffix("head")
    head = "none" if head == "no" else head
    return family if not head or (head == "none" and family in HEADLESS) else f"{family}-{head}"


def labels(configs: Sequence[Config]) -> list[str]:
    """A name for each configuration: its drafter and, where drafters of one name differ, what they differ in.

    Different configurations have different names, equal ones the same.

    >>> same = {"drafter._target_": "DFlash"}
    >>> labels([{**same, "trainer.lr": "0.1"}, {**same, "trainer.lr": "0.2"}])
    ['dflash, lr 0.1', 'dflash, lr 0.2']
    """
    names = [drafter_name(config) for config in configs]
    result = []
    for name, config in zip(names, configs, strict=True):
        alike = [other for other, its_name in zip(configs, names, strict=True) if its_name == name]
        keys = differing(alike)
        shown = _telling(alike, keys)
        parts = [_part(key, config.get(key), keys) for key in shown]
        result.append(", ".join([name, *parts, *(["…"] if len(keys) > len(shown) else [])]))
    return _numbered(result, configs)


def _telling(configs: Sequence[Config], keys: Sequence[str]) -> list[str]:
    """The first MOST of ``keys``, and of the others those without which two of ``configs`` would read alike."""

    def told(some: Sequence[str]) -> int:
        return len({tuple(_part(key, config.get(key), keys) for key in some) for config in configs})

    shown = list(keys[:MOST])
    for key in keys[MOST:]:
        if told([*shown, key]) > told(shown):
            shown.append(key)
    return shown


def _numbered(names: Sequence[str], configs: Sequence[Config]) -> list[str]:
    """``names`` with a number where another configuration has the same: classes of one name from two packages."""
    holders: dict[str, list[Config]] = {}
    result = []
    for name, config in zip(names, configs, strict=True):
        held = holders.setdefault(name, [])
        if config not in held:
            held.append(config)
        place = held.index(config) + 1
        result.append(name if place == 1 else f"{name} ({place})")
    return result


def _told(key: str) -> bool:
    parts = key.split(".")
    return key in TOLD or not (parts[0] in UNTOLD or parts[-1] in PLACES)


def _class_name(target: str) -> str:
    return target.rsplit(".", 1)[-1].lower()


def _part(key: str, value: str | None, keys: Sequence[str]) -> str:
    """'lr 0.001'; the key in full where its last word stands for two keys."""
    name, shown = key, value
    if key.endswith("._target_"):
        name, shown = key.removesuffix("._target_"), value and value.rsplit(".", 1)[-1]
    last = name.rsplit(".", 1)[-1]
    alone = sum(other.removesuffix("._target_").rsplit(".", 1)[-1] == last for other in keys) == 1
    name = last if alone else name
    return f"no {name}" if shown is None else f"{name} {shown}"
