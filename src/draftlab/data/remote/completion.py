"""One request to an OpenAI-compatible server: what is asked, what counts as an answer, and what went wrong if none came.

The completions endpoint gets the *token ids* of our own rendering, not chat messages. So the server reads exactly what
the target reads in training and decoding: its template, thinking switch and default system prompt play no part (case
11), no reasoning parser takes text out of the answer, and a BOS token cannot be added twice. Every sampling field is sent,
since servers have defaults of their own (llama.cpp top-k 40 and min-p 0.05; vLLM those of generation_config). ``top_k``
is -1 where it is off: the one value that vLLM, SGLang and llama.cpp all read so.

An answer must say why it ended and count the prompt as long as it is. The module knows nothing of retries or files.

    reply = await complete(server, Request(ids, max_tokens=512, seed=3), Sampling(0.7), end_tokens)
"""

from __future__ import annotations

import base64
import email.utils
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from draftlab.data.remote.servers import ClientSettings, Fault, Server
from draftlab.sampling import Sampling

LONGEST_DETAIL = 300


@dataclass(frozen=True)
class Request:
    """A prompt as token ids (or as text, to see how the server tokenises it), and the limits of its answer."""

    prompt: list[int] | str
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Reply:
    """An answer; ``finished`` if the target ended it, ``tokens`` with the end token where the server gives them."""

    text: str
    finished: bool
    prompt_tokens: int | None
    completion_tokens: int | None
    tokens: list[int] | None = None


def connect(urls: list[str], settings: ClientSettings) -> list[Server]:
    """Servers with a client each; nothing is sent yet.

    Raises:
        ValueError: the ``openai`` package is not installed.
    """
    try:
        import openai
    except ImportError:
        raise ValueError('engine=openai needs the openai client: pip install "draftlab[serve]"') from None
    key = os.environ.get(settings.api_key_env) or "none"  # local servers want none, the client wants one
    return [
        Server(url, openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=settings.timeout))
        for url in urls
    ]


async def list_models(server: Server) -> list[str]:
    """Names under which the server lists its models.

    Raises:
        Fault: no list came.
    """
    try:
        page = await server.client.models.list()
        return [str(model.id) for model in page.data]
    except Exception as error:
        raise fault_of(error, server) from error


async def complete(server: Server, request: Request, sampling: Sampling, end_tokens: Mapping[int, str]) -> Reply:
    """Ask ``server`` once. ``end_tokens`` maps the ids that end an answer to their text.

    Raises:
        Fault: no answer, half of one, or one that cannot be to this prompt.
    """
    extra = extra_fields(sampling, list(end_tokens)) if server.takes_extra else {}
    try:
        completion = await server.client.completions.create(
            model=server.model,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=request.seed,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            extra_body=extra,
        )
    except Exception as error:
        raise fault_of(error, server) from error
    return read_reply(completion, request, end_tokens)


def extra_fields(sampling: Sampling, end_token_ids: list[int]) -> dict[str, Any]:
    """Fields beyond OpenAI's own that vLLM, SGLang and llama.cpp read; each ignores those it does not know."""
    return {
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,  # vLLM, SGLang
        "repeat_penalty": 1.0,  # llama.cpp
        "stop_token_ids": end_token_ids,
        "skip_special_tokens": False,
        "return_token_ids": True,  # vLLM
    }


def read_reply(completion: Any, request: Request, end_tokens: Mapping[int, str]) -> Reply:
    """The answer in ``completion``, whose fields may be anything.

    Raises:
        Fault: it is none, or not to this prompt.
    """
    choices = getattr(completion, "choices", None)
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(getattr(choices[0], "text", None), str):
        raise Fault("rubbish", f"expected one choice with a text, got {str(completion)[:LONGEST_DETAIL]!r}")
    choice, usage = choices[0], getattr(completion, "usage", None)
    if choice.finish_reason not in ("stop", "length"):
        raise Fault("half_answer", f"finish_reason is {choice.finish_reason!r}, expected 'stop' or 'length'")
    prompt_tokens, completion_tokens = (
        value if type(value := getattr(usage, name, None)) is int else None
        for name in ("prompt_tokens", "completion_tokens")
    )
    if isinstance(request.prompt, list) and prompt_tokens not in (None, len(request.prompt)):
        raise Fault("wrong_tokens", f"the server counts {prompt_tokens} prompt tokens, sent were {len(request.prompt)}")
    if completion_tokens is not None and not 0 <= completion_tokens <= request.max_tokens + 1:
        raise Fault("wrong_tokens", f"{completion_tokens} tokens were counted, at most {request.max_tokens} asked for")
    text, ended = _until_end(choice.text, end_tokens)
    if not text and (completion_tokens or 0) > 2:
        raise Fault("empty", f"no text came, though {completion_tokens} tokens were counted")
    tokens = getattr(choice, "token_ids", None)
    usable = isinstance(tokens, list) and all(type(token) is int for token in tokens)
    return Reply(
        text, ended or choice.finish_reason == "stop", prompt_tokens, completion_tokens, tokens if usable else None
    )


def fault_of(error: Exception, server: Server) -> Fault:
    """What an exception of the client means for prompt and server."""
    import openai

    if isinstance(error, Fault):
        return error
    detail = without_secrets(str(error), server)
    if isinstance(error, openai.APIConnectionError):  # time-outs are among them
        cause = type(error.__cause__).__name__
        if cause in ("ConnectError", "ConnectTimeout"):
            return Fault("unreachable", "nothing answers at this address", blameless=True, rest=0.0)
        if isinstance(error, openai.APITimeoutError):
            return Fault("timeout", f"no answer within client.timeout ({cause})")
        return Fault("cut_off", f"the connection broke ({cause})")
    if isinstance(error, openai.APIStatusError):
        return _status_fault(error.status_code, error.response.headers, detail)
    if isinstance(error, openai.APIError | ValueError):  # the body is no JSON, or not of this form
        return Fault("rubbish", detail)
    raise error


def without_secrets(text: str, server: Server) -> str:
    """The beginning of ``text`` on one line, without the key and without what an address may hold."""
    key, address = getattr(server.client, "api_key", None), urlsplit(server.url)
    text = text.replace(server.url, server.label)
    secrets = [key] if key and key != "none" else []
    if address.username or address.password:  # as they are sent, and as they were given
        pair = f"{unquote(address.username or '')}:{unquote(address.password or '')}"
        secrets += [base64.b64encode(pair.encode()).decode(), pair, address.password, unquote(address.password or "")]
    for secret in filter(None, secrets):
        text = text.replace(secret, "<key>")
    return " ".join(text.split())[:LONGEST_DETAIL]


def _status_fault(status: int, headers: Mapping[str, str], detail: str) -> Fault:
    if status in (429, 503):
        kind = "rate_limited" if status == 429 else "unavailable"
        return Fault(kind, detail, blameless=True, rest=retry_after(headers.get("retry-after")))
    if status in (401, 403):
        return Fault("unauthorised", detail, blameless=True, rest=0.0)
    if status >= 500 or status in (408, 409):
        return Fault("server_error", detail)
    return Fault("refused", detail, final=True)


def retry_after(value: str | None, now: float | None = None) -> float:
    """Seconds of a Retry-After header, which gives seconds or a date; 0 if it says nothing usable."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), 3600.0) if seconds == seconds else 0.0


def _until_end(text: str, end_tokens: Mapping[int, str]) -> tuple[str, bool]:
    """Text before the first end token that a server left in it, and whether there was one."""
    found = [at for token in end_tokens.values() if (at := text.find(token)) >= 0]
    return (text[: min(found)], True) if found else (text, False)
