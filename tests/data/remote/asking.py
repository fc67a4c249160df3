"""What the tests of engine=openai share: a run against servers, what it left, and a server that comes late."""

from __future__ import annotations

import json

from failing_server import FailingServer, free_port

from draftlab.data.remote.engine import Service, served_identity, served_responses
from draftlab.data.remote.servers import ClientSettings
from draftlab.data.responses import ResponseSettings, responses_identity
from draftlab.sampling import Sampling

SETTINGS = ResponseSettings(Sampling(0.7, top_k=20, top_p=0.8), max_new_tokens=12, seed=3, max_prompt_tokens=300)
QUICK = {"rest_seconds": 0.02, "dead_minutes": 0.01, "concurrency": 4, "timeout": 10.0}


def write(chat, folder, prompts, urls, settings=SETTINGS, **client) -> dict:
    service = Service(urls, ClientSettings(**(QUICK | client)), names=["tiny"])
    local = responses_identity(chat, prompts, settings, {"name": "tiny", "dtype": "float32"})
    return served_responses(service, chat, prompts, folder, settings, served_identity(local, service))


def records(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]


def errors(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "errors.jsonl").read_text().splitlines()]


def ids(prompts) -> list[str]:
    return [prompt.id for prompt in prompts]


def failing_once(what: str, first: int = 2):
    """The first requests fail in the way ``what``, the others are answered."""
    return lambda number, body: what if number < first else None


class Latecomer:
    """A script that answers everything, and at the fourth request starts another server at ``port``."""

    def __init__(self, tokenizer, **options) -> None:
        self.port, self.server = free_port(), None
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._start = lambda: FailingServer(tokenizer, port=self.port, **options).__enter__()

    def __call__(self, number: int, body: dict) -> None:
        if number == 3:
            self.server = self._start()
