"""How requests reach a task service and answers come back: lines of a subprocess, or HTTP.

A request is a JSON object with ``id``, ``op`` and ``rollout``; its answer repeats ``id`` and ``rollout``. No wrong
answer reaches a rollout: one that comes twice, late, or for no request is counted and
thrown away, and one that names another rollout fails the request.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx

from arcforge_core.contracts.environment import EpisodeFailure

LONGEST = 64 << 20
"""Bytes of an answer at most."""
REMEMBERED = 10_000
"""Requests whose end is remembered, to tell late answers from second ones."""
PAUSE = 1.0
"""Seconds from one start of a program to the next at least."""
Answer = Mapping[str, Any]


class Line(Protocol):
    """Reaches one service.

    Attributes:
        counts: answers that were thrown away: ``twice``, ``late``, ``stray``; and ``restarts`` of a program.
    """

    counts: Counter[str]

    async def ask(self, op: str, rollout: str, **fields: Any) -> Answer:
        """Returns the answer to a request.

        Raises:
            EpisodeFailure: the service is not there, ended, or gave an answer that is none.
        """

    def kill(self) -> None:
        """Kills a program that answers no more, so that the next request starts it again."""

    async def close(self) -> None:
        """Ends the connection, and a program with it."""


class ProgramLine:
    """A program that reads requests from its input and writes answers to its output, a line each, in any order.

    It is started at the first request, and again at the first one after its end. Its error output is this process's.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self.command = name, list(command)
        self.counts: Counter[str] = Counter()
        self._ids = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[Answer]]] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()  # why a request needs no answer
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._started = float("-inf")

    async def ask(self, op: str, rollout: str, **fields: Any) -> Answer:
        """See `Line`."""
        id, future = next(self._ids), asyncio.get_running_loop().create_future()
        self._asked[id] = rollout, future
        why = "late"
        try:
            process = await self._running()
            assert process.stdin is not None
            process.stdin.write(json.dumps({"id": id, "op": op, "rollout": rollout, **fields}).encode() + b"\n")
            await process.stdin.drain()
            answer: Answer = await future
            why = "twice"
            return answer
        except ConnectionError as error:
            raise EpisodeFailure("worker", f"service {self.name}: its program ended: {error}") from error
        except OSError as error:
            raise EpisodeFailure("worker", f"service {self.name}: its program is not there: {error}") from error
        finally:
            self._asked.pop(id, None)
            self._ended[id] = why
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)

    def kill(self) -> None:
        """See `Line`."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """Ends the program: its input ends, then it is killed."""
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                async with asyncio.timeout(PAUSE):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None and self._process.returncode is None and self._hangs_up(self._process):
                self._process.kill()  # it reads no more, or its end is not known yet
                await self._process.wait()
            if self._process is None or self._process.returncode is not None:
                loop = asyncio.get_running_loop()
                await asyncio.sleep(self._started + PAUSE - loop.time())
                if self._process is not None:
                    self.counts["restarts"] += 1
                self._started, pipe = loop.time(), asyncio.subprocess.PIPE
                self._process = await asyncio.create_subprocess_exec(
                    *self.command, stdin=pipe, stdout=pipe, limit=LONGEST, start_new_session=True, env=with_commands()
                )
                self._reading = loop.create_task(self._read(self._process))
            return self._process

    @staticmethod
    def _hangs_up(process: asyncio.subprocess.Process) -> bool:
        return process.stdin is None or process.stdin.is_closing()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hands out the answers of one life of the program; its requests without an answer fail with it."""
        assert process.stdout is not None
        why = ""
        try:
            while line := await process.stdout.readline():
                self._take(line)
        except ValueError:  # what a reader with a limit raises
            why = f"a line of its program has more than {LONGEST} bytes"
            process.kill()
        code = await process.wait()
        why = why or f"its program ended with code {code}"
        for _, future in list(self._asked.values()):
            if not future.done():
                future.set_exception(EpisodeFailure("worker", f"service {self.name}: {why}"))

    def _take(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
            id = answer["id"]
        except (ValueError, KeyError, TypeError):
            self.counts["stray"] += 1
            return
        rollout, future = self._asked.get(id, ("", None))
        if future is None or future.done():
            self.counts["twice" if future is not None else self._ended.get(id, "stray")] += 1
        elif (wrong := wrong_rollout(self.name, answer, rollout)) is not None:
            future.set_exception(wrong)
        else:
            future.set_result(answer)


def with_commands() -> dict[str, str]:
    """Returns this process's environment variables, with our own commands in ``PATH``."""
    ours = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join(filter(None, (os.environ.get("PATH"), ours)))}


class HttpLine:
    """A service at a URL: every request is ``POST URL`` with the request as its body."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.counts: Counter[str] = Counter()
        self._ids = itertools.count(1)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=10.0), limits=limits)

    async def ask(self, op: str, rollout: str, **fields: Any) -> Answer:
        """See `Line`."""
        id = next(self._ids)
        where = f"service {self.name} at {self.url}"
        try:
            response = await self._http.post(self.url, json={"id": id, "op": op, "rollout": rollout, **fields})
            response.raise_for_status()
            answer: Any = response.json()
        except httpx.HTTPError as error:
            raise EpisodeFailure("worker", f"{where}: {type(error).__name__}: {error}") from error
        except ValueError as error:
            raise EpisodeFailure("worker", f"{where} does not answer with JSON: {error}") from error
        if not isinstance(answer, dict) or answer.get("id") != id:
            self.counts["stray"] += 1
            raise EpisodeFailure("worker", f"{where} answers another request than {id}")
        if (wrong := wrong_rollout(self.name, answer, rollout)) is not None:
            raise wrong
        return answer

    def kill(self) -> None:
        """Has no effect: the server is not ours."""

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()


def wrong_rollout(name: str, answer: Answer, rollout: str) -> EpisodeFailure | None:
    """Returns the failure of a request whose answer is for another rollout."""
    found = answer.get("rollout")
    return None if found == rollout else EpisodeFailure(
        "worker", f"service {name} answers for rollout {found!r} in place of {rollout!r}"
    )  # fmt: skip
