"""Programs beside Python, and logins: there or not, and what needs them. Keys and tokens are not shown.

tools()      # make, git, llama-server, llama.cpp's converter
logins()     # Hugging Face hub, W&B
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from draftlab.accounts import logged_in
from draftlab.doctor.finding import Finding


def tools() -> list[Finding]:
    """Programs, found as those that use them find them."""
    from draftlab.engines.llama import find_server
    from draftlab.export.gguf import SCRIPT, find_converter

    make, git = shutil.which("make"), shutil.which("git")
    serving = "engine=openai on this machine, src/engine_test.py"
    return [
        Finding("make", make) if make else _missing("make", "make demo, make test", "install make", needed=True),
        Finding("git", git) if git else _missing("git", "taking over changes of DraftLab", "install git"),
        _look("llama-server", find_server, serving, "make llama-server, or name another one in LLAMA_SERVER"),
        _look(SCRIPT, find_converter, "format=gguf", "make llama-converter"),
    ]


def logins() -> list[Finding]:
    """Whether somebody is logged in; nothing is asked of any server."""
    from huggingface_hub import get_token

    hub = Finding("Hugging Face hub", "logged in", "HF_TOKEN" if os.environ.get("HF_TOKEN") else "stored token")
    if get_token() is None:
        hub = Finding(
            "Hugging Face hub",
            "not logged in",
            lacks="gated targets (gemma4_12b), hub_dry_run=false",
            remedy="hf auth login",
        )
    wandb = Finding("W&B", "logged in", "WANDB_API_KEY" if os.environ.get("WANDB_API_KEY") else "netrc")
    if not logged_in("api.wandb.ai"):
        lacks = "online logging (runs are logged offline), report=wandb"
        wandb = Finding("W&B", "not logged in", lacks=lacks, remedy="wandb login")
    return [hub, wandb]


def _look(what: str, find: Callable[[None], Path], lacks: str, remedy: str) -> Finding:
    """What ``find`` finds for somebody who names no file, or why it does not."""
    try:
        return Finding(what, str(find(None)))
    except ValueError as error:
        missing = _missing(what, lacks, remedy)
        return replace(missing, note=str(error)) if "there is no file" in str(error) else missing


def _missing(what: str, lacks: str, remedy: str, needed: bool = False) -> Finding:
    return Finding(what, "not found", lacks=lacks, remedy=remedy, needed=needed)
