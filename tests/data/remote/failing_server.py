"""A small OpenAI-compatible server on localhost that fails on purpose, for the tests of draftlab.data.remote.

``script(number, body)`` says what happens to the ``number``-th request for an answer (from 0, probes not counted): None
answers it, the other words are the branches of ``_Handler.fail``.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LETTERS = "abcdefghijklmnopqrstuvwxyz "


class FailingServer:
    """Serves in a thread between ``with`` and its end."""

    def __init__(
        self,
        tokenizer,
        script: Callable | None = None,
        *,
        model: str = "tiny",
        port: int = 0,
        answer_tokens: int = 12,
        extra_tokens: int = 0,  # added to every count of a text prompt that has an even length
        personality: int = 0,  # another one answers otherwise
        tokenize: str = "yes",  # yes, no, or shifted: other ids
        delay: float = 0.0,
        strict: bool = False,  # refuses fields that OpenAI does not have
        key: str | None = None,
    ) -> None:
        self.tokenizer, self.script, self.model, self.answer_tokens = tokenizer, script, model, answer_tokens
        self.extra_tokens, self.personality, self.tokenize = extra_tokens, personality, tokenize
        self.delay, self.strict, self.key = delay, strict, key
        self.bodies: list[dict] = []  # of requests for an answer
        self.times: list[float] = []
        self.lock = threading.Lock()
        self.in_flight = self.most_in_flight = 0
        server = self

        class Handler(_Handler):
            owner = server

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_port
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FailingServer:
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self.http.shutdown()
        self.http.server_close()

    def answer(self, prompt, seed: int, max_tokens: int) -> tuple[str, str, int]:
        """(text, finish_reason, tokens), the same for the same prompt and seed; about half of the answers end."""
        rng = random.Random(f"{self.personality}-{prompt}-{seed}")
        text = "".join(rng.choice(LETTERS) for _ in range(max_tokens))
        end = rng.randrange(1, 2 * max_tokens)
        if end < max_tokens:
            return text[:end], "stop", end + 1
        return text, "length", max_tokens


def free_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


class _Handler(BaseHTTPRequestHandler):
    owner: FailingServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        if self._authorised():
            self.send(200, {"object": "list", "data": [{"id": self.owner.model, "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._authorised():
            return
        if self.path == "/tokenize":
            return self._tokenize(body)
        own = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty"}
        if self.owner.strict and set(body) - own:
            return self.send(400, {"error": {"message": f"unknown fields {sorted(set(body) - own)}"}})
        if body["max_tokens"] != self.owner.answer_tokens:
            return self.reply(body)
        with self.owner.lock:
            number = len(self.owner.bodies)
            self.owner.bodies.append(body)
            self.owner.times.append(time.monotonic())
            self.owner.in_flight += 1
            self.owner.most_in_flight = max(self.owner.most_in_flight, self.owner.in_flight)
        try:
            time.sleep(self.owner.delay)
            what = self.owner.script(number, body) if self.owner.script else None
            self.fail(what, body) if what else self.reply(body)
        finally:
            with self.owner.lock:
                self.owner.in_flight -= 1

    def fail(self, what: str, body: dict) -> None:
        if what.isdigit():
            self.send(int(what), {"error": {"message": f"as asked, with key {self.headers['Authorization']}"}})
        elif what == "429 later":
            self.send(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.6"})
        elif what == "hang":
            time.sleep(3)
            self.close_connection = True
        elif what == "cut":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "5000")
            self.end_headers()
            self.wfile.write(b'{"id": "x", "choices": [{"text": "half an ans')
            self.close_connection = True
        elif what == "rubbish json":
            self.send_bytes(200, b"{'no': json,,", "application/json")
        elif what == "html":
            self.send_bytes(200, b"<html>It works!</html>", "text/html")
        elif what == "other json":
            self.send(200, {"hello": ["world"]})
        elif what == "no reason":
            self.reply(body, finish_reason=None)
        elif what == "empty":
            self.reply(body, text="")
        elif what == "ended at once":
            self.reply(body, text="", finish_reason="stop", tokens=1)
        elif what == "end token":
            self.reply(body, text="fine<|im_end|>\nand more", finish_reason="length")
        elif what == "thinking":
            self.reply(body, text="hmm</think>\n\nyes", finish_reason="stop")
        elif what == "other count":
            self.reply(body, prompt_tokens=3)
        else:
            raise AssertionError(f"the script asks for {what!r}")

    def reply(self, body: dict, **changes) -> None:
        """An answer, with ``changes`` to what is right."""
        prompt = body["prompt"]
        text, reason, tokens = self.owner.answer(prompt, body["seed"] * (body["temperature"] > 0), body["max_tokens"])
        counted = len(prompt)
        if isinstance(prompt, str):
            counted = len(self.owner.tokenizer(prompt, add_special_tokens=False)["input_ids"])
            counted += self.owner.extra_tokens * (len(prompt) % 2 == 0)
        usage = {
            "prompt_tokens": changes.get("prompt_tokens", counted),
            "completion_tokens": changes.get("tokens", tokens),
        }
        choice = {"index": 0, "text": changes.get("text", text), "finish_reason": changes.get("finish_reason", reason)}
        usage["total_tokens"] = sum(usage.values())
        completion = {"id": "x", "object": "text_completion", "created": 0, "model": body["model"]}
        self.send(200, completion | {"choices": [choice], "usage": usage})

    def _tokenize(self, body: dict) -> None:
        if self.owner.tokenize == "no":
            return self.send(404, {"error": {"message": "no such path"}})
        ids = list(self.owner.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"])
        shift = 1 if self.owner.tokenize == "shifted" else 0
        self.send(200, {"count": len(ids), "tokens": [token + shift for token in ids]})

    def _authorised(self) -> bool:
        right = self.owner.key is None or self.headers["Authorization"] == f"Bearer {self.owner.key}"
        if not right:
            self.send(401, {"error": {"message": f"wrong key {self.headers['Authorization']}"}})
        return right

    def send(self, status: int, value: dict, headers: dict | None = None) -> None:
        self.send_bytes(status, json.dumps(value).encode(), "application/json", headers)

    def send_bytes(self, status: int, content: bytes, kind: str, headers: dict | None = None) -> None:
        self.send_response(status)
        for name, text in ({"Content-Type": kind, "Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)
