"""A rollout of a thousand tool calls and contexts: its gateway is killed half-way, and every token is trained once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arcforge_core.contracts.environment import Agents, Episode, Task
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import LoopHarnessConfig
from arcforge_rl.trainer.tokens import pack, read
from support.agent_tasks import CALL, Conversations, played
from support.sessions import TOKENIZER

CALLS, KILLED_AT, MICRO = 1000, 500, 4096
PROGRAM = f"""
import sys
sys.path.insert(0, "tests")
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.server.gate.listening import listen
from arcforge_serving.server.serve import Server, state_of
from support.sessions import TOKENIZER
from support.stub_engine import StubEngine

state = state_of(StubEngine(TOKENIZER.encode({CALL!r}, allow_special=True), 0.0), TOKENIZER, "small")
app = gateway_app(state, GatewayConfig(sessions=5, log=sys.argv[2]))
with listen("127.0.0.1", int(sys.argv[1])) as socket:
    print(socket.getsockname()[1], flush=True)
    Server(state, 5.0, log_level="error", app=app).run(sockets=[socket])
"""


class Mortal:
    """A gateway in a process of its own, on one port for all of its lives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.port = int(self.start())

    def start(self) -> str:
        command = [sys.executable, "-c", PROGRAM, str(self.port), str(self.folder)]
        root = Path(__file__).parents[3]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self.process.stdout is not None
        return self.process.stdout.readline() if not self.port else ""

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Killing(Conversations):
    """Kills the gateway at a call, and starts it again; does not wait for it."""

    def __init__(self, gateway: Mortal) -> None:
        super().__init__(max_calls=CALLS)
        self.gateway, self.calls = gateway, 0

    @property
    def result(self) -> str:  # type: ignore[override]
        """A different one for each call, so that contexts differ."""
        return f"result {self.calls}"

    @result.setter
    def result(self, value: str) -> None:
        """The class's own is not used."""

    async def run(self, task: Task, agents: Agents) -> Episode:
        reply = agents.solver.reply

        async def counted(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == KILLED_AT:
                self.gateway.kill()
                self.gateway.start()
            return await reply(*given, **named)

        agents.solver.reply = counted  # type: ignore[method-assign]
        return await super().run(task, agents)


@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="a thousand turns, and a thousand contexts that are trained")
def test_a_thousand_calls_survive_the_gateway_and_are_trained_once(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    gateway = Mortal(tmp_path)
    config = LoopHarnessConfig(keep_recent=2, discard_all=1000, seconds=3000.0, gateway_seconds=600.0, concurrency=1)
    rollouts, begun = AgentRollouts(config, f"http://127.0.0.1:{gateway.port}"), time.process_time()
    environment = Killing(gateway)
    ((rollout,),) = played(rollouts, environment, [0], 1, ChatSetup(max_new_tokens=64))
    record_property("client_processor_seconds", time.process_time() - begun)
    gateway.kill()
    assert rollout.outcome.failure is None and environment.calls == CALLS + 1, "it began once"
    call = len(TOKENIZER.encode(CALL, allow_special=True))
    branches = rollout.trace.branches
    assert len(branches) >= 800, "contexts"
    assert rollout.trace.num_sampled == (CALLS + 1) * call, "each sampled token once, those of before the kill too"
    prompts = Counter(branch.ids[: int(np.argmax(branch.sampled))].tobytes() for branch in branches)
    ((question, begun_again),) = prompts.most_common(1)
    assert len(question) == min(map(len, prompts)) and begun_again > 20, "contexts that were discarded"
    assert len(prompts) == len(branches) - (begun_again - 1), "no other context is there twice"

    for branch in branches:
        branch.streams["weights"] = torch.full((len(branch),), 1.0 / rollout.trace.num_sampled)
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=1024)
    optimizer, begun = torch.optim.SGD(model.parameters(), 0.1), time.process_time()
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        micros = pack([rollout.trace], MICRO, split=True)
        assert sum(len(micro.target_S) for micro in micros) == rollout.trace.num_sampled
        assert all(len(micro.tokens_T) <= MICRO for micro in micros) and len(micros) > 10
        losses.append(0.0)
        for micro in micros:
            loss = -(read(model, micro, 1.0).logprobs_S * micro.streams["weights"]).sum()
            loss.backward()
            losses[-1] += float(loss.detach())
        optimizer.step()
    record_property("training_processor_seconds", time.process_time() - begun)
    assert losses[1] < losses[0]
