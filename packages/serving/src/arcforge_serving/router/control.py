"""``/v1/rl`` for all engines together.

One operation at a time, as with one engine. Every engine gets it; the answer is theirs. What they were given last is
kept, so that a restarted engine gets it before it accepts requests: no request is ever answered by weights
that were replaced.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from arcforge_serving.router.fleet import Fleet, Member
from arcforge_serving.router.problems import FAULT, OVERLOADED, problem
from arcforge_serving.router.process import EngineError
from arcforge_serving.router.relay import engine_url, passed_on

PREFIX = "/v1/rl"
PAUSE, RESUME, STATUS, ABORT = (f"{PREFIX}/{name}" for name in ("pause", "resume", "status", "abort"))
GENERATE = f"{PREFIX}/generate"
"""The one route below `PREFIX` that goes to one engine."""
UPDATE, UPLOAD = f"{PREFIX}/update_weights", f"{PREFIX}/update_weights/tensors"
CREDENTIALS = (b"authorization", b"x-api-key")
PART = 2**20
OF_ONE = ("limits", "page_size", "prefix_reuse", "speculation")
"""Figures that are the same for all engines, or say nothing when summed."""


@dataclass(frozen=True)
class Call:
    """An admin's request for every engine; `upload` is a file that is its body."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    content: bytes = b""
    upload: Path | None = None

    @classmethod
    def of(cls, request: Request, content: bytes = b"", upload: Path | None = None) -> Call:
        """Returns a client's request, without its key: it may be sent when that key is one no more."""
        headers = tuple((k, v) for k, v in passed_on(request) if k not in CREDENTIALS)
        return cls(request.method, request.url.path, request.scope["query_string"], headers, content, upload)

    def with_version(self, version: int) -> Call:
        """Returns an update as one that names its version, as every engine that comes later has to take it."""
        if self.path == UPDATE:
            body = {**json.loads(self.content), "version": version}
            return Call(self.method, self.path, self.query, self.headers, json.dumps(body).encode())
        query = httpx.QueryParams(self.query.decode()).set("version", version)
        return Call(self.method, self.path, str(query).encode(), self.headers, upload=self.upload)

    @property
    def has_adapters_alone(self) -> bool:
        """Whether it is an update that needs the one of the base before it."""
        return httpx.QueryParams(self.query.decode()).get("adapters", "").lower() in ("1", "on", "true", "yes")

    async def send(self, member: Member, seconds: float) -> httpx.Response:
        """Asks an engine; gives it `seconds` for an update.

        Raises:
            httpx.TransportError: it died, is dead, or took longer.
        """
        if member.http is None or member.process is None:
            raise httpx.ConnectError(member.problem)
        url = engine_url(self.path.encode(), self.query)
        content = self.content if self.upload is None else _parts(self.upload)
        headers = [*self.headers, (b"authorization", f"Bearer {member.process.key}".encode())]
        try:
            async with asyncio.timeout(seconds if self.is_update else None):
                return await member.http.request(self.method, url, headers=headers, content=content)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"{self.path} took longer than router.update_seconds={seconds:g}") from error

    @property
    def is_update(self) -> bool:
        """Whether it has weights."""
        return self.path in (UPDATE, UPLOAD)


async def _parts(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while part := await asyncio.to_thread(file.read, PART):
            yield part


class UploadError(Exception):
    """An upload that is not taken: the status, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FleetControl:
    """What the routes do.

    Args:
        fleet: has the engines.
        folder: where uploads are kept.
    """

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self._fleet, self._folder, self._seconds = fleet, folder, fleet.config.update_seconds
        self.operation: str | None = None
        self._update: Call | None = None  # what every new engine gets first
        self._adapters: Call | None = None  # then this, if adapters were the last update
        self._pause: Call | None = None
        self._uploads = 0
        fleet.bring_up = self.bring_up

    @property
    def paused(self) -> bool:
        """Whether the engines are paused."""
        return self._pause is not None

    @contextmanager
    def _doing(self, operation: str) -> Iterator[None]:
        self.operation = operation
        try:
            yield
        finally:
            self.operation = None

    async def bring_up(self, member: Member) -> None:
        """Gives an engine that has just started what the others have.

        Raises:
            EngineError: it does not take it.
        """
        for call in (self._update, self._adapters, self._pause):
            if call is None:
                continue
            answer = await call.send(member, self._seconds)
            if answer.status_code != 200:
                raise EngineError(f"{call.path} again: {answer.status_code} {answer.text[:500]}")

    async def handle(self, request: Request, content: bytes) -> Response:
        """Answers a request below ``/v1/rl``, whose key was checked; `content` is empty for an upload."""
        path = request.url.path
        if path in (STATUS, ABORT):
            answer = await self._all(Call.of(request, content))
            return self._status(answer) if path == STATUS else _first(answer, good_is_enough=True)
        if self.operation is not None:
            return problem(409, f"{self.operation} is in progress; {path} has to wait for its end")
        with self._doing(path.removeprefix(f"{PREFIX}/")):
            try:
                call = Call.of(request, content, await self._store(request) if path == UPLOAD else None)
            except UploadError as error:
                return problem(error.status, str(error))
            # to its end: a client that disconnects leaves nothing half done
            work = asyncio.ensure_future(self._change(call))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                raise

    async def _change(self, call: Call) -> Response:
        async with self._fleet.changing:
            answers = await self._all(call)
            done = {number: answer for number, answer in answers.items() if answer.status_code == 200}
            if done and call.path == PAUSE:
                # a new engine has nothing to end or to wait for
                self._pause = Call(call.method, PAUSE, b"", call.headers, b'{"mode": "keep"}')
            elif done and call.path == RESUME:
                self._pause = None
            elif done and call.is_update:
                version = max(int(answer.json()["weight_version"]) for answer in done.values())
                self._keep(call.with_version(version))
                # an engine that did not apply it gets it in its next life
                done = {n: a for n, a in done.items() if a.json()["weight_version"] == version}
            elif call.upload is not None:
                call.upload.unlink()
            refused: dict[str, str] = {}
            if done or call.is_update:
                for member in self._fleet.present:
                    answer = answers.get(member.number)
                    # without an answer nobody knows which weights it has
                    if member.number not in done and member.process is not None and (done or answer is None):
                        said = self._silent(call) if answer is None else f"{answer.status_code} {answer.text[:200]}"
                        refused[member.name] = said
                        member.problem = f"{call.path} failed on it"
                        self._fleet.drop(member)
            if refused and done:
                return JSONResponse({**next(iter(done.values())).json(), "refused": refused})
            return _first(answers)

    def _silent(self, call: Call) -> str:
        """Returns why an engine has not answered."""
        return f"it died, or took longer than router.update_seconds={self._seconds:g}" if call.is_update else "it died"

    def _keep(self, call: Call) -> None:
        for old in (self._adapters,) if call.has_adapters_alone else (self._adapters, self._update):
            if old is not None and old.upload is not None:
                old.upload.unlink()
        if call.has_adapters_alone:
            self._adapters = call
        else:
            self._update, self._adapters = call, None

    async def _all(self, call: Call) -> dict[int, httpx.Response]:
        """Asks all engines that answer; one that dies meanwhile has no answer."""
        members = self._fleet.present
        asked = (call.send(member, self._seconds) for member in members)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, httpx.Response):
                found[member.number] = answer
            elif not isinstance(answer, httpx.TransportError):
                raise answer
        return found

    async def _store(self, request: Request) -> Path:
        """Writes an upload to a file.

        Raises:
            UploadError: it is too large, breaks off, or there is no room.
        """
        self._uploads += 1
        path, size = self._folder / f"upload-{self._uploads}", 0
        most = max((m.process.upload_bytes for m in self._fleet.present if m.process is not None), default=0)
        try:
            with path.open("wb") as file:
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise UploadError(
                            413, f"the upload has more than {most} bytes, this model's tensors have fewer"
                        )
                    await asyncio.to_thread(file.write, part)
        except UploadError:
            path.unlink()
            raise
        except ClientDisconnect as error:
            path.unlink()
            raise UploadError(400, "the upload broke off") from error
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UploadError(507, f"the upload cannot be stored: {error.strerror}") from error
        return path

    def _status(self, answers: dict[int, httpx.Response]) -> Response:
        if not answers or any(answer.status_code != 200 for answer in answers.values()):
            return _first(answers)
        parts = {number: answer.json() for number, answer in answers.items()}
        whole = summed(list(parts.values()))
        shown = [{**member.show(), **parts.get(member.number, {})} for member in self._fleet.members]
        return JSONResponse({**whole, "operation": self.operation, "engines": shown})


def summed(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns one status for those of several engines: counts are added, times averaged, the version is the oldest."""
    first, whole = parts[0], {}
    for name, value in first.items():
        if name in OF_ONE:
            whole[name] = value
        elif isinstance(value, bool):
            whole[name] = all(part[name] for part in parts)
        elif isinstance(value, int):
            whole[name] = sum(part[name] for part in parts)
        elif isinstance(value, float):
            whole[name] = sum(part[name] for part in parts) / len(parts)
        elif isinstance(value, list):
            whole[name] = [sum(values) for values in zip(*(part[name] for part in parts), strict=True)]
    whole["weight_version"] = min(part["weight_version"] for part in parts)
    whole["accepted_length"] = 1 + sum(whole["accepted_by_position"]) / whole["drafts"] if whole["drafts"] else 1.0
    return whole


def _first(answers: dict[int, httpx.Response], good_is_enough: bool = False) -> Response:
    """Returns one answer for all: a success, or a refusal with each engine's message if all refuse."""
    if not answers:
        return problem(503, "no engine answers now; try again later", OVERLOADED)
    codes = {answer.status_code for answer in answers.values()}
    good = [answer for answer in answers.values() if answer.status_code == 200]
    chosen = good[0] if good else next(iter(answers.values()))
    if len(codes) > 1 and not good_is_enough and not good:
        said = "; ".join(
            f"engine {number}: {answer.status_code} {answer.text[:200]}" for number, answer in answers.items()
        )
        return problem(502, f"the engines disagree: {said}", FAULT)
    content_type = chosen.headers.get("content-type", "application/json")
    return Response(chosen.content, chosen.status_code, media_type=content_type)
