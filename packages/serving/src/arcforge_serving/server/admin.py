"""``/v1/rl``: what a trainer does with an engine: stands it still, ends requests, gives it new weights.

All routes need an admin key. One operation runs at a time, another is refused with 409, except abort and status.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from arcforge_core.checkpoint.pretrained import WEIGHTS, find_checkpoint
from arcforge_core.checkpoint.shards import ShardReader
from arcforge_core.contracts.engine import PartialUpdateError, UnfinishedUpdateError
from arcforge_core.contracts.serving_engine import ServingEngine
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.adapt.low_rank import is_low_rank, without_adapters
from arcforge_serving.server.gate.auth import Level
from arcforge_serving.server.gate.guard import GuardedRoute, declare
from arcforge_serving.server.shared.errors import RESPONSES, ErrorBody
from arcforge_serving.server.shared.metrics import Metrics
from arcforge_serving.server.shared.state import Server

MIB = 2**20
SLACK = 16 * MIB
"""What names and shapes of a safetensors file may take."""

T = TypeVar("T")
Version = Annotated[int | None, Query(ge=0, lt=2**63)]
Checksum = Annotated[str | None, Query(pattern="^[0-9a-f]{64}$")]


class PauseRequest(BaseModel):
    """The treatment of the requests present."""

    model_config = ConfigDict(extra="forbid")
    mode: Literal["abort", "wait", "keep"] = "keep"


class AbortRequest(BaseModel):
    """One request, by the id of its reply or the ``X-Request-Id`` that it came with, or all."""

    model_config = ConfigDict(extra="forbid")
    request_id: str | None = None
    all: bool = False

    @model_validator(mode="after")
    def either(self) -> AbortRequest:
        """Refuses neither and both."""
        if self.all == (self.request_id is not None):
            raise ValueError("either request_id or all=true")
        return self


class UpdateRequest(BaseModel):
    """A folder below the root of weights, and what its weights are."""

    model_config = ConfigDict(extra="forbid")
    path: str = Field(min_length=1)
    version: int | None = Field(None, ge=0, lt=2**63)
    checksum: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    reset: bool = Field(False, description="the version may be any: the run begins, or repeats steps")


@dataclass
class Control:
    """What the routes do.

    Attributes:
        engine: is controlled.
        metrics: counts updates and their times.
        weights_root: folder below which updates may be read; None allows none.
        operation: the one in progress.
    """

    engine: ServingEngine
    metrics: Metrics
    weights_root: Path | None = None
    operation: str | None = None

    @contextmanager
    def doing(self, operation: str) -> Iterator[None]:
        """Keeps others away.

        Raises:
            HTTPException: 409 when another operation is not done.
        """
        if self.operation is not None:
            raise HTTPException(409, f"{self.operation} is in progress; {operation} has to wait for its end")
        self.operation = operation
        try:
            yield
        finally:
            self.operation = None

    async def run(self, operation: str, work: Callable[[], T]) -> T:
        """Does something that waits for the engine."""
        with self.doing(operation):
            return await in_thread(work)

    @property
    def most_bytes(self) -> int:
        """Size of an upload: the tensors, their names and shapes."""
        return upload_limit(self.engine)

    def folder(self, path: str) -> Path:
        """Returns the folder of a checkpoint or run, which lies below the root with all of its files.

        Raises:
            HTTPException: 403 when it does not, or there is no root.
            CheckpointError: there is no checkpoint.
        """
        if self.weights_root is None:
            raise HTTPException(403, "weights_root is not set: this server reads no weights from folders")
        root = self.weights_root.resolve()
        try:
            inside(root, root / path)
            folder = inside(root, find_checkpoint(root / path))
            for file in folder.iterdir():
                inside(root, file)
        except (OSError, ValueError, RuntimeError) as error:  # names that no file system takes, links in circles
            raise CheckpointError(f"path={path!r} cannot be read: {error}") from error
        return folder

    def update(self, what: str, work: Callable[[], None]) -> dict[str, Any]:
        """Updates the weights, and says what came of it in the words of HTTP."""
        start = time.monotonic()
        refused: dict[str, str] = {}
        try:
            work()
        except PartialUpdateError as error:  # of a server before which this one is
            refused = error.refused
        except UnfinishedUpdateError as error:
            self.metrics.updated(what, "refused", time.monotonic() - start)
            raise HTTPException(502, str(error)) from error
        except CheckpointError as error:
            self.metrics.updated(what, "refused", time.monotonic() - start)
            raise HTTPException(400, f"the weights are as before: {error}") from error
        except ConfigError as error:
            self.metrics.updated(what, "refused", time.monotonic() - start)
            raise HTTPException(409, f"the weights are as before: {error}") from error
        seconds = time.monotonic() - start
        self.metrics.updated(what, "done", seconds)
        done = {"weight_version": self.engine.weight_version, "seconds": seconds}
        return {**done, "refused": refused} if refused else done


def check_version(version: int | None, reset: bool) -> None:
    """Refuses version 0, which servers begin with, unless a run begins or repeats steps.

    Raises:
        ConfigError: it is given.
    """
    if version == 0 and not reset:
        raise ConfigError("version", 0, "must be at least 1 without reset=true")


def upload_limit(engine: ServingEngine) -> int:
    """Returns the largest size of an upload in bytes."""
    return SLACK + engine.limits.weight_bytes


def inside(root: Path, path: Path) -> Path:
    """Returns a path without links and dots.

    Raises:
        HTTPException: 403 when that is not below the root.
    """
    found = path.resolve()
    if not found.is_relative_to(root):
        raise HTTPException(403, "path: leads out of weights_root")
    return found


async def in_thread(work: Callable[[], T]) -> T:
    """Runs something in a thread, to its end: a client that goes away leaves nothing half done."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


async def store(parts: AsyncIterator[bytes], path: Path, most: int) -> None:
    """Writes an upload to a file.

    Raises:
        HTTPException: 413 when it is too large, 507 when there is no room for it.
    """
    size, pending = 0, bytearray()
    with path.open("wb") as file:
        async for part in parts:
            size += len(part)
            if size > most:
                raise HTTPException(413, f"the upload has more than {most} bytes, this model's tensors have fewer")
            pending += part
            if len(pending) >= MIB:
                await in_thread(partial(write, file, pending))
                pending = bytearray()
        write(file, pending)


def write(file: BinaryIO, part: bytearray) -> None:
    """Writes to a file; a full disk is no fault of the client's, and none of ours."""
    try:
        file.write(part)
        file.flush()
    except OSError as error:
        raise HTTPException(507, f"the upload cannot be stored: {error.strerror}") from error


def admin_routes(control: Control) -> APIRouter:
    """Returns the routes below ``/v1/rl``."""
    router = APIRouter(prefix="/v1/rl", tags=["rl"], route_class=GuardedRoute, responses=REFUSALS)
    engine = control.engine

    def status() -> dict[str, Any]:
        return {"operation": control.operation, "limits": asdict(engine.limits), **asdict(engine.stats())}

    @router.get("/status")
    @declare(Level.ADMIN)
    async def look() -> dict[str, Any]:
        return status()

    @router.post("/pause")
    @declare(Level.ADMIN)
    async def pause(body: PauseRequest) -> dict[str, Any]:
        await control.run(f"pause {body.mode}", lambda: engine.pause(body.mode))
        return status()

    @router.post("/resume")
    @declare(Level.ADMIN)
    async def resume() -> dict[str, Any]:
        await control.run("resume", engine.resume)
        return status()

    @router.post("/flush")
    @declare(Level.ADMIN)
    async def flush() -> dict[str, Any]:
        await control.run("flush", engine.flush)
        return status()

    @router.post("/abort")
    @declare(Level.ADMIN)
    async def abort(body: AbortRequest, server: Server) -> dict[str, Any]:
        if body.request_id is None:
            await in_thread(engine.abort)
            return status()
        generations = list(server.open.get(body.request_id, ()))
        if not generations:
            raise HTTPException(404, f"no request {body.request_id[:200]!r} is open")
        for generation in generations:
            generation.cancel()
        return status()

    @router.post("/update_weights")
    @declare(Level.ADMIN)
    async def update_weights(body: UpdateRequest) -> dict[str, Any]:
        check_version(body.version, body.reset)

        def work() -> None:
            folder = control.folder(body.path)
            engine.update_weights_from(folder, version=body.version, checksum=body.checksum, reset=body.reset)

        return await control.run("an update", lambda: control.update("directory", work))

    @router.post("/update_weights/tensors", openapi_extra={"requestBody": SAFETENSORS})
    @declare(Level.ADMIN, streams=True)
    async def update_tensors(
        request: Request,
        version: Version = None,
        checksum: Checksum = None,
        adapters: bool = False,
        reset: bool = False,
    ) -> dict[str, Any]:
        check_version(version, reset)
        with control.doing("an update"), TemporaryDirectory(prefix="arcforge-weights-") as folder:
            try:
                await store(request.stream(), Path(folder) / WEIGHTS, control.most_bytes)
            except ClientDisconnect as error:
                raise HTTPException(400, "the upload broke off") from error

            def work() -> None:
                state = dict(ShardReader(Path(folder)))
                if adapters != (is_low_rank(state) and not without_adapters(state)):  # a router goes by the query
                    raise CheckpointError(f"adapters={adapters} says otherwise than the tensors")
                engine.update_weights(state, version=version, checksum=checksum, reset=reset)

            return await in_thread(lambda: control.update("tensors", work))

    return router


REFUSALS: dict[int | str, dict[str, Any]] = {
    **RESPONSES,
    403: {"model": ErrorBody, "description": "An admin key is needed, or the path is not below the root"},
    409: {
        "model": ErrorBody,
        "description": "Another operation is in progress, or the version is not above the present",
    },
    507: {"model": ErrorBody, "description": "There is no room for the upload"},
}
"""What every route may answer besides."""
SAFETENSORS = {
    "required": True,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
"""The body of an upload, for the OpenAPI document."""
