"""Run folders with made-up rounds, written as src/evaluate.py writes them."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

DOMAINS = {"math": 0.86, "code": 0.78, "chat": 0.6}


@dataclass
class FakeRun:
    """Draws rounds from known conditional acceptances; ``decay`` is lost from one position to the next."""

    folder: Path
    temperatures: tuple[float, ...] = (0.0, 1.0)
    prompts: int = 12  # a domain
    gamma: int = 7
    decay: float = 0.03
    shift: float = 0.0
    confidence: bool = True
    seed: int = 0
    settings: dict = field(default_factory=dict)

    def write(self) -> Path:
        generator = np.random.default_rng(self.seed)
        rows, texts, counts = [], [], []
        for temperature in self.temperatures:
            for domain, first in DOMAINS.items():
                for index in range(self.prompts):
                    prompt_id = f"{domain}-{index}"
                    level = first + self.shift + generator.normal(0.0, 0.04) - 0.05 * temperature
                    rows += self._rounds(generator, temperature, domain, prompt_id, level)
                    texts.append({"temperature": temperature, "benchmark": "heldout", "domain": domain})
                    texts[-1] |= {"prompt_id": prompt_id, "text": "…", "num_tokens": 64, "finish_reason": "stop"}
                counts.append({"temperature": temperature, "benchmark": "heldout", "domain": domain})
                counts[-1] |= {"prompts": self.prompts, "stopped": self.prompts - 2, "truncated": 2}
        self.folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_parquet(self.folder / "rounds.parquet")
        (self.folder / "outputs.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
        self._metrics(generator).to_csv(self.folder / "metrics.csv", index=False)
        hydra = self.folder / ".hydra"
        hydra.mkdir(exist_ok=True)
        (hydra / "config.yaml").write_text("drafter:\n  num_layers: 2  # <script>alert(1)</script>\n", encoding="utf-8")
        (hydra / "overrides.yaml").write_text("- experiment=demo\n- seed=3\n", encoding="utf-8")
        (self.folder / "evaluation.json").write_text(json.dumps(self._evaluation(counts)), encoding="utf-8")
        return self.folder

    def _rounds(self, generator, temperature, domain, prompt_id, level):
        rows = []
        for number in range(int(generator.integers(10, 30))):
            conditional = np.clip(level - self.decay * np.arange(self.gamma), 0.02, 0.98)
            accepted = int(np.cumprod(generator.random(self.gamma) < conditional).sum())
            row = {"temperature": temperature, "benchmark": "heldout", "domain": domain, "prompt_id": prompt_id}
            row |= {"round": number, "proposed": self.gamma, "accepted": accepted, "committed": accepted + 1}
            noise = generator.normal(0.0, 0.05, self.gamma)
            row["confidence"] = np.clip(conditional + noise + 0.04, 0.0, 1.0).tolist() if self.confidence else None
            rows.append(row)
        return rows

    def _metrics(self, generator):
        steps = np.arange(10, 610, 10)
        loss = 1.9 - 0.9 * (1 - np.exp(-steps / 150)) + generator.normal(0, 0.03, len(steps))
        length = 1.0 + 0.7 * (1 - np.exp(-steps / 200)) + generator.normal(0, 0.03, len(steps))
        train = pd.DataFrame({"step": steps, "epoch": 0, "train/loss": loss, "train/accepted_length": length})
        held_out = pd.DataFrame({"step": steps[9::10], "val/loss": loss[9::10] + 0.05})
        held_out["val/accepted_length"] = length[9::10] - 0.05
        return pd.concat([train, held_out]).sort_values("step")

    def _evaluation(self, counts):
        speed = [
            {"temperature": temperature, "plain_tokens_per_s": 40.0, "speculative_tokens_per_s": 52.0, "ratio": 1.3}
            for temperature in self.temperatures
        ]
        settings = {"target": "tiny", "drafter": "dspark", "gamma": self.gamma, "thinking": False, "top_k": None}
        settings |= {"top_p": 1.0, "temperatures": list(self.temperatures), "max_new_tokens": 256} | self.settings
        return {
            "settings": settings,
            "counts": counts,
            "speed": speed,
            "command": "python src/evaluate.py run=outputs/x",
        }


FAMILIES = {"dspark": ("DSpark", "MarkovHead"), "dflash": ("DFlash", "NoHead")}


@pytest.fixture
def fake_run(tmp_path):
    """``fake_run("name", **fields) -> folder`` of an evaluated run."""

    def write(name="run", **fields):
        return FakeRun(tmp_path / name, **fields).write()

    return write


@pytest.fixture
def trained(fake_run):
    """``trained("name", drafter, depth=, gamma=, seed=, rate=, clock=) -> folder`` with a recorded configuration."""
    made = []

    def write(name, drafter="dspark", depth=2, gamma=7, seed=0, rate=0.002, clock=None):
        family, head = FAMILIES[drafter]
        made.append(name)
        folder = fake_run(name, gamma=gamma, seed=len(made), prompts=3, temperatures=(1.0,))
        config = {
            "run_name": name,
            "seed": seed,
            "drafter": {"_target_": f"draftlab.drafters.{family}", "num_layers": depth},
            "head": {"_target_": f"draftlab.heads.{head}"},
            "block": {"block_size": gamma},
            "trainer": {"optimizer": {"lr": rate}},
        }
        (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        if clock is not None:
            evaluation = json.loads((folder / "evaluation.json").read_text())
            draft, verify, rounds = clock
            evaluation["speed"][0] |= {"draft_seconds": draft, "verify_seconds": verify, "rounds": rounds}
            (folder / "evaluation.json").write_text(json.dumps(evaluation), encoding="utf-8")
        return folder

    return write
