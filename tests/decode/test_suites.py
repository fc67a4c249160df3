"""Benchmarks from the built-in generator and from folders; bad files are refused with their line."""

from __future__ import annotations

import json

import pytest

from draftlab.data.prompts import builtin_prompts
from draftlab.decode.suites import Benchmark, builtin_benchmarks, folder_benchmarks

DOMAINS = {"gsm8k": "math", "mbpp": "code"}


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def test_builtin_benchmarks_are_held_out_and_one_a_domain():
    benchmarks = builtin_benchmarks(limit=5, seed=1)
    assert {benchmark.domain for benchmark in benchmarks} == {"math", "code", "chat"}
    assert all(len(benchmark.prompts) == 5 for benchmark in benchmarks)
    trained = {json.dumps(prompt.messages) for prompt in builtin_prompts(300, seed=1, split="train")}
    assert not any(json.dumps(prompt.messages) in trained for benchmark in benchmarks for prompt in benchmark.prompts)


def test_a_folder_gives_one_benchmark_a_file_with_the_first_turn_and_the_mapped_domain(tmp_path):
    write(tmp_path / "gsm8k.jsonl", {"id": "a", "turns": ["1+1?", "and 2+2?"]}, {"id": "b", "turns": ["3?"]})
    write(tmp_path / "new.jsonl", {"id": "c", "domain": "poetry", "turns": ["Ode"]})
    write(tmp_path / "bare.jsonl", {"id": "d", "turns": ["Hm"]})
    bare, gsm8k, new = folder_benchmarks(tmp_path, DOMAINS, limit=1)
    assert (gsm8k.name, gsm8k.domain, len(gsm8k.prompts)) == ("gsm8k", "math", 1)
    assert gsm8k.prompts[0].messages == ({"role": "user", "content": "1+1?"},)
    assert (new.domain, bare.domain) == ("poetry", "other")
    assert [b.name for b in folder_benchmarks(tmp_path, DOMAINS, None, names=["new", "gsm8k"])] == ["new", "gsm8k"]


def test_bad_folders_and_lines_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="expected a folder of JSONL files"):
        folder_benchmarks(tmp_path / "nowhere", DOMAINS, 1)
    with pytest.raises(ValueError, match=r"no \*.jsonl"):
        folder_benchmarks(tmp_path, DOMAINS, 1)
    (tmp_path / "gsm8k.jsonl").write_text('{"id": "a", "turns": ["1"]}\n{"id": "b", "turns": \n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"gsm8k.jsonl, line 2"):
        folder_benchmarks(tmp_path, DOMAINS, 1)
    (tmp_path / "gsm8k.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"gsm8k.jsonl is empty"):
        folder_benchmarks(tmp_path, DOMAINS, 1)
    write(tmp_path / "gsm8k.jsonl", {"id": "a", "turns": ["1"]}, {"id": "a", "turns": ["2"]})
    with pytest.raises(ValueError, match="two prompts have the id 'a'"):
        folder_benchmarks(tmp_path, DOMAINS, 2)
    with pytest.raises(ValueError, match=r"benchmarks: humaneval not found .* there are gsm8k"):
        folder_benchmarks(tmp_path, DOMAINS, 1, names=["humaneval"])
    for make in (
        lambda: folder_benchmarks(tmp_path, DOMAINS, 0),
        lambda: builtin_benchmarks(0),
        lambda: builtin_benchmarks(1.5),
    ):
        with pytest.raises(ValueError, match="limit must be at least 1"):
            make()
    with pytest.raises(ValueError, match="expected at least one prompt"):
        Benchmark("empty", "math", ())
