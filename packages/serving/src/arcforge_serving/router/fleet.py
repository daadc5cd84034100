"""The engines: which of them take requests, and what happens when one dies.

Each has a task that starts it, polls its health, and restarts it when it has ended or hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import httpx

from arcforge_core.console.progress import say
from arcforge_serving.configs import RouterConfig
from arcforge_serving.router.policies import Policy, Wanted
from arcforge_serving.router.process import EngineError, Launch, Process

LONGEST_PAUSE = 30.0
"""Seconds between two tries to start an engine at most."""
SETTLED = 60.0
"""An engine that has lived this many seconds is restarted without a pause."""
CONNECT = 5.0
GRACE = 0.25
"""Seconds in which the requests of a killed engine notice it by themselves."""


class State(Enum):
    """What an engine does."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """It finishes what it has, and takes nothing."""
    DEAD = "dead"


class NoEngineError(Exception):
    """No engine takes requests."""


class NoReplyError(Exception):
    """The engine process that stored a reply has ended."""


@dataclass
class Member:
    """An engine, over all of its lives.

    Attributes:
        number: from 0.
        prefill: whether it computes prompts for others, and accepts no requests.
        state: of the present life.
        process, http: of the present life; None when there is none.
        in_flight: requests.
        restarts: lives before this one.
        problem: why it is not ready.
        drained: whether it must not accept requests.
    """

    number: int
    prefill: bool = False
    state: State = State.STARTING
    process: Process | None = None
    http: httpx.AsyncClient | None = None
    in_flight: int = 0
    restarts: int = 0
    problem: str = ""
    drained: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """Its number as policies and labels have it."""
        return str(self.number)

    @property
    def life(self) -> str:
        """Which of all lives the present one is; empty when there is none."""
        return "" if self.process is None else self.process.life

    @contextmanager
    def busy(self) -> Iterator[httpx.AsyncClient]:
        """Counts a request, and lends the client of the present life."""
        assert self.http is not None
        self.in_flight += 1
        self.idle.clear()
        try:
            yield self.http
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()

    def show(self) -> dict[str, Any]:
        """Returns its state as JSON."""
        role = {"prefill": True} if self.prefill else {}
        shown = {"engine": self.number, **role, "state": self.state.value, "in_flight": self.in_flight}
        return {**shown, "restarts": self.restarts, "problem": self.problem}


async def nothing(member: Member) -> None:
    """Leaves a new engine as it is."""


class Fleet:
    """The engines.

    Args:
        config: intervals of health checks.
        count: how many.
        policy: chooses.
        launch: makes an engine's next life.
        prefill: how many more there are that only compute prompts.

    Attributes:
        members: all engines.
        bring_up: awaited with each engine that has started, before it accepts requests.
        changing: held while the engines are changed, so that an engine that joins meanwhile misses nothing.
    """

    def __init__(self, config: RouterConfig, count: int, policy: Policy, launch: Launch, prefill: int = 0) -> None:
        self.config, self.policy = config, policy
        self.members = [Member(number, prefill=number >= count) for number in range(count + prefill)]
        self.bring_up: Callable[[Member], Awaitable[None]] = nothing
        self.changing = asyncio.Lock()
        self.closing = False
        self._launch = launch
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> list[Member]:
        """The engines that take requests."""
        return [member for member in self.members if member.state is State.READY and not member.prefill]

    @property
    def present(self) -> list[Member]:
        """The engines that answer, those that are drained included."""
        return [member for member in self.members if member.state in (State.READY, State.DRAINING)]

    def choose(self, wanted: Wanted, without: set[int]) -> Member:
        """Returns the engine for a request.

        Args:
            wanted: its features.
            without: engines that it was tried on.

        Raises:
            NoEngineError: none is left.
            NoReplyError: it is about a reply that went with its engine.
        """
        if wanted.life is not None and wanted.life not in [m.life for m in self.members if m.process is not None]:
            raise NoReplyError
        able = [member for member in self.ready if wanted.life in (None, member.life)]
        loads = {member.name: member.in_flight for member in able if member.number not in without}
        if self.closing or not loads:
            raise NoEngineError
        return self.members[int(self.policy.choose(wanted, loads))]

    # ---- from beginning to end ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts all engines.

        Raises:
            EngineError: the first one that cannot be started; none is left running then.
        """
        try:
            await asyncio.gather(*(self._begin(member) for member in self.members))
        except BaseException:
            await self.stop(0.0)
            raise
        self._tasks = [asyncio.create_task(self._tend(member)) for member in self.members]

    async def stop(self, seconds: float) -> None:
        """Has all engines end in order, and kills those that have not after `seconds`."""
        self.closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        answering = [m.process for m in self.members if m.process is not None and m.http is not None]
        for process in answering:
            process.stop()
        ends = [asyncio.create_task(process.ended()) for process in answering]
        if ends:
            await asyncio.wait(ends, timeout=seconds)
        for end in ends:
            end.cancel()
        for member in self.members:
            await self._bury(member, "the server shuts down")

    async def _begin(self, member: Member) -> None:
        """Gives an engine a life, up to where it takes requests."""
        member.state = State.STARTING
        member.process = self._launch(member.number)
        await member.process.start()
        transport = httpx.AsyncHTTPTransport(uds=member.process.socket, limits=httpx.Limits(max_connections=None))
        timeout = httpx.Timeout(None, connect=CONNECT)
        plain = {"accept-encoding": "identity"}
        member.http = httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=timeout, headers=plain)
        try:
            async with asyncio.timeout(self.config.hang_seconds):
                while (await member.http.get("/ready")).status_code != 200:
                    await asyncio.sleep(0.05)
        except (httpx.TransportError, TimeoutError) as error:
            raise EngineError(f"it does not answer: {type(error).__name__}") from error
        async with self.changing:
            await self.bring_up(member)
            member.state, member.problem = State.DRAINING if member.drained else State.READY, ""
            member.idle.set()

    async def _tend(self, member: Member) -> None:
        """Keeps an engine alive."""
        pause, began = 0.0, time.monotonic()
        while True:
            if member.state is not State.DEAD:
                problem = await self._watch(member)
                await self._bury(member, problem)
                say(f"engine {member.number} {problem}; restarting")
                if time.monotonic() - began > SETTLED:
                    pause = 0.0
            await asyncio.sleep(pause)
            pause, began = min(LONGEST_PAUSE, 2 * pause + 0.5), time.monotonic()
            member.restarts += 1
            try:
                await self._begin(member)
            except (EngineError, httpx.HTTPError) as error:
                await self._bury(member, f"does not start: {error}")
                say(f"engine {member.number} does not start: {error}; next try in {pause:g} s")
            else:
                say(f"engine {member.number} is back")

    async def _watch(self, member: Member) -> str:
        """Returns when an engine has ended or has to, and why."""
        assert member.process is not None
        assert member.http is not None
        ended = asyncio.create_task(member.process.ended())
        try:
            last = time.monotonic()
            while True:
                await asyncio.wait([ended], timeout=self.config.health_seconds)
                if ended.done():
                    return "has ended"
                with suppress(httpx.TransportError):
                    answer = await self._unless(ended, member.http.get("/health", timeout=self.config.hang_seconds))
                    if answer is not None and answer.status_code != 200:
                        return "has stopped working"
                    last = time.monotonic() if answer is not None else last
                if time.monotonic() - last >= self.config.hang_seconds:
                    return f"has not answered for {self.config.hang_seconds:g} s"
        finally:
            ended.cancel()

    @staticmethod
    async def _unless(ended: asyncio.Task[None], asking: Awaitable[httpx.Response]) -> httpx.Response | None:
        task = asyncio.ensure_future(asking)
        try:
            await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # it closes its connection, which no pool may know yet

    async def _bury(self, member: Member, problem: str) -> None:
        """Ends a life; requests that it had end with an error, each by itself.

        The client is closed after them: its pool does not know a connection that opens meanwhile, and would leave it.
        """
        member.state, member.problem = State.DEAD, problem
        self.policy.forget(member.name)
        if member.process is not None:
            member.process.kill()
        if member.in_flight:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):  # wait_for of Python 3.11 can swallow a cancellation
                    await member.idle.wait()
        if member.http is not None:
            await member.http.aclose()
        member.process = member.http = None

    # ---- one by one --------------------------------------------------------------------------------------------------

    def drain(self, member: Member) -> None:
        """Has an engine accept no more requests; present ones continue."""
        member.drained = True
        if member.state is State.READY:
            member.state = State.DRAINING

    def undrain(self, member: Member) -> None:
        """Has it accept requests again."""
        member.drained = False
        if member.state is State.DRAINING:
            member.state = State.READY

    async def restart(self, member: Member) -> None:
        """Drains an engine and restarts it; returns once its process is stopping."""
        self.drain(member)
        await member.idle.wait()
        member.drained = False
        if member.process is not None:
            member.process.stop()

    def drop(self, member: Member) -> None:
        """Kills an engine that differs from the others; it is restarted."""
        member.state = State.DEAD
        if member.process is not None:
            member.process.kill()
