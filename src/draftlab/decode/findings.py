"""What a diagnosis finds: one row a known cause of a low accepted length, judged from plain facts.

    found                             as it should be -> ok      could cost something -> warn      costs tokens -> fault

Everything here is a pure function of numbers and words; :mod:`draftlab.decode.diagnosis` gathers them.

    >>> coverage_finding(1.0, 0.97, 1.0, size=8192).verdict
    'ok'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OK, WARN, FAULT = "ok", "warn", "fault"
LAYOUT = ("block_size", "sample_from_anchor")
MASK = "mask_token_id"
# Below these something is wrong, not merely small. A covered share of 0.85 ends every seventh round at its first token.
FEW_COVERED, HARDLY_COVERED, BEST_CHOICE = 0.95, 0.85, 0.02
LEARNED_NOTHING = 0.15  # accept rate of the first token on training text
GENERALISES, DECODES = 0.75, 0.6  # of the accepted tokens without the bonus one


@dataclass(frozen=True)
class Finding:
    """One row: ``verdict`` is ok, warn or fault; ``advice`` says what to do where it is not ok."""

    check: str
    verdict: str
    expected: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        if self.verdict == OK:
            return f"{self.verdict:5}  {self.check}: {self.found}"
        lines = [f"{self.verdict:5}  {self.check}", f"expected: {self.expected}", f"found:    {self.found}"]
        return "\n         ".join([*lines, *([f"to do:    {self.advice}"] if self.advice else [])])


def unknown(check: str, expected: str, reason: str) -> Finding:
    """A check that could not be made, which is a warning."""
    return Finding(check, WARN, expected, f"could not be checked: {reason}", "make it possible and diagnose again")


def stamp_findings(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[Finding]:
    """What the checkpoint says it was trained for (``found``) against the run's configuration: layout, mask token, the rest."""
    rows = [("block layout", LAYOUT), ("mask token", (MASK,))]
    rows.append(("target, head and layers", tuple(key for key in expected if key not in (*LAYOUT, MASK))))
    findings = []
    for check, keys in rows:
        wanted, got = (_words({key: values.get(key) for key in keys}) for values in (expected, found))
        different = {key: (expected.get(key), found.get(key)) for key in keys if expected.get(key) != found.get(key)}
        if not different:
            findings.append(Finding(check, OK, wanted, wanted))
            continue
        findings.append(
            Finding(
                check,
                FAULT,
                _words({key: pair[0] for key, pair in different.items()}),
                _words({key: pair[1] for key, pair in different.items()}) if found else got,
                "weights fit the other value and then draft rubbish: evaluate with the .hydra/config.yaml that trained "
                "this checkpoint, or train again",
            )
        )
    return findings


def mask_use_finding(count: int, token: str, samples: int) -> Finding:
    """Whether the mask token stands in the training text ``count`` times, where it would mean something else."""
    expected, found = f"{token!r} nowhere in the answers", f"{count} times in {samples} conversations"
    if count == 0:
        return Finding("mask token in the text", OK, expected, f"{token!r} {found}")
    advice = "set target.mask_token_id to a token that chats do not use, and train again"
    return Finding("mask token in the text", WARN, expected, found, advice)


def writer_finding(target: str, writers: Sequence[str | None]) -> Finding:
    """Whether the target wrote the answers itself; ``writers`` one a folder, None where nothing says who."""
    check, expected = "answers of the target itself", f"written by {target}"
    others = sorted({str(writer) for writer in writers if writer not in (target, None)})
    if others:
        advice = "a drafter learns what its target says: write answers with python src/prepare.py stage=responses"
        return Finding(check, FAULT, expected, f"written by {', '.join(others)}", advice)
    if None in writers:
        return unknown(check, expected, "a file without a manifest does not say who wrote it")
    return Finding(check, OK, expected, expected)


def template_finding(trained: str | None, now: Mapping[bool, str]) -> Finding:
    """Chat template in training (digest ``trained``) against today's digests ``now``, one by thinking mode."""
    check, expected = "chat template", "the template of training"
    if trained is None:
        return unknown(check, expected, "neither checkpoint nor answers name one")
    if trained in now.values():
        return Finding(check, OK, expected, f"{trained}, as in training")
    advice = "give the tokenizer the template of training (target.path, target.revision), or prepare and train again"
    return Finding(check, FAULT, f"digest {trained}", f"digest {' or '.join(now.values())}", advice)


def thinking_finding(trained: str | bool | None, now: Mapping[bool, str], used: bool, has_mode: bool) -> Finding:
    """Thinking mode of training (a digest of ``now``, or the configuration's word) against the one ``used`` to decode."""
    check = "thinking mode"
    if not has_mode:
        return Finding(check, OK, "any", "the template renders both modes alike")
    modes = {digest: mode for mode, digest in now.items()}
    mode = trained if isinstance(trained, bool) else modes.get(trained)
    if mode is None:
        return unknown(check, "the mode of training", "the template of training is not known")
    if mode == used:
        return Finding(check, OK, f"thinking={used}", f"thinking={used}, as in training".lower())
    advice = f"evaluate with thinking={str(mode).lower()}, or write answers and train in the other mode"
    return Finding(check, FAULT, f"thinking={mode}".lower(), f"thinking={used}".lower(), advice)


def teacher_finding(error: str | None) -> Finding:
    """``error``: why the target's last hidden states are not those that its logits are made of; None if they are."""
    check, expected = "teacher states (final norm, scales, cap)", "the LM head over them gives the target's own logits"
    if error is None:
        return Finding(check, OK, expected, expected)
    return Finding(
        check, FAULT, expected, error, "correct the target's description, make the features anew, train again"
    )


def stored_finding(gap: float, allowed: float, error: str | None = None) -> Finding:
    """Relative distance ``gap`` of stored features from those that the target makes now."""
    check, expected = "stored features", f"within {allowed:.1%} of what the target says now"
    advice = "remove the stored features (data.cache_dir, or the cache) and train again"
    if error is not None:
        return Finding(check, FAULT, expected, error, advice)
    return Finding(
        check, OK if gap <= allowed else FAULT, expected, f"{gap:.2%} apart", "" if gap <= allowed else advice
    )


def mismatch_finding(gaps: Sequence[float], allowed: float) -> Finding:
    """Total variation ``gaps`` between the draft law in training and in the decode loop, one a slot of the same texts."""
    check, expected = "training against serving", f"the same draft law (total variation below {allowed:g} on average)"
    if not gaps:
        return unknown(check, expected, "no round was decoded")
    mean, found = (
        sum(gaps) / len(gaps),
        f"{sum(gaps) / len(gaps):.2g} on average, {max(gaps):.2g} at most, {len(gaps)} slots",
    )
    if mean <= allowed:
        return Finding(check, OK, expected, found)
    advice = (
        "decoding feeds the drafter otherwise than training did: look at positions, at the features of the context, at "
        "attention and at dtypes; a fault of DraftLab if nothing was changed"
    )
    return Finding(check, FAULT, expected, found, advice)


def length_finding(trained: int, longest: int, positions: int | None) -> Finding:
    """Tokens that decoding may reach (prompt and answer, ``longest``) against the longest conversation ``trained`` on."""
    check, expected = "context length", f"at most the {trained} tokens of training"
    found = f"{longest} tokens with prompt and answer"
    if positions is not None and longest > positions:
        advice = f"the target itself has {positions} positions: lower max_new_tokens"
        return Finding(check, FAULT, f"at most {positions} positions", found, advice)
    if longest <= trained:
        return Finding(check, OK, expected, f"{found}, {trained} in training")
    advice = "train on longer answers (data.max_length, responses.max_new_tokens), or lower max_new_tokens"
    return Finding(check, FAULT if longest > 2 * trained else WARN, expected, found, advice)


def coverage_finding(train: float, held_out: float, best: float, size: int) -> Finding:
    """Share of supervised tokens that a reduced draft vocabulary of ``size`` holds, and the ``best`` such share."""
    check = "draft vocabulary"
    expected = (
        f"at least {FEW_COVERED:.0%} of the answers' tokens, and nearly the {best:.1%} that {size:,} tokens can cover"
    )
    found = f"{size:,} tokens cover {train:.1%} of training and {held_out:.1%} of held-out answers"
    if train < best - BEST_CHOICE:
        advice = "it was chosen on other answers: train again on these, or take the answers it was chosen on"
        return Finding(check, FAULT, expected, found, advice)
    if min(train, held_out) >= FEW_COVERED:
        return Finding(check, OK, expected, found)
    verdict = WARN if min(train, held_out) >= HARDLY_COVERED else FAULT
    return Finding(check, verdict, expected, found, "raise drafter.draft_vocab_size; a token outside it ends its round")


def acceptance_finding(train: tuple[float, float], held_out: tuple[float, float]) -> Finding:
    """(accepted length, accept rate of the first token) expected on training text and on held-out text."""
    check = "training text against held-out text"
    expected = f"accepted length on held-out text at least 1 + {GENERALISES:g} of what training text has over 1"
    found = f"{_length(*train)} on training text, {_length(*held_out)} on held-out text"
    if train[1] < LEARNED_NOTHING:
        advice = "it has hardly learned its own training text: train longer, look at the loss, the learning rate and the rows above"
        return Finding(check, FAULT, f"at least {LEARNED_NOTHING:g} of first tokens on training text", found, advice)
    gains = [value[0] - 1 if math.isfinite(value[0]) else value[1] for value in (train, held_out)]
    if gains[1] < GENERALISES * gains[0]:
        advice = "it knows its training text by heart: more and more varied answers help, more steps do not"
        return Finding(check, WARN, expected, found, advice)
    return Finding(check, OK, expected, found)


def decoding_finding(decoded: float | None, held_out: float) -> Finding:
    """Accepted length ``decoded`` at T=1 in the run's evaluation against the expected one on held-out answers."""
    check, expected = "decoding against held-out text", f"about the {held_out:.2f} of held-out text, somewhat less"
    if decoded is None or not math.isfinite(held_out):
        return unknown(check, expected, "no evaluation at T=1 lies in the run; python src/evaluate.py run=… makes one")
    found = f"{decoded:.2f} in the evaluation at T=1"
    if decoded - 1 >= DECODES * (held_out - 1):
        return Finding(check, OK, expected, found)
    advice = (
        "its prompts differ from the answers trained on, or a row above says why: train on prompts like those served"
    )
    return Finding(check, WARN, expected, found, advice)


def _length(length: float, first: float) -> str:
    whole = f"{length:.2f}" if math.isfinite(length) else "no whole block"
    return f"{whole} (first token {first:.2f})"


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
