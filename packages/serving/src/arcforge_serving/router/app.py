"""The router's application: the routes that are about all engines, and everything else, which goes to one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from arcforge_serving.router.affinity import wanted_of
from arcforge_serving.router.control import GENERATE, PREFIX, STATUS, UPLOAD, FleetControl
from arcforge_serving.router.decisions import DecisionLog
from arcforge_serving.router.fleet import Fleet, Member
from arcforge_serving.router.metrics import page, pages
from arcforge_serving.router.problems import EXCEEDED, LIMITED, OVERLOADED, problem_at
from arcforge_serving.router.relay import Counts, Relay
from arcforge_serving.server.gate.access import Access
from arcforge_serving.server.gate.auth import Level
from arcforge_serving.server.gate.guard import Guard, bounded
from arcforge_serving.server.gate.hosts import Hosted
from arcforge_serving.server.gate.rates import RateLimitError

ALL = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
ENGINES = "/v1/router/engines"


@dataclass
class RouterState:
    """What the routes share."""

    fleet: Fleet
    control: FleetControl
    guard: Guard
    counts: Counts = field(default_factory=Counts)
    log: DecisionLog = field(default_factory=lambda: DecisionLog(None))
    closing: bool = False


def create_router(fleet: Fleet, guard: Guard, folder: Path) -> Starlette:
    """Returns the application.

    Args:
        fleet: has the engines, and is started and stopped by the caller.
        guard: keys, limits and rates; engines check them too.
        folder: for uploads of weights.

    Raises:
        ConfigError: ``router.log`` cannot be written.
    """
    state = RouterState(fleet, FleetControl(fleet, folder), guard, log=DecisionLog(fleet.config.log))
    routes = [
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route(ENGINES, engines),
        Route(ENGINES + "/{number:int}/{action}", act, methods=["POST"]),
        Route(GENERATE, relay, methods=["POST"]),
        Route(PREFIX + "/{path:path}", control, methods=["GET", "POST"]),
        Route("/{path:path}", relay, methods=ALL),
    ]
    handlers = {HTTPException: _refuse, RateLimitError: _limit, ClientDisconnect: _gone}
    app = _Router(routes=routes, exception_handlers=handlers)
    app.state.router = state
    return app


class _Router(Starlette):
    def build_middleware_stack(self) -> ASGIApp:
        """Returns the application with `Access` around it, for ids, and for the log of what no engine answers."""
        state: RouterState = self.state.router
        return Access(Hosted(super().build_middleware_stack(), lambda: state.guard.hosts, problem_at))


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_at(request.scope, error.status_code, str(error.detail), headers=error.headers)


async def _limit(request: Request, error: Exception) -> Response:
    assert isinstance(error, RateLimitError)
    _state(request).counts.limited += 1
    return problem_at(request.scope, 429, str(error), LIMITED, code=EXCEEDED, headers=error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    """Ends a request whose client left before its body was there; nobody reads the reply, the log has its status."""
    return Response(status_code=499)


def _state(request: Request) -> RouterState:
    state: RouterState = request.app.state.router
    return state


def _check(request: Request, level: Level) -> RouterState:
    state = _state(request)
    state.guard.admit(request, level)
    return state


async def health(request: Request) -> Response:
    """Says whether an engine works."""
    alive = bool(_state(request).fleet.present)
    return JSONResponse({"status": "ok" if alive else "no engine works"}, 200 if alive else 503)


async def ready(request: Request) -> Response:
    """Says whether requests are taken, and what each engine does."""
    state = _state(request)
    shown = {member.name: member.state.value for member in state.fleet.members}
    if state.closing or not state.fleet.ready:
        return JSONResponse({"status": "shutting down" if state.closing else "no engine", "engines": shown}, 503)
    return JSONResponse({"status": "paused" if state.control.paused else "ready", "engines": shown})


async def metrics(request: Request) -> Response:
    """Shows what all have counted, for Prometheus."""
    state = _check(request, Level.USER)
    found = await pages(state.fleet, request.headers.items())
    if not isinstance(found, dict):
        return Response(found.content, found.status_code, media_type=found.headers.get("content-type"))
    content, content_type = page(state.fleet, state.counts, found, request.headers.get("accept", ""))
    return Response(content, media_type=content_type)


async def engines(request: Request) -> Response:
    """Lists the engines."""
    state = _check(request, Level.ADMIN)
    return JSONResponse({"engines": [member.show() for member in state.fleet.members]})


async def act(request: Request) -> Response:
    """Drains an engine, reopens it, or drains and restarts it."""
    state = _check(request, Level.ADMIN)
    member = _member(state.fleet, request.path_params["number"])
    match request.path_params["action"]:
        case "drain":
            state.fleet.drain(member)
        case "undrain":
            state.fleet.undrain(member)
        case "restart":
            await state.fleet.restart(member)
        case action:
            raise HTTPException(404, f"no action {action[:40]!r}; there are drain, undrain and restart")
    return JSONResponse(member.show())


def _member(fleet: Fleet, number: int) -> Member:
    if number >= len(fleet.members):
        raise HTTPException(404, f"no engine {number}; there are {len(fleet.members)}, from 0 on")
    return fleet.members[number]


async def control(request: Request) -> Response:
    """Passes what an admin does on to all engines."""
    state = _check(request, Level.ADMIN)
    if request.method == "GET" and request.url.path != STATUS:
        raise HTTPException(404, "Not Found")
    streams = request.url.path == UPLOAD
    request = bounded(request, state.guard.limits, streams)
    return await state.control.handle(request, b"" if streams else await request.body())


class Relayed(Response):
    """A reply that a `Relay` gives."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends what the engine says."""
        await self._relay(scope, receive, send)


async def relay(request: Request) -> Response:
    """Passes a request on to an engine."""
    state = _state(request)
    content, blocks = b"", state.fleet.config.policy == "prefix"
    if request.method not in ("GET", "HEAD", "OPTIONS"):
        _check(request, Level.USER)  # before a body is read
        content = await bounded(request, state.guard.limits, streams=False).body()
    wanted = wanted_of(request.headers, content, blocks=blocks, path=request.scope["path"])
    if state.closing:
        return problem_at(request.scope, 503, "the server is shutting down", OVERLOADED)
    return Relayed(Relay(state.fleet, state.counts, content, wanted, state.log))
