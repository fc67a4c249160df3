"""How each command of docs/ that the README does not have is executed by test_docs.py; see readme_examples.py."""

from __future__ import annotations

from commands import Example
from readme_examples import DECODE, TINY_TRAIN

EXAMPLES = {
    "python src/evaluate.py run=outputs/demo diagnose=true": Example(
        "limit=1 max_new_tokens=6",
        leaves="outputs/demo/diagnosis.json",
        prints="ok     block layout",
    ),
    "python src/train.py target=qwen3_8b plan=true": Example(prints="62.46"),
    "python src/train.py target=qwen3_14b plan=true": Example(prints="92.46"),
    "python src/train.py target=gemma4_12b plan=true": Example(prints="85.63"),
    "python src/train.py trainer=ddp target=qwen3_4b plan=true": Example(prints="512 = 4 × 16 × 8"),
    "python src/train.py trainer=fsdp target=qwen3_14b data.batch_size=1 trainer.settings.accumulate_grad_batches=64 "
    "plan=true": Example(prints="68.33"),
    "python src/train.py --config-dir=my target=qwen25_1b drafter=dspark plan=true": Example(prints="qwen25_1b"),
    "python src/train.py --config-dir=my head=trigram run_name=trigram": Example(
        f"{TINY_TRAIN} head.rank=8", leaves="outputs/trigram/metrics.csv"
    ),
    # The run that the line before it makes is the README's to make; any run stands for it.
    "python src/train.py init_from=outputs/adopted run_name=tuned trainer=laptop": Example(
        f"{TINY_TRAIN} init_from=outputs/demo", leaves="outputs/tuned/metrics.csv"
    ),
    "python src/evaluate.py run=outputs/trigram": Example(DECODE, leaves="outputs/trigram/report.html"),
    "python src/evaluate.py run=outputs/trigram diagnose=true": Example(
        "limit=1 max_new_tokens=6", prints="ok     training against serving"
    ),
}
