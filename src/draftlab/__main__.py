"""What the package itself answers; training and the rest are the scripts in src/.

python -m draftlab doctor       versions, devices, caches, logins, and what is missing for what
"""

from __future__ import annotations

import argparse


def main(words: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m draftlab", description="DraftLab; training starts with src/train.py."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="versions, devices, caches, logins, and what is missing for what")
    parser.parse_args(words)
    try:
        from draftlab.doctor.page import examine, show
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} is missing, so not even the doctor can look around: pip install -e .")
        return 1
    return show(examine())


if __name__ == "__main__":
    raise SystemExit(main())
