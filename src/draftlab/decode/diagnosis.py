"""Why is the accepted length low? A checklist that reads a run, its answers and its target, and says what it finds.

    checkpoint and configuration -> answers -> target -> both passes of the drafter -> rows, diagnosis.json

Answers that have gone, or an evaluation that was not made, cost the rows that need them and nothing else; a checkpoint that does
not fit, or a target whose teacher states are wrong, ends the list there, since nothing behind would mean anything. The judgements
stand in :mod:`draftlab.decode.findings`, the measurements in :mod:`draftlab.decode.examination`.

    diagnose(Path("outputs/demo"), Questions(benchmarks, max_new_tokens=128))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
import torch
from omegaconf import DictConfig

from draftlab.data.answers import read_manifest
from draftlab.data.chat import Chat
from draftlab.data.files import write_json
from draftlab.data.vocabulary import choose_draft_vocabulary, token_counts
from draftlab.decode import findings as rows
from draftlab.decode.examination import acceptance, stored_gap, train_serve_gaps
from draftlab.decode.findings import FAULT, Finding
from draftlab.decode.records import EVALUATION
from draftlab.decode.suites import Benchmark
from draftlab.decode.trained import CHOICES, read_run_config
from draftlab.target import find_device, load_target, load_tokenizer
from draftlab.target.products import freeze_products
from draftlab.training.build import Parts, build
from draftlab.training.checkpoint import ADDED_LATER, PREFIX, describe, read_checkpoint

FILE = "diagnosis.json"
PROMPTS = 2  # decoded, to compare both passes of the drafter
SAMPLES = 24  # conversations of either side on which acceptance is measured
STORED_GAP = 0.05  # relative distance of stored features, of which bfloat16 products take a tenth
FLOAT32_GAP, COARSE_GAP = 1e-3, 0.05  # total variation that rounding may cost, in float32 and in coarser dtypes


@dataclass(frozen=True)
class Questions:
    """What the drafter is to decode: benchmarks, new tokens, thinking mode (None: that of training), device, checkpoint."""

    benchmarks: Sequence[Benchmark]
    max_new_tokens: int = 128
    thinking: bool | None = None
    device: str = "auto"
    checkpoint: str = "best"


@dataclass
class Case:
    """What is known of a run while it is diagnosed."""

    folder: Path
    config: DictConfig
    parts: Parts
    checkpoint: dict[str, Any]
    questions: Questions
    tokenizer: Any = None
    data: Any = None  # None: the answers cannot be read, and ``why`` says why
    why: str = ""

    @property
    def drafter(self):
        """The run's drafter."""
        return self.parts.drafter

    def chat(self, thinking: bool) -> Chat:
        """The target's chat in one mode."""
        return Chat(self.tokenizer, thinking, self.parts.spec.eos_token_ids)

    @property
    def used_chat(self) -> Chat:
        """The chat that the evaluation uses."""
        asked = self.questions.thinking
        return self.chat(self.parts.spec.thinking if asked is None else asked)

    def prompts(self) -> list[list[int]]:
        """Token ids of all prompts, a prompt of each benchmark in turn."""
        by_benchmark = [list(benchmark.prompts) for benchmark in self.questions.benchmarks]
        most = max(map(len, by_benchmark))
        in_turn = [prompts[i] for i in range(most) for prompts in by_benchmark if i < len(prompts)]
        return [self.used_chat.prompt_ids(list(prompt.messages), tools=prompt.tools) for prompt in in_turn]

    def held(self, indices: Sequence[int]) -> list:
        """Up to SAMPLES conversations of ``indices``, spread over them."""
        step = max(1, len(indices) // SAMPLES)
        return [self.data.samples[index] for index in indices[::step][:SAMPLES]]


def diagnose(folder: Path, questions: Questions) -> None:
    """Examine run ``folder``, print a row as soon as it is known, and write diagnosis.json.

    Raises:
        ValueError: there are faults; and what :func:`examine` raises.
    """
    found = []
    for finding in examine(folder, questions):
        print(finding, flush=True)
        found.append(finding)
    write_json(folder / FILE, [asdict(finding) for finding in found])
    print(f"diagnosis: {folder / FILE}")
    faults = [finding.check for finding in found if finding.verdict == FAULT]
    if faults:
        raise ValueError(f"{len(faults)} of {len(found)} checks found a fault: {'; '.join(faults)}")


def examine(folder: Path, questions: Questions) -> Iterator[Finding]:
    """The rows, each as soon as it is known.

    Raises:
        ValueError: no run, no whole checkpoint, or a configuration that is refused by itself.
    """
    config = read_run_config(folder)
    path = CHOICES[questions.checkpoint](folder) if questions.checkpoint in CHOICES else Path(questions.checkpoint)
    parts = build(config)
    case = Case(folder, config, parts, read_checkpoint(path), questions)
    expected, found = ADDED_LATER | describe(parts.drafter), case.checkpoint.get("draftlab", {})
    yield from rows.stamp_findings(expected, ADDED_LATER | found if found else {})
    case.tokenizer = load_tokenizer(parts.spec)
    _open_data(case)
    yield from _text_rows(case)
    problem = _load_weights(case)
    if problem is not None:
        yield problem
        return
    try:
        target = load_target(parts.spec, find_device(questions.device))
        prompts = case.prompts()
        for prompt in prompts[:PROMPTS]:
            target.self_check(torch.tensor([prompt]))
    except ValueError as error:
        yield rows.teacher_finding(str(error))
        return
    yield rows.teacher_finding(None)
    parts.drafter.to(target.device).attach(target.ends)
    yield from _stored_rows(case, target)
    coarse = torch.finfo(target.dtype).eps > torch.finfo(torch.float32).eps
    gaps = train_serve_gaps(target, parts.drafter, prompts[:PROMPTS])
    yield rows.mismatch_finding(gaps, COARSE_GAP if coarse else FLOAT32_GAP)
    yield from _acceptance_rows(case, target)


def _open_data(case: Case) -> None:
    """Read the answers that the run was trained on, if they are still there."""
    data = hydra.utils.instantiate(case.config.data)
    try:
        case.data = data.load(case.parts.spec, case.tokenizer)
    except ValueError as error:
        case.why = str(error).splitlines()[0]


def _load_weights(case: Case) -> Finding | None:
    """Load the checkpoint's weights whatever its description says; the row of those that do not fit."""
    state = case.checkpoint["state_dict"]
    try:
        case.drafter.load_state_dict({k.removeprefix(PREFIX): v for k, v in state.items() if k.startswith(PREFIX)})
    except RuntimeError as error:
        told = str(error).splitlines()
        advice = "evaluate this checkpoint with the configuration that it was trained with"
        return Finding(
            "weights", FAULT, "tensors that fit the configuration", told[min(1, len(told) - 1)].strip(), advice
        )
    freeze_products(case.drafter.eval())
    return None


# Text: who wrote it, template, thinking, mask token, lengths, draft vocabulary


def _text_rows(case: Case) -> Iterator[Finding]:
    spec, manifests = case.parts.spec, _manifests(case)
    writers = [((manifest or {}).get("target") or {}).get("name") for manifest in manifests]
    if manifests:
        yield rows.writer_finding(spec.name, writers)
    trained = case.checkpoint.get("text", {}).get("template")
    if trained is None:  # a checkpoint of an earlier version; answers of the target itself name the template, too
        trained = next((manifest["template"] for manifest in manifests if manifest and "template" in manifest), None)
    now = {mode: case.chat(mode).template_hash for mode in (False, True)}
    yield rows.template_finding(trained, now)
    mode = trained if trained in now.values() else bool(spec.thinking)
    yield rows.thinking_finding(mode, now, case.used_chat.thinking, _has_modes(case))
    longest = max(map(len, case.prompts())) + case.questions.max_new_tokens + case.parts.block.block_size + 1
    if case.data is None:
        yield rows.unknown("answers", "those that it was trained on", case.why)
        yield rows.length_finding(case.config.data.max_length, longest, spec.max_position)
        return
    samples = case.data.samples
    count = sum(int((sample.input_ids == spec.mask_token_id).sum()) for sample in samples)
    yield rows.mask_use_finding(count, case.tokenizer.convert_ids_to_tokens(spec.mask_token_id), len(samples))
    trained_on = max(len(samples[index]) for index in case.data.train_indices)
    yield rows.length_finding(trained_on, longest, spec.max_position)


def _manifests(case: Case) -> list[dict | None]:
    """Identity of every folder of answers, None of a file without one; nothing where none can be read."""
    if case.data is None:
        return []
    manifests = [read_manifest(folder) if folder.is_dir() else None for folder in case.data.folders]
    return [manifest.get("identity") if manifest else None for manifest in manifests]


def _has_modes(case: Case) -> bool:
    """Whether the template renders the two thinking modes differently."""
    question, answer = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
    told = [(chat.prompt_ids([question]), chat.render([question, answer])) for chat in map(case.chat, (False, True))]
    return told[0] != told[1]


# Numbers: stored features, draft vocabulary, acceptance


def _stored_rows(case: Case, target) -> Iterator[Finding]:
    """Features that lie on the disk, against those that the target makes now; no row where none do."""
    if case.data is None:
        return
    try:
        gap = stored_gap(case.data, target, case.drafter)
    except ValueError as error:
        yield rows.stored_finding(float("nan"), STORED_GAP, str(error))
        return
    if gap is not None:
        yield rows.stored_finding(gap, STORED_GAP)


def _acceptance_rows(case: Case, target) -> Iterator[Finding]:
    data, drafter = case.data, case.drafter
    if data is None:
        return
    if drafter.draft_ids is not None:
        counts = [_counts(case, indices) for indices in (data.train_indices, data.val_indices)]
        best = choose_draft_vocabulary(counts[0], drafter.draft_vocab_size).coverage
        covered = [float(count[drafter.draft_ids.cpu()].sum() / count.sum().clamp_min(1)) for count in counts]
        yield rows.coverage_finding(
            *(covered if data.val_indices else [covered[0]] * 2), best, drafter.draft_vocab_size
        )
    train = acceptance(target, drafter, case.parts.loss, case.held(data.train_indices))
    if not data.val_indices:
        yield rows.unknown("training text against held-out text", "both", "data.val_samples is 0")
        return
    held_out = acceptance(target, drafter, case.parts.loss, case.held(data.val_indices))
    yield rows.acceptance_finding(train, held_out)
    yield rows.decoding_finding(_decoded(case.folder), held_out[0])


def _counts(case: Case, indices: Sequence[int]) -> torch.Tensor:
    samples = [case.data.samples[index] for index in indices]
    return token_counts((sample.input_ids[sample.loss_mask] for sample in samples), case.parts.spec.vocab_size)


def _decoded(folder: Path) -> float | None:
    """Accepted length at T=1 of the evaluation in ``folder``, if there is one."""
    if not (folder / EVALUATION).is_file() or not (folder / "rounds.parquet").is_file():
        return None
    rounds = pd.read_parquet(folder / "rounds.parquet")
    committed = rounds[rounds.temperature == 1.0].committed
    return float(committed.mean()) if len(committed) else None
