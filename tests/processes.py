"""What tests that start and stop processes share."""

import signal


def usual_signals() -> None:
    """``preexec_fn``: a test run under nohup, or in the background of a shell, hands ignored signals on to its children."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
