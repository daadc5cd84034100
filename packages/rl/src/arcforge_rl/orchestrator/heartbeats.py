"""Who is alive: one record of the processes of a run, and the watch over the engine's server and the task services.

A peer that fails when it is asked is dead immediately: its process has ended. One that is silent is dead after
`Heartbeats.dead_seconds`. Both are asked on, and work again once they answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from arcforge_core.console.progress import say
from arcforge_core.errors import ArcforgeError

ENGINE, TRAINER = "engine", "trainer"
GIVE_UP = 10
"""A run ends when a peer has been dead for this multiple of `Heartbeats.dead_seconds`."""


@dataclass
class Peer:
    """A process of the run, over all of its lives.

    Attributes:
        heard: when it answered last.
        alive: whether it gets work.
        deaths: of it.
        problem: of the last death.
        since: of the present state.
    """

    heard: float
    since: float
    alive: bool = True
    deaths: int = 0
    problem: str = ""


class Heartbeats:
    """The record.

    Args:
        dead_seconds: after which a silent peer is dead.
        clock: seconds.
    """

    def __init__(self, dead_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.dead_seconds, self.clock = dead_seconds, clock
        self.peers: dict[str, Peer] = {}

    def join(self, name: str) -> None:
        """A peer begins."""
        self.peers[name] = Peer(self.clock(), self.clock())

    def hear(self, name: str) -> bool:
        """A peer has answered; returns whether it was dead."""
        peer, now = self.peers[name], self.clock()
        back, peer.alive, peer.heard = not peer.alive, True, now
        if back:
            peer.since = now
        return back

    def bury(self, name: str, problem: str) -> bool:
        """A peer is dead; returns False if that was known."""
        peer = self.peers[name]
        if not peer.alive:
            return False
        peer.alive, peer.problem, peer.since = False, problem, self.clock()
        peer.deaths += 1
        return True

    def silent(self) -> list[str]:
        """Returns the peers that are not known to be dead and have not answered for too long."""
        now = self.clock()
        return [name for name, peer in self.peers.items() if peer.alive and now - peer.heard > self.dead_seconds]

    def lost(self) -> dict[str, str]:
        """Returns the peers that have been dead for so long that they will not return, with their problems."""
        last = self.clock() - GIVE_UP * self.dead_seconds
        return {name: peer.problem for name, peer in self.peers.items() if not peer.alive and peer.since < last}

    def deaths(self) -> Counter[str]:
        """Returns ``died_<name>`` of the peers that have died."""
        return +Counter({f"died_{name.replace(' ', '_')}": peer.deaths for name, peer in self.peers.items()})

    def show(self) -> dict[str, dict[str, Any]]:
        """Returns the record as JSON."""
        now = self.clock()
        return {
            name: {"alive": p.alive, "heard": round(now - p.heard, 1), "deaths": p.deaths, "problem": p.problem}
            for name, p in self.peers.items()
        }


Ask = Callable[[], Awaitable[None]]
"""Returns when a peer has answered.

Raises:
    ArcforgeError, EpisodeFailure: it cannot, or may get no work yet.
"""


class Watch:
    """Asks peers at an interval; methods are called on one event loop.

    Args:
        heartbeats: the record.
        interval: seconds.
        asks: how each peer is asked.
        on_change: called with a peer that has died or is back.
        on_lost: called with an error when a peer will not return.
    """

    def __init__(
        self,
        heartbeats: Heartbeats,
        interval: float,
        asks: Mapping[str, Ask],
        on_change: Callable[[str, bool], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self.heartbeats, self.interval, self._asks = heartbeats, interval, asks
        self._on_change, self._on_lost = on_change, on_lost
        self._asking: dict[str, asyncio.Task[None]] = {}
        for name in asks:
            heartbeats.join(name)

    async def run(self) -> None:
        """Watches until it is cancelled."""
        try:
            while True:
                self.tick()
                await asyncio.sleep(self.interval)
        finally:
            asking = list(self._asking.values())
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def tick(self) -> None:
        """Asks all peers that owe no answer, and buries those that have been silent for too long."""
        for name in self._asks:
            self._start(name)
        for name in self.heartbeats.silent():
            if name in self._asks:
                self._bury(name, f"has not answered for {self.heartbeats.dead_seconds:g} s")
        for name, problem in self.heartbeats.lost().items():
            seconds = GIVE_UP * self.heartbeats.dead_seconds
            self._on_lost(ArcforgeError(f"{name} {problem}, and has not come back in {seconds:g} s"))

    async def answers(self, name: str) -> bool:
        """Asks a peer whose work has just failed; returns whether it is alive."""
        if name not in self._asks:
            return True
        await asyncio.wait([self._start(name)], timeout=self.heartbeats.dead_seconds)
        return self.heartbeats.peers[name].alive

    def _start(self, name: str) -> asyncio.Task[None]:
        if name not in self._asking:
            self._asking[name] = asyncio.get_running_loop().create_task(self._ask(name))
        return self._asking[name]

    async def _ask(self, name: str) -> None:
        try:
            await self._asks[name]()
        except Exception as error:
            self._bury(name, f"cannot work: {error}")
        else:
            if self.heartbeats.hear(name):
                say(f"{name} is back")
                self._on_change(name, True)
        finally:
            del self._asking[name]

    def _bury(self, name: str, problem: str) -> None:
        if self.heartbeats.bury(name, problem):
            say(f"{name} {problem}; its rollouts wait")
            self._on_change(name, False)
