"""Whether somebody is logged in; the keys themselves are neither kept nor shown. The module knows nothing of what logs or uploads.

>>> logged_in("wandb.example.org")
False
"""

from __future__ import annotations

import netrc
import os
from pathlib import Path


def logged_in(host: str) -> bool:
    """Whether an API key for W&B at ``host`` is in the environment or in the user's netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path(os.environ.get("NETRC") or Path.home() / ("_netrc" if os.name == "nt" else ".netrc"))
    try:
        found = netrc.netrc(path).authenticators(host)
        return found is not None and bool(found[2])
    except (OSError, netrc.NetrcParseError):
        return False
