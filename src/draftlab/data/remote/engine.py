"""``engine=openai`` of ``src/prepare.py``: servers in, answers on disk out. It knows nothing of requests or files' forms.

service = Service(["http://127.0.0.1:8000/v1"]).named(spec)
counts = served_responses(service, chat, prompts, folder, settings, served_identity(identity, service))
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from draftlab.data.answers import RESPONSES
from draftlab.data.chat import Chat
from draftlab.data.files import IDENTITY, MANIFEST, read_object, write_json
from draftlab.data.prompts import Prompt
from draftlab.data.remote.completion import connect
from draftlab.data.remote.probe import check_late, check_servers, target_names
from draftlab.data.remote.responses import Work, answer_prompts
from draftlab.data.remote.servers import ClientSettings, Pool, Server, check_urls
from draftlab.data.responses import ResponseSettings, claim_responses
from draftlab.target import TargetSpec
from draftlab.target.source import WHEEL_PREFIX, WHEELS

ENGINES = ("local", "openai")
PROBE = "probe.json"
IN_PROCESS = ("batch_size", "window_batches")  # settings that only the local engine has


@dataclass(frozen=True)
class Service:
    """Which servers are asked, and what the target may be called there.

    Raises:
        ValueError: no server, or an address that is none.
    """

    urls: Sequence[str]
    client: ClientSettings = field(default_factory=ClientSettings)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", check_urls(self.urls))

    def named(self, spec: TargetSpec) -> Service:
        """With the names of ``spec``; of a wheel also that of the file in it, by which llama.cpp calls it."""
        wheel = WHEELS.get(spec.path.removeprefix(WHEEL_PREFIX)) if spec.path.startswith(WHEEL_PREFIX) else None
        file = [PurePath(wheel.member).stem] if wheel else []
        return replace(self, names=target_names(spec.path, spec.name, file))


def find_service(engine: str, urls: Sequence[str], client: dict[str, Any]) -> Service | None:
    """The servers of ``engine=openai``; None for ``engine=local``.

    Raises:
        ValueError: an unknown engine, servers without their engine, or a value out of range.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "openai":
        return Service(urls if isinstance(urls, str) else list(urls), ClientSettings(**client))
    if urls:
        raise ValueError("servers are asked by engine=openai only; give it too, or leave servers out")
    return None


def served_identity(local: dict[str, Any], service: Service) -> dict[str, Any]:
    """Identity of served answers from that of local ones: without what servers decide, with how they are asked."""
    kept = {key: value for key, value in local.items() if key not in IN_PROCESS}
    kept["target"] = {key: value for key, value in local["target"].items() if key != "dtype"}
    return kept | {"engine": "openai", "served_as": service.client.model, "checked": service.client.check}


def outcome(counts: dict[str, Any]) -> str:
    """What a run with servers adds to the summary of a run; nothing for a local one."""
    if "failed" not in counts:
        return ""
    text = f", empty {counts['empty']}, with thinking {counts['thinking']}, failed {counts['failed'] or 0}"
    return text + (" (reasons in errors.jsonl; the same command tries them again)" if counts["failed"] else "")


def served_responses(
    service: Service,
    chat: Chat,
    prompts: Sequence[Prompt],
    folder: Path,
    settings: ResponseSettings,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """Check the servers, then let them answer ``prompts``; returns the counts of the manifest.

    Raises:
        ValueError: another identity, servers that are not there or run another model, or that died for too long.
    """
    servers = connect(service.urls, service.client)
    claim_responses(folder, identity)
    try:
        return asyncio.run(_serve(servers, chat, prompts, folder, (settings, service, identity)))
    except ValueError:
        if not (folder / RESPONSES).exists() and not (folder / MANIFEST).exists():
            (folder / IDENTITY).unlink(missing_ok=True)  # nothing was begun: other client settings may have the folder
        raise


async def _serve(
    servers: list[Server],
    chat: Chat,
    prompts: Sequence[Prompt],
    folder: Path,
    run: tuple[ResponseSettings, Service, dict],
) -> dict[str, Any]:
    settings, service, identity = run
    probe = folder / PROBE
    known = read_object(probe) if probe.exists() else None
    try:
        reference: dict[str, str] = {}
        if settings.max_minutes != 0:  # 0 closes the folder, with or without servers
            reference = await check_servers(servers, chat, service.names, service.client, known)
        if reference and not known:
            write_json(probe, reference)

        async def admit(server: Server) -> None:
            await check_late(server, chat, service.names, service.client, reference)

        _refuse_lost_sampling(servers, settings)
        ends = {token: chat.tokenizer.convert_ids_to_tokens(token) for token in sorted(chat.end_token_ids)}
        work = Work(chat, settings, ends, admit)
        return await answer_prompts(Pool(servers, service.client), work, prompts, folder, identity)
    finally:
        for server in servers:
            if server.answered or server.faults:
                faults = ", ".join(f"{count} {kind}" for kind, count in sorted(server.faults.items())) or "no faults"
                print(f"{server.label}: {server.answered} answers, {faults}", flush=True)
        await asyncio.gather(*(server.client.close() for server in servers), return_exceptions=True)


def _refuse_lost_sampling(servers: Sequence[Server], settings: ResponseSettings) -> None:
    """A server that refuses top_k and min_p cannot sample as asked."""
    sampling = settings.sampling
    for server in servers:
        if not server.takes_extra and not sampling.greedy and (sampling.top_k or sampling.min_p):
            raise ValueError(
                f"{server.label} refuses the fields top_k and min_p, so it cannot sample with {sampling}; leave it out, "
                "or give sampling.top_k=0 sampling.min_p=0"
            )
