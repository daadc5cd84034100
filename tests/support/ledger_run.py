"""A training run without a model: a policy that says what its seed says, and a trainer whose weights are a hash of all
that it trained on. It can be killed at any commit of its ledger."""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.episodes.agent import SamplingSetup, TextDialogue
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs.learning import CurriculumConfig
from arcforge_rl.execution.database import Database
from arcforge_rl.orchestrator.collector import Collector, Taken
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.services.desk import Service, Services, single
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.player import PolicyPlayer
from support.policies import reward_even

TOKENIZER = small_tokenizer()
EVEN, ODD = (TOKENIZER.encode(text)[0] for text in ("2", "1"))
STEPS = 4
SAVED_EVERY = 2
"""Steps from one checkpoint of the trainer to the next, so that batches are trained again after a kill."""


class SeedSays:
    """Replies that depend on the request's seed alone: right or wrong; one in eight fails."""

    version = 0

    def program(self) -> AbstractContextManager[None]:
        return nullcontext()

    def away(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def ask(
        self, number: int, prompt: Sequence[int], params: SamplingParams, session: str = ""
    ) -> GenerationOutput:
        for _ in range(params.seed % 5):
            await asyncio.sleep(0)
        if params.seed % 8 == 5:
            raise OSError("no such engine")
        ids = [EVEN if params.seed % 3 else ODD, TOKENIZER.eos_id]
        return GenerationOutput(ids, [-1.0, -0.5], "stop", self.version)


def changes(statement: str) -> bool:
    return statement.startswith(("INSERT", "UPDATE"))


@contextmanager
def killed_at(number: int, before: bool) -> Iterator[list[int]]:
    """Kills this process at commit `number` of any database, before or after it; yields a list with their count."""
    count, execute = [0], Database.execute

    def watched(database: Database, statement: str, values: Any = ()) -> Any:
        commits = statement == "COMMIT" or (changes(statement) and not database._connection.in_transaction)
        count[0] += commits
        if commits and before and count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        found = execute(database, statement, values)
        if commits and count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    Database.execute = watched  # type: ignore[method-assign]
    try:
        yield count
    finally:
        Database.execute = execute  # type: ignore[method-assign]


def described(taken: Taken) -> str:
    """Returns everything about a batch that training depends on."""
    return json.dumps(
        [
            [
                (r.trace.rollout_id, r.trace.copies, r.trace.reward, [list(map(int, b.ids)) for b in r.trace.branches])
                for r in group
            ]
            for group in taken.kept
        ]
    )


def train(
    folder: Path,
    rules: Rules,
    steps: int = STEPS,
    further: Callable[[], Sequence[Service]] = tuple,
    patience: int = 0,
) -> str:
    """Begins or continues the run of a folder; returns its weights after `steps` steps.

    Args:
        folder: of the run.
        rules: of its scheduler.
        steps: in all.
        further: makes task services next to the environment of this process.
        patience: see `Collector`.
    """
    checkpoint = folder / "checkpoint.json"
    step, weights = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, "")

    async def run() -> str:
        nonlocal step, weights
        ledger, asking, curriculum = (
            Ledger(folder / "ledger.sqlite", "run"),
            SeedSays(),
            Curriculum(CurriculumConfig(), 0),
        )
        setup = SamplingSetup(TextDialogue(TOKENIZER), 5, 1.0, 500)
        environment = CopyEnvironment(CopyConfig())
        services = Services([*single(environment, curriculum).by_name.values(), *further()])
        collector = Collector(rules, services, PolicyPlayer(asking, setup), 0, ("reward",), ledger, patience)
        asking.version = step
        await collector.begin(step)
        try:
            while step < steps:
                taken = await collector.take(step)
                with (folder / "batches.jsonl").open("a") as file:
                    file.write(json.dumps([step, described(taken)]) + "\n")
                weights = hashlib.sha256(f"{weights} {described(taken)}".encode()).hexdigest()
                step += 1
                asking.version = step
                collector.finished_step(step)
                if step % SAVED_EVERY == 0:
                    new = folder / "checkpoint.new"
                    new.write_text(json.dumps([step, weights]))
                    new.rename(checkpoint)
        finally:
            await collector.stop()
            ledger.close()
        return weights

    with mock.patch.object(CopyEnvironment, "exact", reward_even):
        return asyncio.run(run())


def in_child(folder: Path, rules: Rules, kill: int = 0, before: bool = False) -> tuple[int | None, int]:
    """Trains in a process of its own; returns its exit code and the number of commits (0 if it was killed)."""

    def work(sender: Any) -> None:
        with killed_at(kill, before) as count:
            train(folder, rules)
        sender.send(count[0])

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(sender,))
    child.start()
    sender.close()
    child.join(120)
    return child.exitcode, receiver.recv() if child.exitcode == 0 else 0
