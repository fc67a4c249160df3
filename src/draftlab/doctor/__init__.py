"""What this machine has and lacks for DraftLab: ``python -m draftlab doctor``.

    finding.py    one line of it       packages.py   versions against the ranges of the package's metadata
    machine.py    devices, memory      caches.py     what lies where, and which targets are there
    tools.py      programs, logins     page.py       tables, and the exit code

Nothing is changed, nothing is fetched, and no key or token is shown.
"""
