"""``collection.orchestrator=process``: the trainer's side. Batches come from another process, weights go to the engine.

The orchestrator alone writes the ledger, and every change is in it: a life that replaces one that ended begins with
what that one had recorded, and a batch that the trainer did not receive is the same when it asks again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.console.progress import say
from arcforge_core.contracts.serving_engine import ServingEngine
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.configs.collection import AsynchronousConfig
from arcforge_rl.environments.unjudged import Unjudged
from arcforge_rl.orchestrator.heartbeats import GIVE_UP
from arcforge_rl.orchestrator.process.child import Build, Given, build_source
from arcforge_rl.orchestrator.process.life import Life, LifeEnded
from arcforge_rl.orchestrator.process.start import Meeting, forked
from arcforge_rl.orchestrator.source import AsynchronousSource, bring_up, check_collected, hand_over
from arcforge_rl.rollouts.collect import Collected
from arcforge_rl.rollouts.sampler import Sampler
from arcforge_rl.rollouts.source import Source

SETTLED = 60.0
"""A life of this many seconds is replaced without a pause."""
PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before the third life in a row; each later one waits longer."""
ENGINE_URL = "engine.url"
"""Field that an engine's client names when the server cannot be reached."""
MOST_SHORT_LIVES = 8
"""After as many shorter lives in a row the run ends."""

_MEETINGS: list[Meeting] = []
"""Where orchestrators come that a launcher starts, for the whole process; empty: the trainer forks its own."""


def expect_orchestrators(meeting: Meeting) -> None:
    """Takes the orchestrators of this process's runs from a meeting, in place of forking them."""
    _MEETINGS[:] = [meeting]


def asynchronous(config: AsynchronousConfig, sampler: Sampler) -> Source:
    """Returns the source of ``collection=async``, in this process or around another one."""
    if config.orchestrator == "process":
        return ProcessSource(config, sampler, build_source)
    return AsynchronousSource(config, sampler)


class ProcessSource:
    """Implements `rollouts.source.Source`; see the module.

    Args:
        config: see `AsynchronousConfig`.
        sampler: of this process; its engine gets the weights.
        build: makes the source in the process; a module-level function.

    Attributes:
        restarts: lives before the present one.

    Raises:
        ConfigError: the engine has no URL, or the orchestrator refuses the configuration.
    """

    def __init__(self, config: AsynchronousConfig, sampler: Sampler, build: Build) -> None:
        check_collected(config, sampler)
        if getattr(sampler.config.engine, "url", None) is None:
            accepted = "has no URL at which the orchestrator's process can ask it: engine=arcforge engine.url=URL"
            raise ConfigError("engine", sampler.config.engine.name, accepted)
        self.config, self.sampler, self.resets_optimizer = config, sampler, config.reset_optimizer
        self.engine: ServingEngine = sampler.engine  # type: ignore[assignment]  # checked
        folder = find_checkpoint(str(sampler.config.init), "init").resolve()
        self._given = Given(
            sampler.config, folder, sampler.positions, sampler.drop_equal, dict(os.environ),
            isinstance(sampler.training, Unjudged), sampler.open_player, sampler.counts,
        )  # fmt: skip
        self._build = build
        self.restarts = self._reported = self._short_lives = 0
        self._folder: Path | None = None
        self._run: str | None = None
        self._trained = self._version = 0
        self._error: Exception | None = None
        self._closing = False
        self._changed = threading.Condition(threading.RLock())
        self._life: Life | None = None
        try:
            self._life = self._start()
        except LifeEnded as error:
            raise ArcforgeError(f"{error} before it was ready") from error

    # ---- the source --------------------------------------------------------------------------------------------------

    def begin(self, step: int, folder: Path, catch_up: Callable[[], None]) -> None:
        """Lets the orchestrator begin; see the contract."""
        self._catch_up = catch_up
        with self._changed:
            self._folder, self._trained, self._version = folder, step, step
            life = self._present()
        try:
            self._begin(life)
        except LifeEnded:
            self._successor(life)

    def take(self, step: int) -> Collected:
        """Returns the next batch; the phase ``sampling`` is the time that the trainer waits for it."""
        waiting = time.monotonic()
        life = self._present()
        while True:
            try:
                collected, curriculum = life.call("take", step, meanwhile=self._bring_up)
                break
            except LifeEnded:
                life = self._successor(life)
        self._short_lives = 0
        self.sampler.curriculum.state = curriculum
        collected.clock.seconds["sampling"] = time.monotonic() - waiting
        collected.counts["orchestrator_restarts"] = self.restarts - self._reported
        self._reported = self.restarts
        found: Collected = collected
        return found

    def publish(self, step: int, push: Callable[[], None]) -> bool:
        """Hands the weights over every `push_every` steps, then says so to the orchestrator."""
        due = step % self.config.push_every == 0
        if due:
            hand_over(self.engine, self.config, push, self._catch_up, self._want)
        with self._changed:
            self._trained, self._version = step, step if due else self._version
            life = self._present()
            try:
                life.call("finished", step if due else None, self.engine.weight_version)
            except LifeEnded:
                return due  # the next life begins with it
        return due

    def _want(self, version: int) -> None:
        with suppress(LifeEnded):  # the next life asks the engine first
            self._present().call("want", version)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Drains the rollouts before the block, and lets others start after it, unless the user has paused them."""
        life = self._present()
        while True:
            try:
                paused = life.call("drain")
                break
            except LifeEnded:
                life = self._successor(life)
        try:
            yield
        finally:
            if not paused:
                with suppress(LifeEnded):  # the next life is not drained
                    life.call("resume")

    @property
    def state(self) -> Mapping[str, Any]:
        """The identity of the ledger."""
        return {"ledger": self._run}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the identity of the ledger that the checkpoint belongs to."""
        self._run = state.get("ledger")

    def stop(self) -> None:
        """Ends the rollouts that run, and the process; no effect a second time."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
            life = self._life
        if life is not None:
            life.stop()

    def close(self) -> None:
        """Stops, and closes the engine."""
        self.stop()
        self.engine.close()

    # ---- lives -------------------------------------------------------------------------------------------------------

    def _start(self) -> Life:
        """Returns a further life, whose source is built."""
        config = self.config
        start = _MEETINGS[0].begun if _MEETINGS else forked
        life = Life(start, self._given, self._build, config.heartbeat_seconds, config.dead_seconds, self._replace)
        try:
            life.answer()
        except LifeEnded:
            raise
        except Exception:
            life.stop()
            raise
        say(f"orchestrator: process {life.pid}")
        return life

    def _begin(self, life: Life) -> None:
        curriculum = self.sampler.curriculum.state
        weights = self.engine.weight_version
        self._run = life.call("begin", self._trained, self._version, weights, self._folder, self._run, curriculum)

    def _replace(self, life: Life) -> None:
        """Puts another life in the place of one that ended by itself; runs in the thread of that one."""
        with self._changed:
            if life is not self._life:
                return
            try:
                while (following := self._following(life)) is None and not self._closing:
                    pass
                self._life = following or life
            except Exception as error:  # raised in the trainer's thread
                self._error = error
            finally:
                self._changed.notify_all()

    def _following(self, life: Life) -> Life | None:
        """Returns the life after one that ended; None if it ended too, or the run ends."""
        self._short_lives = self._short_lives + 1 if time.monotonic() - life.began < SETTLED else 0
        if self._folder is None or self._short_lives > MOST_SHORT_LIVES:
            raise ArcforgeError(f"the orchestrator {life.why}, {self._short_lives} times in a row")
        self._changed.wait(min(LONGEST_PAUSE, PAUSE * max(0, self._short_lives - 1) ** 2))
        if self._closing:
            return None
        say(f"the orchestrator {life.why}; restarting")
        self.restarts += 1
        try:
            following = self._start_again()
            self._begin(following)
        except LifeEnded:
            return None
        return following

    def _start_again(self) -> Life:
        """Returns a further life; an engine that has ended, too, is waited for as long as rollouts wait for it."""
        last = time.monotonic() + GIVE_UP * self.config.dead_seconds
        while True:
            try:
                return self._start()
            except ConfigError as error:
                if error.field != ENGINE_URL or self._closing or time.monotonic() > last:
                    raise
                say(f"the orchestrator waits for the engine: {error}")
                self._changed.wait(PAUSE)

    def _bring_up(self) -> None:
        """Gives the present weights to an engine that has started again."""
        if self._present().wants_weights:
            bring_up(self.engine, self._catch_up)

    def _present(self) -> Life:
        if self._error is not None:
            raise self._error
        assert self._life is not None
        return self._life

    def _successor(self, life: Life) -> Life:
        """Waits for the life after one that ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._life is not life or self._error is not None)
            return self._present()
