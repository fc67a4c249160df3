"""The page holds all that a reader needs to judge the numbers (case 24), in one file, and nothing from outside."""

import html
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from draftlab.report import write_report, write_reports
from draftlab.report.tables import length_table, with_interval


@pytest.fixture
def page(fake_run):
    folder = fake_run("demo", prompts=11, settings={"target": {"name": "smollm2_135m", "vocab_size": 49152}})
    return write_report(folder, show=False)


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", page.read_text(), flags=re.S)))


def test_the_page_states_what_case_24_asks_for(page):
    text = text_of(page)
    for part in (
        "accepted length (with bonus)",
        "accepted (without bonus)",
        "thinking mode off",
        "temperatures 0, 1",
        "new tokens at most 256",
        "bootstrap over prompts (2,000 resamples",
        "name smollm2_135m",
        "drafter dspark",
        "stopped truncated",
        "python src/train.py experiment=demo seed=3",
        "python src/evaluate.py run=outputs/x",
        "num_layers: 2",
    ):
        assert part in re.sub(r"\s+", " ", text), part


def test_the_pages_numbers_are_the_tables(page):
    text = text_of(page)
    rounds = pd.read_parquet(page.parent / "rounds.parquet")
    for _, row in length_table(rounds).iterrows():
        assert with_interval(row, "accepted_length") in text
        assert with_interval(row, "accepted") in text
    stored = pd.read_csv(page.parent / "tables" / "accepted_length.csv")
    assert stored["accepted_length"].tolist() == pytest.approx(
        length_table(rounds)["accepted_length"].tolist(), rel=1e-5
    )


def test_the_page_is_one_file_without_scripts_or_outside_addresses(page):
    source = page.read_text()
    assert "http" not in source and "<script" not in source and "url(" not in source and "@import" not in source
    addresses = re.findall(r'(?:src|href)="([^"]{0,40})', source)
    assert len(addresses) == 4 and all(address.startswith("data:image/png;base64,") for address in addresses)


def test_tags_are_closed_in_order(page):
    class Checker(HTMLParser):
        open_tags: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "img"):
                self.open_tags.append(tag)

        def handle_endtag(self, tag):
            assert self.open_tags.pop() == tag

    checker = Checker()
    checker.feed(page.read_text())
    assert checker.open_tags == []


def test_text_from_the_configuration_is_escaped(page):
    assert "<script>alert" not in page.read_text() and "&lt;script&gt;alert" in page.read_text()


def test_pictures_are_written_and_without_confidences_there_is_no_reliability(page, fake_run):
    names = {path.stem for path in (page.parent / "figures").glob("*.png")}
    assert names == {"conditional_acceptance", "accepted_length", "reliability", "training"}
    bare = fake_run("bare", confidence=False, prompts=3, temperatures=(1.0,))
    (bare / "metrics.csv").unlink()
    write_report(bare, show=False)
    assert {path.stem for path in (bare / "figures").glob("*.png")} == {"conditional_acceptance", "accepted_length"}


def test_a_second_report_replaces_the_first_and_leaves_no_partial_file(page):
    before = page.read_text()
    assert write_report(page.parent, show=False).read_text() == before
    assert not list(page.parent.rglob("*.partial"))


def test_mostly_truncated_answers_and_few_prompts_are_pointed_out(fake_run, monkeypatch):
    folder = fake_run(prompts=3)
    text = (folder / "evaluation.json").read_text().replace('"truncated": 2', '"truncated": 3')
    (folder / "evaluation.json").write_text(text)
    shown = text_of(write_report(folder, show=False))
    assert "were truncated at 256 tokens" in shown and "Fewer than 30 prompts" in shown


def test_the_table_on_the_terminal_shows_intervals(fake_run, capsys):
    write_report(fake_run("demo", prompts=3))
    shown = capsys.readouterr().out
    assert "all prompts" in shown and re.search(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", shown) and "report.html" in shown


def test_a_run_that_cannot_be_read_is_named_and_the_others_get_their_report(fake_run, tmp_path, capsys):
    good = fake_run("good", prompts=2)
    assert write_reports([tmp_path / "gone", good]) == [good / "report.html"]
    assert "left out: run folder" in capsys.readouterr().out
    with pytest.raises(ValueError, match="gone"):
        write_reports([tmp_path / "gone"])
