"""Rows come alike from JSONL, JSON, Parquet, folders and saved data sets; what cannot be read is refused by name."""

from __future__ import annotations

import json

import datasets
import pytest

from draftlab.data.tables import open_rows

RECORDS = [{"id": f"r{index}", "text": f"Text {index}", "extra": index} for index in range(5)]


def lines(records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_all(folder):
    """The same rows in every form that is read."""
    table = datasets.Dataset.from_list(RECORDS)
    (folder / "a.jsonl").write_text(lines(RECORDS))
    (folder / "lines.json").write_text(lines(RECORDS))
    (folder / "array.json").write_text(json.dumps(RECORDS, indent=2))
    table.to_parquet(str(folder / "a.parquet"))
    table.save_to_disk(str(folder / "saved"))
    (folder / "parts").mkdir()
    table.select(range(3)).to_parquet(str(folder / "parts" / "part-0.parquet"))
    (folder / "parts" / "part-1.jsonl").write_text(lines(RECORDS[3:]))
    return ["a.jsonl", "lines.json", "array.json", "a.parquet", "saved", "parts"]


def test_the_same_rows_come_from_every_form_and_can_be_read_again(tmp_path):
    for name in write_all(tmp_path):
        rows = open_rows(tmp_path / name)
        assert (set(rows.columns), rows.total) == ({"id", "text", "extra"}, 5), name
        for _ in range(2):
            read = [{key: row[key] for key in ("id", "text")} for row in rows.read(["id", "text", "absent"])]
            assert read == [{"id": record["id"], "text": record["text"]} for record in RECORDS], name


def test_a_folder_has_the_columns_that_all_its_files_have(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines([{"x": 1, "y": 2}]))
    (tmp_path / "b.jsonl").write_text(lines([{"y": 3, "z": 4}]))
    assert open_rows(tmp_path).columns == ("y",)


def test_files_are_chosen_by_the_split_in_their_names_if_any_has_one(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        (tmp_path / "data" / f"{name}.jsonl").write_text(lines([{"name": name}]))
    assert [row["name"][:8] for row in open_rows(tmp_path).read(["name"])] == ["train-00", "train-00"]
    assert [row["name"][:4] for row in open_rows(tmp_path, split="test").read(["name"])] == ["test"]
    with pytest.raises(ValueError, match=r"prompts.split: the files of .* are named test, train, not 'dev'"):
        open_rows(tmp_path, split="dev")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", '{"x": 1}\n{"x": \n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", "", "is empty"),
        ("a.json", "[]", "is empty: expected a JSON array"),
        ("a.json", '[{"x": 1}, 2]', "entry 1: expected a JSON object, got int"),
        ("a.json", '[{"x": 1},', "cannot be read as JSON"),
        ("a.parquet", "no parquet", "cannot be read as Parquet"),
        ("a.csv", "x\n1\n", r"of an unknown kind; expected \.jsonl, \.json, \.parquet"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name(tmp_path, name, content, why):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=why):
        list(open_rows(tmp_path / name).read(["x"]))


def test_what_is_not_there_is_refused_without_asking_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    for path in (str(tmp_path / "none"), "./none", "none.parquet", "~/no-such-folder-of-prompts"):
        with pytest.raises(ValueError, match="no file or folder at"):
            open_rows(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no \.jsonl, \.json, \.parquet file in"):
        open_rows(tmp_path / "empty")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("no way there"),
        datasets.exceptions.DatasetGenerationError("bad rows"),
        FileNotFoundError("doesn't exist"),
        ValueError("bad split"),
    ],
)
def test_what_the_hub_refuses_is_a_readable_mistake(monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(ValueError, match=f"neither a file or folder here nor a data set .*{error}"):
        open_rows("somebody/something")


def test_a_hub_id_is_loaded_by_name_configuration_and_split(monkeypatch):
    asked = []

    def load(path, name, split):
        asked.append((path, name, split))
        return datasets.Dataset.from_list(RECORDS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    rows = open_rows("somebody/something", "main", "train[:5]")
    assert asked == [("somebody/something", "main", "train[:5]")]
    assert list(rows.read(["text"])) == [{"text": record["text"]} for record in RECORDS]
