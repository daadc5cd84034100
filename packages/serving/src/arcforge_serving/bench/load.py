"""Sends the sessions of a workload, with a fixed concurrency or at random arrival times."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate

from arcforge_core.console.progress import track
from arcforge_serving.bench.client import Client, StreamedReply
from arcforge_serving.bench.workloads import Message, Session

NOT_SENT = "not sent"


@dataclass(frozen=True)
class Record:
    """A request that was sent, or could not be because one before it in its session failed.

    Attributes:
        session, turn: which.
        due: seconds from the beginning of the measurement to when it was to be sent.
        late: seconds that it waited for a free place, and for this client.
        reply: what came.
    """

    session: int
    turn: int
    due: float
    late: float
    reply: StreamedReply

    @property
    def arrivals(self) -> list[float]:
        """When the chunks came, from when the request was due."""
        return [self.late + arrival for arrival in self.reply.arrivals]

    @property
    def seconds(self) -> float:
        """How long the request took, from when it was due."""
        return self.late + self.reply.seconds


@dataclass
class LoadGenerator:
    """Sends sessions to a client.

    Args:
        client: connected.
        rate: sessions per second, at intervals of a Poisson process; None sends each as soon as it may.
        concurrency: sessions at a time at most; None sets no limit.
        seed: of the arrivals.
    """

    client: Client
    rate: float | None = None
    concurrency: int | None = None
    seed: int = 0
    records: list[Record] = field(default_factory=list)

    async def run(self, sessions: Sequence[Session], what: str) -> list[Record]:
        """Runs all sessions; returns a record for each request, in the order in which they ended."""
        place = nullcontext() if self.concurrency is None else asyncio.Semaphore(self.concurrency)
        ended: asyncio.Queue[Record] = asyncio.Queue()
        start = time.perf_counter()
        waiting = zip(sessions, self.arrivals(len(sessions)), strict=True)
        requests = sum(len(session.turns) for session in sessions)
        async with asyncio.TaskGroup() as group:
            for number, (session, due) in enumerate(waiting):
                group.create_task(self._session(number, session, start, due, place, ended))
            return [await ended.get() for _ in track(range(requests), what)]

    def arrivals(self, count: int) -> list[float]:
        """Returns when each session begins."""
        if self.rate is None:
            return [0.0] * count
        draw = random.Random(self.seed)
        return list(accumulate(draw.expovariate(self.rate) for _ in range(count)))

    async def _session(
        self,
        number: int,
        session: Session,
        start: float,
        due: float,
        place: asyncio.Semaphore | nullcontext[None],
        ended: asyncio.Queue[Record],
    ) -> None:
        await asyncio.sleep(start + due - time.perf_counter())
        async with place:
            said: list[Message] = []
            failed = False
            for turn, request in enumerate(session.turns):
                if turn:
                    await asyncio.sleep(session.pause)
                now = time.perf_counter() - start
                if turn or self.rate is None:  # without a rate a request is due when its place is free
                    due = now
                if failed:
                    ended.put_nowait(
                        Record(number, turn, due, 0.0, StreamedReply(error=NOT_SENT, message="an earlier turn failed"))
                    )
                    continue
                said += request.messages
                reply = await self.client.complete(said, request.output_tokens)
                failed = reply.error is not None
                said.append(Message("assistant", reply.text))
                ended.put_nowait(Record(number, turn, due, now - due, reply))
