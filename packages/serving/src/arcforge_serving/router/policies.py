"""Which engine a request goes to. Plain classes: no clock, no process, no wire.

A policy sees a request's session and prefix, and the number of requests that each engine has in flight. It chooses
among the engines that it is given; the caller leaves out those that are dead, drained or tried already.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from arcforge_serving.configs import RouterConfig

Loads = Mapping[str, int]
"""Requests in flight by engine."""


@dataclass(frozen=True)
class Wanted:
    """The features of a request.

    Attributes:
        session: the conversation that it continues; empty if unknown.
        blocks: for each block of the prompt, a hash of it and all earlier ones.
        life: of an engine that alone can answer, because it keeps a reply that is meant; None where any engine can.
    """

    session: str = ""
    blocks: tuple[int, ...] = ()
    life: str | None = None


class Policy(Protocol):
    """Chooses the engine of a request.

    Attributes:
        moves: sessions that were moved since their engine was full.
    """

    moves: int

    def choose(self, wanted: Wanted, loads: Loads) -> str:
        """Returns one of the engines of `loads`, of which there is at least one."""

    def forget(self, engine: str) -> None:
        """An engine has lost its cache."""


def build_policy(config: RouterConfig, clock: Callable[[], float] = time.monotonic) -> Policy:
    """Returns the policy that a configuration names; `clock` gives seconds."""
    bound = Bound(config.load_factor, config.free_requests)
    match config.policy:
        case "session":
            return SessionHash(bound, clock, config.active_seconds)
        case "prefix":
            return PrefixAware(bound)
        case "least_load":
            return LeastLoad()
        case _:
            return RoundRobin()


@dataclass(frozen=True)
class Bound:
    """How many requests an engine may have: `factor` times the mean, and `free` whatever the others have.

    Attributes:
        factor: at least 1; infinity binds nothing.
        free: so few are no load: what moves for their sake costs more than it brings.
    """

    factor: float = 2.0
    free: int = 12

    def of(self, loads: Loads) -> float:
        """Returns the bound when one more request comes; at least one engine is below it."""
        bound = self.factor * (sum(loads.values()) + 1) / len(loads)
        return max(self.free, math.ceil(bound) if math.isfinite(bound) else bound)

    def open(self, loads: Loads) -> list[str]:
        """Returns the engines that may get the next request."""
        most = self.of(loads)
        return [engine for engine, load in loads.items() if load < most]


EVEN = Bound(1.1, 1)
"""Of those that may get another session: what it brings stays for long, and a place costs nothing yet."""


class RoundRobin:
    """Each engine in turn."""

    moves = 0

    def __init__(self) -> None:
        self._number = -1

    def choose(self, wanted: Wanted, loads: Loads) -> str:
        """Returns the next one."""
        self._number += 1
        return sorted(loads)[self._number % len(loads)]

    def forget(self, engine: str) -> None:
        """Has no state to drop."""


class LeastLoad:
    """The engine with the fewest requests; those that have equally many take turns."""

    moves = 0

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def choose(self, wanted: Wanted, loads: Loads) -> str:
        least = min(loads.values())
        return self._turns.choose(wanted, {engine: load for engine, load in loads.items() if load == least})

    def forget(self, engine: str) -> None:
        """Has no state to drop."""


class SessionHash:
    """Consistent hashing by session with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2016), and with a memory.

    Each session has an order of all engines of its own (rendezvous hashing). It begins on the first one that has no
    more requests and sessions than others: what a session has cached takes room while it pauses, too. There it stays,
    also when an engine before that one has room: going back would cost its prefix once more. It moves when its engine
    is full, or gone. So an engine that goes or comes moves the sessions that it had, and no others.

    Args:
        bound: of requests; an infinite one is pure hashing, which pins sessions to an engine that is saturated.
        clock: seconds.
        active_seconds: sessions that have not come for longer hold nothing any more.

    Attributes:
        moves: sessions that left a full engine for another; all later requests of theirs follow.
    """

    def __init__(
        self, bound: Bound, clock: Callable[[], float] = time.monotonic, active_seconds: float = 300.0
    ) -> None:
        self.bound, self._clock, self._seconds, self.moves = bound, clock, active_seconds, 0
        self._homes: OrderedDict[str, tuple[str, float]] = OrderedDict()  # with the last time, the oldest first
        self._counts: Counter[str] = Counter()
        self._others = LeastLoad()

    def choose(self, wanted: Wanted, loads: Loads) -> str:
        """Returns the session's engine; without a session the one with the fewest requests."""
        if not wanted.session:
            return self._others.choose(wanted, loads)
        now = self._clock()
        while self._homes and now - next(iter(self._homes.values()))[1] > self._seconds:
            self._leave(next(iter(self._homes)))
        open_ = self.bound.open(loads)
        home, _ = self._homes.get(wanted.session, ("", 0.0))
        if home:
            self._leave(wanted.session)
        if home not in open_:
            self.moves += home in loads
            home = min(self._roomy(open_, loads), key=lambda engine: place(wanted.session, engine))
        self._homes[wanted.session] = home, now
        self._counts[home] += 1
        return home

    def forget(self, engine: str) -> None:
        """Its sessions are reassigned; others stay."""
        for session in [session for session, (home, _) in self._homes.items() if home == engine]:
            self._leave(session)

    def _roomy(self, engines: list[str], loads: Loads) -> list[str]:
        """Returns the engines that may get another session: with few sessions if they can be had, and few requests."""
        if math.isinf(self.bound.factor):
            return engines
        few = EVEN.open({engine: loads[engine] for engine in engines})
        return EVEN.open({engine: self._counts[engine] for engine in few})

    def _leave(self, session: str) -> None:
        home, _ = self._homes.pop(session)
        self._counts[home] -= 1


def place(session: str, engine: str) -> bytes:
    """Returns what decides an engine's place in a session's order."""
    return blake2b(f"{len(session)}:{session}{engine}".encode(errors="surrogatepass"), digest_size=8).digest()


class PrefixAware:
    """The engine that was sent most of the prompt before, among those below the bound.

    Where none was sent half of it, a new place costs little: the engine with the fewest requests.

    Args:
        bound: of loads.
        remembered: blocks of each engine at most; the ones that were not sent for longest go.
    """

    moves = 0

    def __init__(self, bound: Bound, remembered: int = 65536) -> None:
        self.bound, self._remembered = bound, remembered
        self._sent: dict[str, OrderedDict[int, None]] = {}
        self._others = LeastLoad()

    def choose(self, wanted: Wanted, loads: Loads) -> str:
        open_ = self.bound.open(loads)
        known = {engine: self._known(engine, wanted.blocks) for engine in open_}
        most = max(known.values())
        if 2 * most >= len(wanted.blocks) > 0:
            open_ = [engine for engine in open_ if known[engine] == most]
        chosen = self._others.choose(wanted, {engine: loads[engine] for engine in open_})
        sent = self._sent.setdefault(chosen, OrderedDict())
        for block in reversed(wanted.blocks):  # the beginning last: what follows from it is forgotten before it
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > self._remembered:
            sent.popitem(last=False)
        return chosen

    def forget(self, engine: str) -> None:
        """It has none of it any more."""
        self._sent.pop(engine, None)

    def _known(self, engine: str, blocks: tuple[int, ...]) -> int:
        """Returns how many of the first blocks an engine was sent."""
        sent = self._sent.get(engine, ())
        return next((number for number, block in enumerate(blocks) if block not in sent), len(blocks))
