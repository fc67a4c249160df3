"""Export a trained drafter for vLLM, SGLang or llama.cpp, with its calibration, a model card and the target's tokenizer.

    python src/export.py run=outputs/demo                                     the layout of released checkpoints
    python src/export.py run=outputs/demo format=speculators dtype=bfloat16
    python src/export.py run=outputs/demo format=gguf converter=llama.cpp/convert_hf_to_gguf.py
    python src/export.py run=outputs/demo hub=organisation/name licence=apache-2.0      says what it would upload

The folder appears as a whole; the same command given again finds it and does nothing, with another licence it writes the card anew.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import hydra
from omegaconf import DictConfig

from draftlab.cli import entry
from draftlab.runs import named_folder, read_run_config


@hydra.main(config_path="../conf", config_name="export", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, export, upload if asked to."""
    run = named_folder(cfg, "run", "outputs/demo")
    read_run_config(run)

    from draftlab.export.hub import check_name, upload
    from draftlab.export.run import ExportSettings, export_run

    settings = ExportSettings(**{field.name: cfg[field.name] for field in dataclasses.fields(ExportSettings)})
    if cfg.hub:
        check_name(cfg.hub)
    out = export_run(run, settings, Path(cfg.out) if cfg.out else None, cfg.checkpoint)
    print(f"export: {out}")
    if cfg.hub:
        upload(out, cfg.hub, cfg.hub_dry_run, cfg.hub_private)


if __name__ == "__main__":
    main()
