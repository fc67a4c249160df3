"""benchmarks/packing.py: both layouts train the same blocks, and the last line says what packing saves."""

import importlib.util
import json
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "packing.py"
SMALL = ["experiment=demo", "head.rank=4", "drafter.num_layers=1", "trainer.num_anchors=2", "data.prompts.count=2"]


def test_packed_rows_have_less_padding_and_the_same_blocks(monkeypatch, capsys):
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_packing", SCRIPT)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    words = [
        "batch=2",
        "shortest=8",
        "longest=40",
        "prompt=7",
        "steps=1",
        "shuffled=true",
        f"overrides=[{','.join(SMALL)}]",
    ]
    monkeypatch.setattr(sys, "argv", ["packing.py", *words])
    benchmark.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["packing_gain"] > 0 and figures["packed_padding"] == 0 < figures["padded_padding"]
    assert figures["packed_filler_blocks"] <= figures["padded_filler_blocks"]
