"""A mix keeps its shares in every prefix, grows at its end, asks nothing twice and says what ran dry."""

from __future__ import annotations

import datasets
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from test_sources import CONF, FORMED, text

from draftlab.data.mixing import PromptMix, Source
from draftlab.data.prompts import Prompt


def prompts(name: str, count: int):
    return lambda: [Prompt(str(i), "chat", ({"role": "user", "content": f"{name} {i}"},)) for i in range(count)]


def mixture(count, seed=0, sizes=(500, 500, 500), weights=(5, 3, 2), **options) -> list[Prompt]:
    sources = {
        name: Source(weight, prompts(name, size)) for name, weight, size in zip("abc", weights, sizes, strict=True)
    }
    return PromptMix(sources, count, seed, **options)()


def used(mixed, name: str) -> int:
    return sum(prompt.id.startswith(f"{name}/") for prompt in mixed)


def test_every_prefix_has_the_shares_of_the_whole():
    mixed = mixture(400)
    for length in range(1, 401):
        for name, share in (("a", 0.5), ("b", 0.3), ("c", 0.2)):
            assert abs(used(mixed[:length], name) - share * length) <= 1


def test_a_larger_count_begins_with_the_smaller_one_and_a_seed_tells_the_order():
    assert mixture(300)[:120] == mixture(120)
    assert mixture(120, seed=1) != mixture(120)
    assert len({prompt.id for prompt in mixture(300)}) == 300


def test_a_source_that_runs_dry_leaves_its_share_to_the_others_by_their_weights(capsys):
    mixed = mixture(300, sizes=(20, 500, 500))
    assert (used(mixed, "a"), len(mixed)) == (20, 300)
    assert abs(used(mixed, "b") - 280 * 3 / 5) <= 6  # a little less: b and c had their own times while a was there
    said = capsys.readouterr().out
    assert "mix: 300 prompts\n" in said
    assert "a: 20 of 20 (6.7%, weight 50.0%); ran dry, the others filled its share" in said
    assert mixture(300, sizes=(20, 500, 500))[:60] == mixture(60, sizes=(20, 500, 500)), "also across a dry end"


def test_a_mix_whose_sources_all_run_dry_is_shorter_and_says_so(capsys):
    assert len(mixture(1000, sizes=(10, 20, 30))) == 60
    assert "mix: 60 prompts of 1,000 asked for" in capsys.readouterr().out
    assert len(mixture(None, sizes=(10, 20, 30))) == 60


def test_what_two_sources_ask_is_asked_once_unless_told_otherwise(capsys):
    same = {"one": Source(1, prompts("x", 30)), "two": Source(1, prompts("X ", 30))}  # case and spacing aside
    mixed = PromptMix(same)()
    assert sorted(text(prompt).lower().split()[1] for prompt in mixed) == sorted(map(str, range(30)))
    assert "repeated, passed over" in capsys.readouterr().out
    assert len(PromptMix(same, unique=False)()) == 60


def test_a_source_may_name_the_domain_of_its_prompts():
    sources = {"a": Source(1, prompts("a", 3), domain="math"), "b": Source(1, prompts("b", 3))}
    domains = {prompt.id[0]: prompt.domain for prompt in PromptMix(sources)()}
    assert domains == {"a": "math", "b": "chat"}


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "much", True, None])
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    sources = {"a": Source(1, prompts("a", 3)), "b": Source(weight, prompts("b", 3))}
    with pytest.raises(ValueError, match=r"prompts\.sources\.b\.weight must be a positive number, got .*~data"):
        PromptMix(sources)


def test_no_source_and_no_count_are_refused():
    with pytest.raises(ValueError, match=r"prompts.sources is empty"):
        PromptMix({})
    for count in (0, 2.5):
        with pytest.raises(ValueError, match=r"prompts.count must be null or at least 1 and whole"):
            PromptMix({"a": Source(1, prompts("a", 3))}, count)


def test_the_mix_of_conf_reads_its_sources_by_weight(monkeypatch):
    def load(path, name, split):
        form = "messages" if "ultrachat" in path else "conversations"
        (row,) = [dict(FORMED[form])]
        field = next(iter(row))
        key = "content" if form == "messages" else "value"
        rows = [{field: [{**turn, key: f"{path} {turn[key]} {i}"} for turn in row[field]]} for i in range(40)]
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("prepare", overrides=["data=mix", "data.prompts.count=50"])
    mixed = instantiate(cfg.data).read_prompts()
    assert [used(mixed, name) for name in ("perfectblend", "ultrachat", "sharegpt")] == [35, 10, 5]
