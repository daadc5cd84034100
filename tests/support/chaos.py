"""A router whose engines are killed while clients ask, with every answer checked; a test and
``benchmarks/router_soak.py`` use it.

The engines' model is deterministic, so that whatever engine answers, and however often it was restarted, tokens must
be those of the simple engine: a stream that was cut, or mixed with another, would show.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.configs import ServeConfig
from arcforge_serving.disaggregation.wiring import wired
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.router import engine
from arcforge_serving.router.fleet import Fleet, Member
from arcforge_serving.router.policies import build_policy
from arcforge_serving.router.process import EngineProcess, Process
from arcforge_serving.router.serve import RouterServer
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.gate.listening import listen, url
from arcforge_serving.server.serve import state_of
from arcforge_serving.server.shared.state import ServerState
from support.serving_load import Case

STUCK = 120.0
"""Seconds after which a request, or an engine that is started, counts as lost."""


def load_deterministic(config: ServeConfig) -> ServerState:
    """Returns what an engine serves: the checkpoint, with ops whose bits do not depend on the batch."""
    ops = Ops(select_hardware("torch_cpu"), deterministic=True)
    model = load_pretrained(Path(config.checkpoint), ops=ops).eval()
    return state_of(PagedEngine(config.engine, model), small_tokenizer(), "chaos")  # type: ignore[arg-type]


def load_late(config: ServeConfig) -> ServerState:
    """Like `load_deterministic`, in an engine that accepts its first connection a second after it is ready."""
    accept = engine.Server.run

    def late(*args: Any, **options: Any) -> None:
        time.sleep(1.0)
        accept(*args, **options)

    engine.Server.run = late  # type: ignore[method-assign]
    return load_deterministic(config)


@dataclass
class Load:
    """Clients.

    Attributes:
        http: with the router's address.
        cases: what is asked, each with what the simple engine gives.
        rng: decides.
        done: what has happened, by name.
        last: when a request ended well last, and when it was begun.
    """

    http: httpx.AsyncClient
    cases: list[Case]
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    last: tuple[float, float] = (0.0, 0.0)

    async def work(self, end: asyncio.Event) -> None:
        """Asks one thing after another."""
        while not end.is_set():
            async with asyncio.timeout(STUCK):
                await self.ask()

    async def ask(self) -> None:
        """Asks, and checks the answer; an error must be one that says so."""
        case, streams, begun = self.rng.choice(self.cases), self.rng.random() < 0.7, time.monotonic()
        params = case.params
        body: dict[str, Any] = {
            "prompt": case.prompt, "max_tokens": params.max_new_tokens, "temperature": params.temperature,
            "top_p": params.top_p, "seed": params.seed, "frequency_penalty": params.frequency_penalty,
            "stop_token_ids": list(params.stop_token_ids), "ignore_eos": True, "n": params.n,
            "return_token_ids": True, "stream": streams, "session_id": str(self.rng.randrange(20)),
        }  # fmt: skip
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                error = json.loads(await response.aread())["error"]
                assert response.status_code in (502, 503), error
                self.done[f"error {response.status_code}"] += 1
                await asyncio.sleep(0.05)
                return
            if streams:
                choices, error = await self._read(response, params.n)
            else:
                choices, error = json.loads(await response.aread())["choices"], None
        if error is None:
            self.last = time.monotonic(), begun
        self.done["broken off with an error" if error else "whole"] += 1
        for choice, wanted in zip(choices, case.outputs[0], strict=True):
            ids, reason = choice["token_ids"], choice["finish_reason"]
            assert ids == wanted.token_ids[: len(ids)], f"{choice} is not {wanted}"
            assert error or (reason, len(ids)) == (wanted.finish_reason, len(wanted.token_ids)), f"cut: {choice}"
            self.done["tokens checked"] += len(ids)

    async def _read(self, response: httpx.Response, n: int) -> tuple[list[dict[str, Any]], str | None]:
        choices: list[dict[str, Any]] = [{"token_ids": [], "finish_reason": None} for _ in range(n)]
        error, last, name = None, "", None
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    error = event["error"]["message"]
                    continue
                name = name or event["id"]
                assert event["id"] == name, f"a stream of {name} has a part of {event['id']}"
                (part,) = event["choices"]
                choice = choices[part["index"]]
                choice["token_ids"] += part["token_ids"]
                choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
            last = line or last
        assert last == "data: [DONE]", f"a stream ends with {last!r}"
        return choices, error


async def kill_and_wait(fleet: Fleet, member: Member, load: Load) -> dict[str, float]:
    """Kills an engine; returns the seconds until a later request has ended well, and until all engines are there."""
    assert member.process is not None
    start, restarts = time.monotonic(), member.restarts
    member.process.kill()
    answered = 0.0
    async with asyncio.timeout(STUCK):
        while not answered or member.restarts == restarts or len(fleet.present) < len(fleet.members):
            if not answered and load.last[1] > start:
                answered = load.last[0] - start
            await asyncio.sleep(0.01)
    return {"answered_s": answered, "back_s": time.monotonic() - start}


async def drive(
    config: ServeConfig, cases: list[Case], seconds: float, every: float, clients: int, seed: int = 0
) -> dict[str, Any]:
    """Starts engines and router, asks and kills.

    Args:
        config: of the server; its checkpoint is one without a tokenizer.
        cases: what is asked, without matchers.
        seconds: how long; longer where it takes longer for every engine to be killed once.
        every: seconds from one kill to the next.
        clients: requests at a time.
        seed: decides what is asked.

    Returns:
        What happened: counts, and the seconds that each kill cost; the engines' tokens before the first.

    Raises:
        AssertionError: an answer is wrong, cut or mixed.
        TimeoutError: a request was never answered, an engine never came back, or one was never asked for anything.
    """
    lives, guard = itertools.count(), Guard()
    with (
        tempfile.TemporaryDirectory(prefix="arcforge-chaos-") as folder,
        listen("127.0.0.1", 0) as listener,
        wired(config.dp, config.prefill) as wirings,
    ):

        def launch(number: int) -> Process:
            socket = Path(folder) / f"{number}-{next(lives)}"
            return EngineProcess(config, socket, guard.rates.spend, wirings[number], load_deterministic)

        fleet = Fleet(config.router, config.dp, build_policy(config.router), launch, config.prefill)
        server = RouterServer(fleet, guard, Path(folder), config.shutdown_seconds, "error")
        begun = time.monotonic()
        await fleet.start()
        report: dict[str, Any] = {"start_s": time.monotonic() - begun, "kills": []}
        serving = asyncio.create_task(server.serve([listener]))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
        try:
            async with httpx.AsyncClient(base_url=url(listener), timeout=STUCK, limits=limits) as http:
                load = Load(http, cases, random.Random(seed))
                last, end = time.monotonic() + seconds, asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    for _ in range(clients):
                        group.create_task(load.work(end))
                    report["prompt_tokens"] = await worked(http, len(fleet.members))
                    for number in itertools.count():
                        if number >= len(fleet.members) and time.monotonic() + every >= last:
                            break
                        await asyncio.sleep(every)
                        member = fleet.members[-1 - number % len(fleet.members)]
                        report["kills"].append(await kill_and_wait(fleet, member, load))
                    end.set()  # not before: a kill is over when a later request has ended well
        finally:
            server.should_exit = True
            await serving
        return {
            **report,
            "done": dict(load.done),
            "router": {" ".join(key): n for key, n in server.counts.requests.items()},
        }


async def worked(http: httpx.AsyncClient, count: int) -> dict[str, float]:
    """Waits until each engine has taken prompts; returns how many tokens of them."""
    async with asyncio.timeout(STUCK):
        while True:
            found = prompt_tokens((await http.get("/metrics")).text)
            if len(found) == count and all(found.values()):
                return found
            await asyncio.sleep(0.2)


def prompt_tokens(page: str) -> dict[str, float]:
    """Returns how many tokens of prompts each engine has taken in its present life, from a page of metrics."""
    found = re.findall(r'^arcforge:prompt_tokens_total\{engine="(\d+)",.*\} (.*)$', page, re.MULTILINE)
    return {engine: float(value) for engine, value in found}
