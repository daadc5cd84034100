"""The soak of `serving_soak.py` over HTTP: this file as a program is the server, `run` drives it.

The model is deterministic, so that each answer must be that of the simple engine bit for bit, by the weights that its
``weight_versions`` name; unless weights were replaced under it by ``keep``, when only its form is checked.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save

import _path  # noqa: F401
from arcforge_attention.configs import DsaConfig
from arcforge_core import save_pretrained
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_config, small_tokenizer
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS
from arcforge_serving.server.gate.connections import connection_options
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.serve import Server, listen, url
from arcforge_serving.server.shared.state import ServerState
from support.serving_load import Case, make_cases

LONGEST = 64
STUCK = 60.0
"""Seconds after which a request counts as lost."""
KEYS = {USER_KEYS: "soak-user-1,soak-user-2", ADMIN_KEYS: "soak-admin"}
ADMIN = {"Authorization": "Bearer soak-admin"}


def build(seed: int) -> CausalLM:
    """Returns the model."""
    torch.manual_seed(seed)
    ops = Ops(select_hardware("torch_cpu"), deterministic=True)
    return build_model(small_config(vocab_size=TOKENIZER_SIZE), DsaConfig(), ops).eval()


def serve(root: str, threads: str) -> None:
    """Serves until the parent stops it; the first line that it prints is its address."""
    torch.set_num_threads(int(threads))
    config = ServeConfig(
        PagedEngineConfig(
            page_size=4, cache_tokens=320, max_running=16, max_waiting=40, max_batch_tokens=128, tier_mb=4
        )
    )
    assert isinstance(config.engine, PagedEngineConfig)
    state = ServerState(PagedEngine(config.engine, build(0)), small_tokenizer(), "soak", weights_root=Path(root))
    state.guard = Guard.of(config, KEYS)
    with listen("127.0.0.1", 0) as listener:
        print(url(listener), flush=True)
        Server(state, config.shutdown_seconds, **connection_options(config)).run(sockets=[listener])


@dataclass
class HttpLoad:
    """Asks, goes away, aborts and updates weights at random.

    Attributes:
        http: with the server's address.
        cases: what is asked, with the answers for all `uploads`.
        uploads: safetensors files of the weights that take turns; ``weights-0`` and so on are their folders.
        rng: decides.
        done: what has happened, by name.
        updates: how many there were: the version of the weights.
        kept: how many of them went under running requests.
    """

    http: httpx.AsyncClient
    cases: list[Case]
    uploads: list[bytes]
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    updates: int = 0
    kept: int = 0
    asked: int = 0
    aborts: set[asyncio.Future[httpx.Response]] = field(default_factory=set)

    async def work(self, end: float) -> None:
        """Asks one thing after another."""
        while time.monotonic() < end:
            await asyncio.wait_for(self.ask(), STUCK)

    async def ask(self) -> None:
        """Asks, and checks the answer."""
        case, rng = self.rng.choice(self.cases), self.rng
        self.asked += 1
        kept, name = self.kept, f"request-{self.asked}"
        params = case.params
        body: dict[str, Any] = {
            "prompt": case.prompt, "max_tokens": params.max_new_tokens, "temperature": params.temperature,
            "top_p": params.top_p, "seed": params.seed, "frequency_penalty": params.frequency_penalty,
            "stop_token_ids": list(params.stop_token_ids), "ignore_eos": True, "n": params.n, "logprobs": 0,
            "return_token_ids": True, "priority": rng.randrange(3), "stream": rng.random() < 0.5,
        }  # fmt: skip
        headers = {"Authorization": f"Bearer soak-user-{rng.randint(1, 2)}", "X-Request-Id": name}
        (fate,) = rng.choices(["read", "leave", "abort"], [8, 1, 1])
        self.done[f"{fate}, {'stream' if body['stream'] else 'whole'}"] += 1
        request = self._stream(body, headers) if body["stream"] else self._whole(body, headers)
        if fate == "leave":
            try:
                await asyncio.wait_for(request, rng.random() / 5)
            except TimeoutError:
                self.done["left"] += 1
            return
        if fate == "abort":
            asyncio.get_running_loop().call_later(rng.random() / 5, self._abort_soon, name)
        choices = await request
        if choices is None:
            self.done["refused"] += 1
            await asyncio.sleep(0.02)
            return
        for index, choice in enumerate(choices):
            self._check(case, index, choice, mixed=self.kept > kept)

    async def _whole(self, body: dict[str, Any], headers: dict[str, str]) -> list[dict[str, Any]] | None:
        response = await self.http.post("/v1/completions", json=body, headers=headers)
        if response.status_code == 503:
            return None
        assert response.status_code == 200, response.text
        choices: list[dict[str, Any]] = response.json()["choices"]
        return choices

    async def _stream(self, body: dict[str, Any], headers: dict[str, str]) -> list[dict[str, Any]] | None:
        choices: list[dict[str, Any]] = [
            {"token_ids": [], "logprobs": {"token_logprobs": []}, "finish_reason": None} for _ in range(body["n"])
        ]
        async with self.http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            if response.status_code == 503:
                return None
            assert response.status_code == 200, await response.aread()
            last = ""
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, line
                    (part,) = event["choices"]
                    choice = choices[part["index"]]
                    choice["token_ids"] += part["token_ids"]
                    choice["logprobs"]["token_logprobs"] += part["logprobs"]["token_logprobs"]
                    choice |= {key: part[key] for key in ("finish_reason", "weight_versions") if part.get(key)}
                last = line or last
            assert last == "data: [DONE]", last
        return choices

    def _abort_soon(self, name: str) -> None:
        task = asyncio.ensure_future(self.http.post("/v1/rl/abort", json={"request_id": name}, headers=ADMIN))
        self.aborts.add(task)  # or nobody would keep it alive
        task.add_done_callback(self.aborts.discard)

    def _check(self, case: Case, index: int, choice: dict[str, Any], mixed: bool) -> None:
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        versions, reason = choice["weight_versions"], choice["finish_reason"]
        assert reason in ("stop", "length", "abort"), choice
        assert sum(count for _, count in versions) == len(ids) == len(logprobs), choice
        self.done[reason] += 1
        self.done["tokens"] += len(ids)
        if mixed:
            self.done["mixed"] += 1
            return
        ((version, _),) = versions
        wanted = case.outputs[version % len(self.uploads)][index]
        assert ids == wanted.token_ids[: len(ids)], f"{choice} is not {wanted}"
        assert logprobs == wanted.logprobs[: len(ids)], f"{choice} is not {wanted}"
        assert reason == "abort" or (reason, len(ids)) == (wanted.finish_reason, len(wanted.token_ids)), choice
        self.done["tokens checked"] += len(ids)

    async def control(self, route: str, status: int = 200, **options: Any) -> dict[str, Any]:
        """Calls a route of ``/v1/rl``."""
        response = await self.http.post(f"/v1/rl/{route}", headers=ADMIN, **options)
        assert response.status_code == status, response.text
        found: dict[str, Any] = response.json()
        return found

    async def update(self) -> None:
        """Replaces the weights, in turn by all ways; before that, tries to with half of them."""
        mode, number = ("keep", "wait", "abort")[self.updates % 3], (self.updates + 1) % len(self.uploads)
        content = self.uploads[number]
        await self.control("pause", json={"mode": mode})
        self.kept += mode == "keep"
        await self.control("update_weights/tensors", 400, content=content[: len(content) // 2])
        if self.rng.random() < 0.5:
            answer = await self.control("update_weights/tensors", content=content)
        else:
            answer = await self.control("update_weights", json={"path": f"weights-{number}"})
        self.updates += 1
        assert answer["weight_version"] == self.updates
        await self.control("resume")
        self.done["updates"] += 1


def resident(process: int) -> float:
    """Returns a process's resident memory in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


async def drive(
    address: str, process: int, cases: list[Case], uploads: list[bytes], minutes: float, every: float
) -> dict[str, Any]:
    """Keeps the server saturated for so long; returns the report."""
    samples: list[dict[str, float]] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=address, timeout=STUCK, limits=limits) as http:
        load = HttpLoad(http, cases, uploads, random.Random(0))
        start = time.monotonic()
        end = start + 60 * minutes

        async def watch() -> None:
            next_update = start + every
            while (now := time.monotonic()) < end:
                status = (await http.get("/v1/rl/status", headers=ADMIN)).json()
                figures = {name: status[name] for name in ("free_pages", "cached_pages", "running", "waiting")}
                samples.append({"seconds": now - start, "rss_mib": resident(process), **figures})
                if now >= next_update:
                    await load.update()
                    next_update += every
                await asyncio.sleep(1.0)

        await asyncio.gather(watch(), *(load.work(end) for _ in range(32)))
        while (status := (await http.get("/v1/rl/status", headers=ADMIN)).json())["running"] or status["waiting"]:
            assert time.monotonic() < end + STUCK, f"requests never ended: {status}"
            await asyncio.sleep(0.1)
        await load.control("flush")
        status = (await http.get("/v1/rl/status", headers=ADMIN)).json()
        assert status["free_pages"] == status["pages"], f"pages were lost: {status}"
        metrics = (await http.get("/metrics", headers=ADMIN)).text
    assert f'arcforge:weight_version{{model_name="soak"}} {float(load.updates)}' in metrics
    early = samples[len(samples) // 10]["rss_mib"]
    return {
        "done": dict(load.done), "weight_version": load.updates, "preemptions": status["preemptions"],
        "samples": samples, "ratios": {"rss_growth": samples[-1]["rss_mib"] / early},
    }  # fmt: skip


def run(minutes: float, threads: int, every: float) -> dict[str, Any]:
    """Starts the server, drives it and stops it.

    Args:
        minutes: how long.
        threads: of the server's model.
        every: seconds between updates of the weights.
    """
    models = [build(seed) for seed in range(3)]
    states = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in models]
    made = make_cases(models[0], states, 75, LONGEST)
    cases = [case for case in made if case.params.matcher is None]  # which are objects of this process
    with tempfile.TemporaryDirectory() as root:
        for number, model in enumerate(models):
            save_pretrained(model, Path(root) / f"weights-{number}")
        command = [sys.executable, __file__, root, str(threads)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as server:
            try:
                assert server.stdout is not None
                address = server.stdout.readline().strip()
                uploads = [save(state) for state in states]
                report = asyncio.run(drive(address, server.pid, cases, uploads, minutes, every))
            finally:
                server.terminate()
    assert server.returncode in (0, -15), f"the server ended with {server.returncode}"
    return report


if __name__ == "__main__":
    serve(*sys.argv[1:])
