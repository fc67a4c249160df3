"""Does a server run the target? By name, by tokenizer and by behaviour, without weights on this side; refused if not.

Name: /v1/models must list the target, or the ``client.model`` that the user gives. Tokenizer: texts of many scripts must
count as many tokens as ours has, up to one constant offset for BOS; where the server has /tokenize, the very ids must be
ours. Rendering: a prompt sent as ids must count as it is long. Behaviour: greedy answers to fixed prompts must begin as
those of the other servers and of earlier runs into the same folder (``probe.json``) do, at most of them.

Limits: engines round differently, so greedy answers may part later on and only their first characters count. Other
weights of the same family behind the right name and tokenizer (a base model, another fine-tune, a quantisation) are
noticed only if servers or runs disagree; if all of them are wrong alike, nothing here can tell.

    await check_servers(servers, chat, names, settings, known=None)
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from draftlab.data.chat import Chat
from draftlab.data.remote.completion import Request, complete, fault_of, list_models
from draftlab.data.remote.servers import STRIKES, ClientSettings, Fault, Server
from draftlab.sampling import Sampling

OVERRIDE = "If it is the target all the same, client.check=false goes on without this check"
TEXTS = (
    "The quick brown fox jumps over the lazy dog, 1234567890 times; doesn't it?",
    "def f(x):\n    return {k: v ** 2 for k, v in x.items()}  # squares\n\n\n\tprint(f'{x!r:>10}')",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Ça va très bien, señor?",
    "机器学习是人工智能的一个分支。 Привет, как дела? こんにちは 🙂🚀",
    "\\begin{align} \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2} \\end{align}",
)
QUESTIONS = (
    "What is the capital of France? Answer in one word.",
    "Write a Python function that adds two numbers.",
    "How many days are there in a week?",
    "Name three primary colours.",
)
GREEDY = Sampling(temperature=0.0)
PROBE_TOKENS, BEGINNING, LARGEST_OFFSET = 16, 6, 2


async def check_servers(
    servers: Sequence[Server],
    chat: Chat,
    names: Sequence[str],
    settings: ClientSettings,
    known: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Find the model of every server and, with ``settings.check``, make sure that it is the target.

    Servers that cannot be reached are left to the health check of the run and named; one at least must be there.

    Args:
        names: what the target may be called.
        known: greedy answers of earlier runs.

    Returns:
        greedy answers by question, ``known`` if given; empty without the check.

    Raises:
        ValueError: no server is there, or one does not run the target; says what differs and how to go on anyway.
    """
    found = await asyncio.gather(*(_look(server, chat, names, settings) for server in servers))
    reached = [server for server, answers in zip(servers, found, strict=True) if answers is not None]
    if not reached:
        said = "; ".join(f"{server.label} ({server.last_fault})" for server in servers)
        raise ValueError(f"none of the servers can be used: {said}. Start them, or mend servers=[…]")
    reference, whose = dict(known or {}), "the answers of earlier runs into this folder"
    for server, answers in zip(servers, found, strict=True):
        if not answers:
            continue
        if not reference:
            reference, whose = answers, server.label
        elif not alike(reference, answers):
            raise ValueError(
                f"{server.label} answers greedily otherwise than {whose}: {_first_difference(reference, answers)}. They "
                f"do not run the same model. {OVERRIDE}"
            )
    return reference


async def check_late(
    server: Server, chat: Chat, names: Sequence[str], settings: ClientSettings, reference: Mapping[str, str]
) -> None:
    """The same for a server that comes (back) during the run.

    Raises:
        Fault: it is still not there, or does not run the target; the run goes on without it.
    """
    try:
        answers = await _check(server, chat, names, settings)
        if reference and answers and not alike(reference, answers):
            raise ValueError(f"it does not answer as the others do: {_first_difference(reference, answers)}")
    except ValueError as error:
        server.model = ""
        raise Fault("another_model", str(error), blameless=True, rest=0.0) from None


def model_name(listed: Sequence[str], names: Sequence[str], server: str) -> str:
    """The listed name that is the target's: equal but for case, punctuation, folders and a .gguf ending.

    Raises:
        ValueError: none is.
    """
    wanted = {_plain(name) for name in names}
    for name in listed:
        if {_plain(name), _plain(re.split(r"[/\\]", name)[-1])} & wanted:
            return name
    raise ValueError(
        f"{server} lists {', '.join(listed) or 'no model'}, which is not the target ({', '.join(names)}). Start it with "
        "the target; if it is the target under another name, give client.model=<that name>"
    )


def target_names(path: str, name: str, extra: Sequence[str] = ()) -> list[str]:
    """What a target of ``path`` may be called: its hub id or folder, the last part of that, and its name here."""
    return list(dict.fromkeys([path, PurePath(path).name, name, *extra]))


def alike(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Whether most answers begin with the same characters."""
    shared = [question for question in ours if question in theirs]
    same = sum(ours[question][:BEGINNING] == theirs[question][:BEGINNING] for question in shared)
    return not shared or 2 * same > len(shared)


async def _look(server: Server, chat: Chat, names: Sequence[str], settings: ClientSettings) -> dict[str, str] | None:
    try:
        return await _check(server, chat, names, settings)
    except Fault as fault:
        if fault.final or fault.kind in ("unauthorised", "wrong_tokens", "rubbish"):
            key = f" (the key is read from ${settings.api_key_env})" if fault.kind == "unauthorised" else ""
            raise ValueError(
                f"{server.label} does not work as a completions server: {fault}{key}. {OVERRIDE}"
            ) from None
        server.last_fault, server.strikes = str(fault), STRIKES
        print(f"servers: {server.label} is left out for now: {fault}", flush=True)
        return None


async def _check(server: Server, chat: Chat, names: Sequence[str], settings: ClientSettings) -> dict[str, str]:
    listed = await list_models(server)
    if settings.model is None and not settings.check and len(listed) == 1:
        server.model = listed[0]
    else:
        server.model = model_name(listed, [settings.model] if settings.model else names, server.label)
    if not settings.check:
        return {}
    try:
        await _find_extra(server)
        await _check_counts(server, chat.tokenizer)
        await _check_ids(server, chat.tokenizer)
        prompts = {question: chat.prompt_ids([{"role": "user", "content": question}]) for question in QUESTIONS}
        return {
            question: (await complete(server, Request(ids, PROBE_TOKENS, 0), GREEDY, {})).text
            for question, ids in prompts.items()
        }
    except BaseException:
        server.model = ""  # not known to run the target
        raise


async def _find_extra(server: Server) -> None:
    """Servers that refuse fields which they do not know get OpenAI's own only."""
    request = Request(TEXTS[0], 1, 0)
    try:
        await complete(server, request, GREEDY, {})
    except Fault as fault:
        if not fault.final:
            raise
        server.takes_extra = False
        await complete(server, request, GREEDY, {})


async def _check_counts(server: Server, tokenizer) -> None:
    """Token counts of texts must be ours but for one constant offset."""
    offsets = set()
    for text in TEXTS:
        ours = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        theirs = (await complete(server, Request(text, 1, 0), GREEDY, {})).prompt_tokens
        if theirs is None:
            raise ValueError(f"{server.label} does not count tokens, so its tokenizer cannot be checked. {OVERRIDE}")
        offsets.add(theirs - ours)
        if len(offsets) > 1 or not 0 <= theirs - ours <= LARGEST_OFFSET:
            raise ValueError(
                f"{server.label} counts {theirs} tokens in {text[:24]!r}…, the target's tokenizer {ours}: it has "
                f"another tokenizer. {OVERRIDE}"
            )


async def _check_ids(server: Server, tokenizer) -> None:
    """Where there is a /tokenize beside /v1, its ids must be ours; other servers have none, or want other fields."""
    root = server.client.with_options(base_url=server.url.removesuffix("/v1"))
    for text in TEXTS:
        body = {"model": server.model, "prompt": text, "content": text, "add_special_tokens": False}
        try:
            answer = await root.post("/tokenize", cast_to=object, body=body)
        except Exception as error:
            fault_of(error, server)  # raises what is no answer of a server
            return
        theirs = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(theirs, list) or not all(type(token) is int for token in theirs):
            return
        ours = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if theirs != ours and theirs[-len(ours) :] != ours:  # a BOS may stand first
            raise ValueError(f"{server.label} tokenises {text[:24]!r}… to other ids than the target. {OVERRIDE}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().removesuffix(".gguf"))


def _first_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    question = next(q for q in ours if q in theirs and ours[q][:BEGINNING] != theirs[q][:BEGINNING])
    return f"to {question!r} {theirs[question][:40]!r} instead of {ours[question][:40]!r}"
