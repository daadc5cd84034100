"""The source of ``collection=async``: a thread plays rollouts while the trainer works on earlier ones."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from arcforge_core.console.progress import say
from arcforge_core.contracts.engine import UnfinishedUpdateError
from arcforge_core.contracts.serving_engine import ServingEngine
from arcforge_core.episodes.asking import Streams
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.configs.collection import AsynchronousConfig
from arcforge_rl.orchestrator.collector import EQUAL, Collector, Taken
from arcforge_rl.orchestrator.concurrency import CacheControl
from arcforge_rl.orchestrator.heartbeats import ENGINE, GIVE_UP, Ask, Heartbeats, Watch
from arcforge_rl.orchestrator.ledger import LEDGER_FILE, Ledger
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.services.desk import services_of
from arcforge_rl.rollouts.collect import Collected
from arcforge_rl.rollouts.player import Player, PolicyPlayer
from arcforge_rl.rollouts.sampler import Sampler
from arcforge_rl.rollouts.speed import Speed

if TYPE_CHECKING:
    from arcforge_rl.orchestrator.status_app import StatusServer

T = TypeVar("T")
OBSERVE = 1.0
"""Seconds from one look at the engine's cache to the next."""
SHARES = 9
"""Columns of the histogram of staleness: 0, 1, ..., 7, and 8 or more."""


def rules_of(config: AsynchronousConfig, sampler: Sampler) -> Rules:
    """Returns the scheduler's rules."""
    rollout, harness = sampler.config.rollout, sampler.config.harness
    most = getattr(sampler.config.engine, "max_running", 64) if harness is None else harness.concurrency
    concurrency = config.concurrency or int(most)
    return Rules(
        config.threshold or rollout.groups, rollout.group_size, config.eta, config.max_staleness, config.stale,
        concurrency, config.retries, config.oversample, config.whole_batches,
        refills=rollout.refills if sampler.drop_equal else None,
    )  # fmt: skip


class AsynchronousSource:
    """Plays rollouts in a thread of its own, from `begin` to `stop`; implements `rollouts.source.Source`.

    Args:
        config: see `AsynchronousConfig`.
        sampler: the environment, the engine and how they are used; its engine is started.

    Raises:
        ConfigError: the engine takes no single requests, there are several processes, or a task service cannot be.
    """

    def __init__(self, config: AsynchronousConfig, sampler: Sampler) -> None:
        check_collected(config, sampler)
        self.config, self.sampler, self.rules = config, sampler, rules_of(config, sampler)
        self.services = services_of(config, sampler, self.rules.concurrency)
        self.control: CacheControl | None = None
        self._adapting: asyncio.Task[None] | None = None
        self._status: StatusServer | None = None
        self._listener = listen(config.status_port)
        self.resets_optimizer = config.reset_optimizer
        self.engine: ServingEngine = sampler.engine  # type: ignore[assignment]  # it has `submit`
        self.asking = Streams(self.engine)
        sampler.speed = Speed(self.engine, self.asking.use.so_far)
        if config.adaptive:
            if not self.engine.stats().pages:
                accepted = f"engine={sampler.config.engine.name} does not report the pages of its cache"
                raise ConfigError("collection.adaptive", True, accepted)
            most = self.rules.concurrency
            self.control = CacheControl(most, min(most, self.rules.group_size))
        self._opened: AbstractAsyncContextManager[Player]
        self.heartbeats = Heartbeats(config.dead_seconds)
        self.wants_weights = False
        self._newest_weights = 0
        self._catch_up: Callable[[], None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ledger: Ledger | None = None
        self._run: str | None = None

    # ---- the source --------------------------------------------------------------------------------------------------

    def begin(
        self, step: int, folder: Path, catch_up: Callable[[], None] | None = None, version: int | None = None
    ) -> None:
        """Opens the ledger of the run, and starts the thread and its first rollouts; see the contract.

        Args:
            step, folder, catch_up: see the contract; None where the weights are another process's.
            version: updates after which the engine got its weights; None: `step`.
        """
        self._catch_up = catch_up
        config = self.sampler.config
        self._ledger = Ledger(folder / LEDGER_FILE, self._run)
        if step and self._run is None:  # the steps so far were synchronous
            self._ledger.skip(step)
        self._run = self._ledger.run
        self.engine.start()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="arcforge-rollouts", daemon=True)
        self._thread.start()
        setup = self.sampler.training_setup
        self._opened = nullcontext(PolicyPlayer(self.asking, setup))
        if self.sampler.open_player is not None:
            self._opened = self.sampler.open_player(setup)
        self.collector = Collector(
            self.rules,
            self.services,
            self._call(self._opened.__aenter__()),
            config.seed,
            self.sampler.drop_equal,
            self._ledger,
            config.monitor.idle_steps * self.rules.threshold,
        )
        asks: dict[str, Ask] = {title: service.answers for title, service in self.services.far().items()}
        if getattr(config.engine, "url", None):
            asks[ENGINE] = self._engine_answers
        interval, collector = self.config.heartbeat_seconds, self.collector
        collector.watch = Watch(self.heartbeats, interval, asks, collector.change, collector.fail)
        self._call(self.collector.begin(step, step if version is None else version))
        self._call(self._watch(folder.name))
        self.sampler.speed.begin()

    def take(self, step: int) -> Collected:
        """Returns the next batch; the phase ``sampling`` is the time that the trainer waits for it."""
        waiting = time.monotonic()
        taken = self._call(self.collector.take(step), self._bring_up)
        waited = time.monotonic() - waiting
        collected = Collected(taken.kept, taken.dropped)
        collected.clock.seconds["sampling"] = waited
        collected.counts |= counts_of(taken) | self.sampler.take_counts()
        collected.figures = staleness_figures(taken) | self.sampler.speed.step(taken.fresh, waited, taken.seconds)
        collected.figures |= self.services.figures()
        if self.control is not None:
            collected.figures |= {"concurrency": self.control.limit, "cache_use": self.control.use}
        return collected

    def publish(self, step: int, push: Callable[[], None]) -> bool:
        """Hands the weights over every `push_every` steps; rollouts continue, see ``collection.push``."""
        due = step % self.config.push_every == 0
        if due:
            hand_over(self.engine, self.config, push, self._catch_up, self.want)
        # after the push: a rollout that the finished step makes room for starts with the new weights
        self.finished(step if due else None)
        return due

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Drains the rollouts before the block, and lets others start after it, unless the user has paused them."""
        paused = self.drain()
        try:
            yield
        finally:
            if not paused:
                self.resume()

    def drain(self) -> bool:
        """See `Collector.drain`; returns whether starts were paused before."""
        paused = self.collector.paused
        self._call(self.collector.drain())
        return paused

    def resume(self) -> None:
        """See `Collector.resume`."""
        self._call(self.collector.resume())

    def want(self, version: int) -> None:
        """The engine gets no rollouts until it has weights of this version, or later ones."""
        self.on_loop(lambda: self._want(version))

    def _want(self, version: int) -> None:
        self._newest_weights = max(self._newest_weights, version)

    def finished(self, version: int | None, weights: int | None = None) -> None:
        """See `Collector.finished_step`.

        Args:
            version: of the weights that the engine got, if it got any.
            weights: version that the engine has now; None: as its client here knows. A client that has not given them
                knows those of its beginning, which may be an earlier run's.
        """
        self.want(self.engine.weight_version if weights is None else weights)
        self._call(_plain(self.collector.finished_step, version))

    def on_loop(self, work: Callable[[], None]) -> None:
        """Does something on the loop that plays rollouts; here while there is none."""
        if self._loop is None:
            work()
        else:
            self._loop.call_soon_threadsafe(work)

    @property
    def state(self) -> Mapping[str, Any]:
        """The identity of the ledger."""
        return {"ledger": self._run}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the identity of the ledger that the checkpoint belongs to."""
        self._run = state.get("ledger")

    def stop(self, reason: str = "the run has ended") -> None:
        """Cancels the rollouts that run, ends the thread and closes the ledger; no effect a second time.

        Args:
            reason: recorded with them.
        """
        if self._loop is not None and self._thread is not None and self._ledger is not None:
            self._call(self._unwatch())
            self._call(self.collector.stop(reason))
            self._call(self._opened.__aexit__(None, None, None))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._ledger.close()
            self._loop = None
        if self._listener is not None:
            self._listener.close()

    def close(self) -> None:
        """Stops, and closes the engine."""
        self.stop()
        self.engine.close()

    def _call(self, work: Coroutine[Any, Any, T], meanwhile: Callable[[], None] | None = None) -> T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while meanwhile is not None and not wait([future], timeout=self.config.heartbeat_seconds).done:
            meanwhile()
        return future.result()

    def _bring_up(self) -> None:
        """Gives the present weights to an engine that has started again."""
        if self.wants_weights and self._catch_up is not None:
            bring_up(self.engine, self._catch_up)

    async def _engine_answers(self) -> None:
        """Returns when the engine's server has answered.

        Raises:
            ArcforgeError: it is not there, or lacks the present weights: it has started again, or did not confirm them.
        """
        found = (await asyncio.to_thread(self.engine.stats)).weight_version
        self.wants_weights = found < self._newest_weights
        if self.wants_weights:
            raise ArcforgeError(f"it has weights {found} in place of {self._newest_weights}")
        self._newest_weights = found

    # ---- watching ----------------------------------------------------------------------------------------------------

    async def _watch(self, name: str) -> None:
        """Begins to watch other processes, to adapt the number of rollouts, and to serve the status page."""
        assert self.collector.watch is not None
        self._watching = asyncio.get_running_loop().create_task(self.collector.watch.run())
        if self.control is not None:
            self._adapting = asyncio.get_running_loop().create_task(self._adapt(self.control))
        if self._listener is not None:
            from arcforge_rl.orchestrator.status_app import StatusServer, app_of

            self._status = StatusServer(app_of(name, self.collector, self.engine), self._listener)
            await self._status.start()
            say(f"status of the rollouts: http://127.0.0.1:{self._listener.getsockname()[1]}")

    async def _unwatch(self) -> None:
        for task in (self._adapting, self._watching):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._status is not None:
            await self._status.stop()

    async def _adapt(self, control: CacheControl) -> None:
        while True:
            with suppress(ArcforgeError):  # of a server that is gone, which `Watch` reports
                stats = await asyncio.to_thread(self.engine.stats)
                cancel = control.observe(stats, self.collector.scheduler.running)
                self.collector.adapt(control.limit, cancel)
            await asyncio.sleep(OBSERVE)

    # ---- figures -----------------------------------------------------------------------------------------------------


def check_collected(config: AsynchronousConfig, sampler: Sampler) -> None:
    """Checks what the source needs of the run.

    Raises:
        ConfigError: the engine takes no single requests or fewer than run, there are several processes, or evaluations
            lack weights.
    """
    if not hasattr(sampler.engine, "submit"):
        accepted = "collection=async needs an engine that takes requests one by one: engine=paged"
        raise ConfigError("engine", sampler.config.engine.name, accepted)
    queues = ("max_waiting", "max_waiting_per_owner")
    takes = {name: most for name in queues if (most := getattr(sampler.config.engine, name, None)) is not None}
    runs = rules_of(config, sampler).concurrency
    if sampler.config.harness is None and runs > min(takes.values(), default=runs):
        name = min(takes, key=lambda name: takes[name])
        accepted = f"must be at most engine.{name}={takes[name]}: rollouts may begin together, and others are refused"
        raise ConfigError("collection.concurrency", runs, accepted)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ConfigError("collection", "async", "trains in one process; torchrun needs collection=sync")
    trainer = sampler.config.trainer
    if sampler.config.evaluation.tasks and trainer.eval_every % config.push_every:
        accepted = f"must be a multiple of collection.push_every={config.push_every}: the engine that evaluates a step "
        raise ConfigError("trainer.eval_every", trainer.eval_every, f"{accepted}has its weights")


def hand_over(
    engine: ServingEngine,
    config: AsynchronousConfig,
    push: Callable[[], None],
    catch_up: Callable[[], None] | None = None,
    want: Callable[[int], None] | None = None,
) -> None:
    """Hands weights over as ``collection.push`` says; waits for an engine that is gone or has not confirmed them, as
    long as `Watch` does.

    Args:
        engine: gets them.
        config: how, and how long to wait.
        push: gives them.
        catch_up: gives them to an engine that has others.
        want: called with the lowest version of which the engine may get rollouts, where it did not confirm it.

    Raises:
        ArcforgeError: the engine refuses them, or does not come back.
    """
    before = engine.weight_version
    try:
        _push(engine, config.push, push)
        return
    except ArcforgeError as error:
        if catch_up is None or (engine.alive and not isinstance(error, UnfinishedUpdateError)):
            raise
        if want is not None:
            want(before + 1)
        say(f"{error}; waiting for the engine")
        failed = error
    last = time.monotonic() + GIVE_UP * config.dead_seconds
    while time.monotonic() < last:
        time.sleep(config.heartbeat_seconds)
        if bring_up(engine, catch_up):
            return
    raise failed


def _push(engine: ServingEngine, how: str, push: Callable[[], None]) -> None:
    if how != "pause":
        push()
        return
    engine.pause("wait")
    try:
        push()
    finally:
        engine.resume()


def bring_up(engine: Any, catch_up: Callable[[], None]) -> bool:
    """Gives the present weights to an engine whose server has started again; returns whether it has them."""
    if not engine.alive:
        return False
    try:
        engine.refresh()
        catch_up()
    except ArcforgeError as error:
        say(f"the engine does not have the present weights yet: {error}")
        return False
    return True


def listen(port: int | None) -> socket.socket | None:
    """Returns a listening socket on the loopback address; None without a port.

    Raises:
        ConfigError: the port is taken.
    """
    if port is None:
        return None
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError("collection.status_port", port, f"cannot be listened on: {error.strerror}") from error


def counts_of(taken: Taken) -> dict[str, int]:
    """Returns the counts of a batch under the names of the synchronous loop; others keep the scheduler's."""
    counts = {}
    for name, count in taken.counts.items():
        reason = name.removeprefix("dropped_")
        counts[reason if reason in EQUAL else name] = count
    return counts


def staleness_figures(taken: Taken) -> dict[str, float]:
    """Returns mean and largest staleness when groups were complete and when they were taken, and shares when taken."""
    figures: dict[str, float] = {}
    for when, values in (("put", taken.put_staleness), ("take", taken.staleness)):
        if values:
            figures |= {f"staleness_{when}_mean": fmean(values), f"staleness_{when}_max": max(values)}
            figures |= shares_of(when, values)
    return figures


def shares_of(when: str, values: Sequence[int]) -> dict[str, float]:
    """Returns the share of rollouts by staleness, the last one of this staleness or more."""
    counted = Counter(min(value, SHARES - 1) for value in values)
    return {f"staleness_{when}_{n}": counted[n] / len(values) for n in range(SHARES)}


async def _plain(work: Callable[..., None], *arguments: Any) -> None:
    """Runs a plain function on the loop."""
    work(*arguments)
