"""How many requests and tokens a minute each key may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

MINUTE = 60.0
ROUNDING = 1e-6
LIMITED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
"""Paths of what generates."""
MOST_HOLDERS = 10_000
"""Of whom something is remembered; those that are owed nothing go first."""


class RateLimitError(Exception):
    """A key has taken what it may for now.

    Attributes:
        headers: when to come back.
    """

    def __init__(self, limit: str, value: int, seconds: float) -> None:
        wait = max(1, math.ceil(seconds))
        super().__init__(f"the limit of {limit}={value} is reached; try again in {wait} s")
        self.headers = {"Retry-After": str(wait)}


@dataclass
class Bucket:
    """The balance at a time. It refills within a minute; below zero it must first recover."""

    most: float
    left: float
    at: float

    def fill(self, now: float) -> None:
        """Adds what has come since."""
        self.left = min(self.most, self.left + (now - self.at) * self.most / MINUTE)
        self.at = now

    def seconds_to(self, level: float) -> float:
        """Returns when so much is left."""
        return (level - self.left) * MINUTE / self.most


class Rates:
    """Limits requests and tokens per minute of each holder of a key.

    A request counts when it arrives. Its tokens count when they are known, the prompt's immediately and the others as
    the request ends; a holder with a negative balance is refused. So a prompt may exceed the
    tokens of a minute; later requests wait.

    Args:
        requests: per minute; None is unlimited.
        tokens: per minute, of prompts and outputs; None is unlimited.
        clock: seconds.
    """

    def __init__(
        self, requests: int | None = None, tokens: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.requests, self.tokens, self._clock = requests, tokens, clock
        self._buckets: dict[str, dict[str, Bucket]] = {}

    def admit(self, holder: str) -> None:
        """Counts a request.

        Raises:
            RateLimitError: it is one too many, or tokens are owed.
        """
        buckets = self._of(holder)
        waits = []
        for name, least in (("requests_per_minute", 1.0), ("tokens_per_minute", 0.0)):
            bucket = buckets.get(name)
            if bucket is not None and bucket.left < least - ROUNDING:
                waits.append((bucket.seconds_to(least), name, round(bucket.most)))
        if waits:
            seconds, name, most = max(waits)
            raise RateLimitError(name, most, seconds)
        if self.requests is not None:
            buckets["requests_per_minute"].left -= 1

    def spend(self, holder: str, tokens: int) -> None:
        """Counts tokens."""
        if self.tokens is not None:
            self._of(holder)["tokens_per_minute"].left -= tokens

    def _of(self, holder: str) -> dict[str, Bucket]:
        now = self._clock()
        if holder not in self._buckets and len(self._buckets) >= MOST_HOLDERS:
            self._forget(now)
        limits = {"requests_per_minute": self.requests, "tokens_per_minute": self.tokens}
        new = {name: Bucket(most, most, now) for name, most in limits.items() if most is not None}
        buckets = self._buckets.setdefault(holder, new)
        for bucket in buckets.values():
            bucket.fill(now)
        return buckets

    def _forget(self, now: float) -> None:
        """Drops the holders whose balances have refilled; if there is none, the one seen first."""
        for buckets in self._buckets.values():
            for bucket in buckets.values():
                bucket.fill(now)
        full = [who for who, found in self._buckets.items() if all(b.left == b.most for b in found.values())]
        for who in full or list(self._buckets)[:1]:
            del self._buckets[who]


class Reported(Rates):
    """Rates of a router's engine: the router has admitted the request, and receives its token counts.

    Args:
        spent: is given a holder and tokens.
    """

    def __init__(self, spent: Callable[[str, int], None]) -> None:
        super().__init__()
        self._spent = spent

    def spend(self, holder: str, tokens: int) -> None:
        """Passes it on."""
        self._spent(holder, tokens)
