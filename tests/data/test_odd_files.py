"""Files that are JSON by name only, with marks, half characters or endless brackets: read alike everywhere, or refused by name."""

from __future__ import annotations

import pytest

from draftlab.data.files import MANIFEST, claim, read_json, read_jsonl, read_object

NESTED, HUGE, HALF = "[" * 100_000, "9" * 5000, '{"a": "\\ud83d"}'


@pytest.mark.parametrize(
    "text", [NESTED, HUGE, HALF, "{", "\x00", '"a" "b"'], ids=["nested", "huge", "half", "cut", "null", "two"]
)
def test_what_is_no_readable_json_is_refused_with_file_and_line(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json cannot be read as JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_text(f'{{"fine": 1}}\n{text}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: "):
        list(read_jsonl(tmp_path / "a.jsonl"))


def test_a_whole_pair_of_surrogates_is_the_character_that_it_means(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": "\\ud83d\\ude42 \\\\ud83d"}\n')
    assert list(read_jsonl(tmp_path / "a.jsonl")) == [(1, {"a": "🙂 \\ud83d"})]


def test_the_mark_and_line_ends_that_windows_editors_write_change_nothing(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}\r\n')
    assert list(read_jsonl(tmp_path / "a.jsonl")) == [(1, {"a": 1}), (3, {"a": 2})]
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(tmp_path / "a.json") == {"a": 1}


@pytest.mark.parametrize("text", ["[]", "null", "3", '"a"'])
def test_an_object_is_wanted_where_keys_are_read(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json: expected a JSON object"):
        read_object(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["[1]", "{}", '{"identity": null}', '{"identity": [1]}', '{"identity": {"a": 2}}'])
def test_a_manifest_without_a_readable_identity_claims_nothing(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json|made with another a"):
        claim(tmp_path, {"a": 1}, "features", "data.cache_dir")
