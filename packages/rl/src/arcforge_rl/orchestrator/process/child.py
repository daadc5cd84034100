"""The side of the orchestrator: an `AsynchronousSource` that answers the calls of a trainer, until that one is gone.

Messages of the trainer are ``("ping", None)``, ``("call", (name, arguments))`` and ``("end", None)``; the answers
``("pong", whether the engine lacks weights)``, and ``("done", value)`` or ``("failed", error)`` for one call after the
other. A pong comes from the loop that plays rollouts: where that hangs, none comes.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from arcforge_core.checkpoint.pretrained import open_checkpoint
from arcforge_core.checkpoint.sections import meta_model
from arcforge_core.console.progress import say
from arcforge_core.episodes.agent import build_dialogue
from arcforge_core.errors import ArcforgeError
from arcforge_core.generation.engine import build_engine
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.environments.unjudged import Unjudged
from arcforge_rl.orchestrator.heartbeats import TRAINER
from arcforge_rl.orchestrator.source import AsynchronousSource
from arcforge_rl.rewards.hybrid import Hybrid
from arcforge_rl.rollouts.collect import Collected
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.others import Others
from arcforge_rl.rollouts.player import OpenPlayer
from arcforge_rl.rollouts.sampler import Sampler
from arcforge_rl.rollouts.tasks import connect_judges, has_models, training_environment

ENDING_SECONDS = 10.0
"""For the end of rollouts and services once the trainer is gone; then the process ends without them."""


@dataclass(frozen=True)
class Given:
    """The beginning of a life of the orchestrator.

    Attributes:
        config: of the run.
        checkpoint: folder with the sizes of the model, and the tokenizer.
        positions, drop_equal: see `Sampler`.
        variables: of the trainer's environment.
        unjudged: whether no verifier runs, see `Unjudged`.
        open_player, counts: see `Sampler`; where they count into each other, they do so in the process, too.
    """

    config: RlConfig
    checkpoint: Path
    positions: int
    drop_equal: Sequence[str]
    variables: Mapping[str, str]
    unjudged: bool = False
    open_player: OpenPlayer | None = None
    counts: Counter[str] = field(default_factory=Counter)


Build = Callable[[Given], AsynchronousSource]


def build_source(given: Given) -> AsynchronousSource:
    """Builds the source around a client of the engine's server. Weights of the policy are not read; those of agents
    with an engine of their own and of a reward model are.

    Raises:
        ConfigError: a part cannot be built.
    """
    config = given.config
    opened = open_checkpoint(given.checkpoint)
    engine = build_engine(config.engine, meta_model(opened.config, opened.attention, str(given.checkpoint)))
    tokenizer = Tokenizer.load(given.checkpoint)
    dialogue = build_dialogue(tokenizer, config.rollout.thinking)
    curriculum = Curriculum(config.curriculum, config.seed)
    hardware = build_hardware(config.hardware) if has_models(config) else None  # a machine of workers may have no chip
    tasks = training_environment(config, Ops(hardware, config.trainer.deterministic))
    others = Others(config.agents, tokenizer, given.positions, hardware, config.trainer.deterministic)
    connect_judges(tasks, others)
    if given.unjudged:
        tasks = Unjudged(tasks)
    # held-out tasks are the trainer's
    sampler = Sampler(config, engine, dialogue, given.positions, tasks, tasks, curriculum, given.drop_equal)
    sampler.open_player, sampler.counts = given.open_player, given.counts
    sampler.others = others
    return AsynchronousSource(config.collection, sampler)  # type: ignore[arg-type]  # one of this kind is here


def run_orchestrator(given: Given, build: Build, pipe: Connection, dead_seconds: float) -> None:
    """Runs in the process, to its end.

    Args:
        given: see `Given`.
        build: makes the source.
        pipe: to the trainer.
        dead_seconds: after which a silent trainer counts as gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, which ends this process in order
    os.environ.clear()
    os.environ.update(given.variables)  # not those of the process that this one was forked from
    config = given.config
    torch.set_num_threads((config.trainer.threads if has_models(config) else None) or 1)
    Child(given, build, pipe).serve(dead_seconds)


class Child:
    """Answers calls in a thread, and pings without waiting for them."""

    def __init__(self, given: Given, build: Build, pipe: Connection) -> None:
        self._given, self._build, self._pipe = given, build, pipe
        self._calls: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self._sending = threading.Lock()
        self._source: AsynchronousSource | None = None

    def serve(self, dead_seconds: float) -> None:
        """Reads messages until the trainer is gone."""
        threading.Thread(target=self._work, name="arcforge-calls", daemon=True).start()
        reason = f"the trainer has not been heard for {dead_seconds:g} s"
        try:
            while self._pipe.poll(dead_seconds):
                kind, content = self._pipe.recv()
                if kind == "end":
                    return
                if kind == "ping":
                    self._beat()
                else:
                    self._calls.put(content)
        except (EOFError, OSError):
            reason = "the trainer has ended"
        if self._source is not None:
            say(f"orchestrator: {reason}; its rollouts wait for a resumed run")
            last = threading.Timer(ENDING_SECONDS, os._exit, (1,))
            last.daemon = True
            last.start()
            self._source.stop(reason)
            self._source.engine.close()
            self._close_others()

    def _beat(self) -> None:
        if self._source is None:
            self._pong()
        else:
            self._source.heartbeats.hear(TRAINER)
            self._source.on_loop(self._pong)

    def _pong(self) -> None:
        self._send("pong", self._source is not None and self._source.wants_weights)

    def _send(self, kind: str, content: Any) -> None:
        with self._sending:
            try:
                self._pipe.send((kind, content))
            except OSError:
                return  # the trainer is gone: `serve` sees that

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._answer(self._begin_life)
        while True:
            name, arguments = self._calls.get()
            self._answer(getattr(self, name), *arguments)

    def _answer(self, work: Callable[..., Any], *arguments: Any) -> None:
        try:
            answer = "done", work(*arguments)
        except Exception as error:
            if not isinstance(error, ArcforgeError):
                traceback.print_exc()
            answer = "failed", portable(error)
        self._send(*answer)

    def _begin_life(self) -> None:
        source = self._build(self._given)
        source.heartbeats.join(TRAINER)
        self._source = source

    @property
    def source(self) -> AsynchronousSource:
        assert self._source is not None
        return self._source

    def begin(
        self, step: int, version: int, weights: int, folder: Path, run: str | None, curriculum: Mapping[str, Any]
    ) -> str:
        """See `Source.begin`; `weights` is the version that the engine has. Returns the identity of the ledger."""
        self.source.want(weights)
        self.source.sampler.curriculum.state = dict(curriculum)
        self.source.restore({"ledger": run})
        self.source.begin(step, folder, version=version)
        return str(self.source.state["ledger"])

    def take(self, step: int) -> tuple[Collected, Mapping[str, Any]]:
        """See `Source.take`; also returns the state of the curriculum."""
        collected, sampler = self.source.take(step), self.source.sampler
        if isinstance(sampler.training, Hybrid):
            collected.figures |= sampler.training.take_figures()
        return collected, sampler.curriculum.state

    def finished(self, version: int | None, weights: int) -> None:
        """See `Collector.finished_step`; `weights` is the version that the engine was given."""
        self.source.finished(version, weights)

    def want(self, version: int) -> None:
        """See `AsynchronousSource.want`."""
        self.source.want(version)

    def drain(self) -> bool:
        """See `Collector.drain`; returns whether starts were paused before."""
        return self.source.drain()

    def resume(self) -> None:
        """See `Collector.resume`."""
        self.source.resume()

    def stop(self) -> None:
        """Ends everything that runs."""
        if self._source is not None:  # it could be built
            self._source.close()
            self._close_others()

    def _close_others(self) -> None:
        """Ends the engines of agents."""
        if self.source.sampler.others is not None:
            self.source.sampler.others.close()


def portable(error: Exception) -> Exception:
    """Returns an error that another process can read: the same, or its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever an error's own methods raise
        return ArcforgeError(f"{type(error).__name__}: {error}")
    return error
