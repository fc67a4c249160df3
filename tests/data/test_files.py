"""Files: JSONL is refused with its line number, writes are whole, identities are compared."""

from __future__ import annotations

import json

import pytest

from draftlab.data import files


def test_a_malformed_line_is_refused_with_its_number(tmp_path):
    path = tmp_path / "a.jsonl"
    for line, why in (('{"a": 1', "not valid JSON"), ("[1]", "expected a JSON object, got list")):
        path.write_text('{"a": 1}\n\n' + line + "\n")
        with pytest.raises(ValueError, match=f"a.jsonl, line 3: {why}"):
            list(files.read_jsonl(path))


def test_an_empty_or_missing_file_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(ValueError, match="is empty"):
        list(files.read_jsonl(tmp_path / "empty.jsonl"))
    with pytest.raises(ValueError, match="no such JSONL file"):
        list(files.read_jsonl(tmp_path / "missing.jsonl"))


def test_a_file_that_is_not_utf8_is_refused_as_such(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes('{"a": "é"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        list(files.read_jsonl(tmp_path / "latin.jsonl"))


def test_separators_inside_a_string_do_not_end_a_line(tmp_path):
    """U+2028 is a line break for str.splitlines, not for JSONL."""
    files.append_lines(tmp_path / "a.jsonl", [{"a": "x\u2028y\u0085z"}, {"a": "w"}])
    assert [record["a"] for _, record in files.read_jsonl(tmp_path / "a.jsonl")] == ["x\u2028y\u0085z", "w"]


def test_a_torn_last_line_is_cut_off_and_whole_lines_stay(tmp_path):
    path = tmp_path / "a.jsonl"
    files.append_lines(path, [{"a": 1}, {"a": 2}])
    whole = path.read_bytes()
    assert not files.drop_torn_line(path)
    path.write_bytes(whole + b'{"a": 3')
    assert files.drop_torn_line(path)
    assert path.read_bytes() == whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    """Case 13: a full disk or a killed writer never leaves half a file."""
    path = tmp_path / "manifest.json"
    files.write_json(path, {"old": True})

    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        files.write_json(path, {"new": True})
    assert json.loads(path.read_text()) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_differing_key_is_named_with_its_path():
    expected, found = {"a": 1, "b": {"c": [1], "d": 2}}, {"a": 1, "b": {"c": [1], "d": 3}}
    assert files.first_difference(expected, found) == ("b.d", 2, 3)
    assert files.first_difference(expected, {"a": 1}) == ("b", {"c": [1], "d": 2}, None)
    assert files.first_difference(expected, expected) is None


def test_a_project_path_does_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    here = files.resolve_path("project:data/demo")
    monkeypatch.chdir(tmp_path)
    assert files.resolve_path("project:data/demo") == here
    assert (here.parents[1] / "conf").is_dir()
    assert files.resolve_path("answers") == tmp_path / "answers"
