"""Routes that declare who may call them and how large a body they accept; both are checked before a body is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Message

from arcforge_core.errors import ConfigError
from arcforge_serving.configs import ServeConfig
from arcforge_serving.server.gate.auth import Keys, Level, digest_of
from arcforge_serving.server.gate.hosts import Hosts
from arcforge_serving.server.gate.key_files import WatchedKeys
from arcforge_serving.server.gate.rates import LIMITED, Rates, Reported
from arcforge_serving.server.gate.record import record_of

SESSION = "arcforge.session"
"""Key of a request's scope: the `Turns` of a gateway that has admitted it, with the `owner` who opened the session."""
READ = "arcforge.read"
"""Key of a request's scope: its body was read within the limits, and comes without a wait."""
Function = TypeVar("Function", bound=Callable[..., Any])
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Limits:
    """Limits of a request body.

    Attributes:
        body_bytes: of a body that is parsed.
        body_seconds: until such a body has come; between two parts of one that is read as it comes.
    """

    body_bytes: int = 8 * 2**20
    body_seconds: float = 30.0


@dataclass(frozen=True)
class Guard:
    """Names, keys, limits and rates of an application.

    Attributes:
        keys: of clients.
        limits: of request bodies.
        rates: of keys.
        router: the key of the router, in one of its engines.
        hosts: names and origins that are accepted.
        max_priority: of requests without an admin key.
    """

    keys: Keys | WatchedKeys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    rates: Rates = field(default_factory=Rates)
    router: Keys = field(default_factory=Keys)
    hosts: Hosts = field(default_factory=Hosts)
    max_priority: int = 0

    @classmethod
    def of(cls, config: ServeConfig, environ: Mapping[str, str]) -> Guard:
        """Returns what a configuration and the environment say.

        Raises:
            ConfigError: see `load_keys`.
        """
        return cls(
            WatchedKeys(config, environ),
            Limits(config.max_body_mb * 2**20, config.body_seconds),
            Rates(config.requests_per_minute, config.tokens_per_minute),
            hosts=Hosts.of(config),
            max_priority=config.max_priority,
        )

    def behind_router(self, key: str, spent: Callable[[str, int], None] | None) -> Guard:
        """Returns the guard of an engine.

        Args:
            key: of the router, which has checked admin keys, names and origins itself.
            spent: called with a holder and a number of tokens; None if tokens are not counted.
        """
        rates = Rates() if spent is None else Reported(spent)
        return replace(self, router=Keys(admins=(digest_of(key),)), rates=rates, hosts=Hosts(names=None))

    def admit(self, request: Request, level: Level) -> str:
        """Checks a request's key and its holder's rate; returns the key's owner, as `Keys.owner`.

        Without keys each address has a rate; admins have none.

        Raises:
            HTTPException: the key is missing or does not suffice.
            RateLimitError: its holder has to wait.
        """
        record, given = record_of(request.scope), credential(request.headers)
        if self.router.owner(given, Level.OPEN):
            return ""
        record.owner = owner = self.keys.owner(given, level)
        limited = request.method == "POST" and request.scope["path"] in LIMITED
        if limited and not self.keys.is_admin(owner):
            record.holder = sharer(request, owner)
            self.rates.admit(record.holder)
        return owner

    def check_priority(self, owner: str, priority: int) -> None:
        """Refuses a priority that the holder of a key may not set.

        Raises:
            ConfigError: it is above `max_priority`, and the key is no admin's.
        """
        if priority > self.max_priority and not self.keys.is_admin(owner):
            raise ConfigError("priority", priority, f"must be at most max_priority={self.max_priority} with this key")


def sharer(request: Request, owner: str) -> str:
    """Returns who has a share of the engine and a rate: the owner of a key, else the client's address."""
    return owner or (request.client.host if request.client else "nobody")


def declare(level: Level, *, streams: bool = False) -> Callable[[Function], Function]:
    """Declares a route's level, below the decorator that adds the route. Routes that declare none are of `Level.USER`.

    Args:
        level: who may call it.
        streams: it reads its body in parts and counts the bytes itself.
    """

    def mark(function: Function) -> Function:
        function.__dict__.update(arcforge_level=level, arcforge_streams=streams)
        return function

    return mark


def level_of(endpoint: Callable[..., Any]) -> Level:
    """Returns what a route's function declares."""
    return getattr(endpoint, "arcforge_level", Level.USER)


class GuardedRoute(APIRoute):
    """The class of all routes; the request's ``state.owner`` says who it is from."""

    def get_route_handler(self) -> Handler:
        """Wraps the handler, which would parse the body first of all."""
        handle: Handler = super().get_route_handler()
        level = level_of(self.endpoint)
        streams = getattr(self.endpoint, "arcforge_streams", False)

        async def guarded(request: Request) -> Response:
            guard: Guard = request.app.state.server.guard
            turns = request.scope.get(SESSION)
            request.state.owner = guard.admit(request, level) if turns is None else turns.owner
            return await handle(request if READ in request.scope else bounded(request, guard.limits, streams))

        return guarded


def credential(headers: Mapping[str, str]) -> str | None:
    """Returns what a request says of its key: ``Authorization``, or Anthropic's ``x-api-key`` as if it stood there."""
    key = headers.get("x-api-key")
    return headers.get("authorization") or (None if key is None else f"Bearer {key}")


def bounded(request: Request, limits: Limits, streams: bool) -> Request:
    """Returns the request with a body that is limited in size and time; a client that goes over is hung up on."""
    hang_up = {"Connection": "close"}
    too_large = HTTPException(413, f"the body has more than the {limits.body_bytes} bytes of max_body_mb", hang_up)
    length = request.headers.get("content-length", "")
    if not streams and length.isdecimal() and int(length[:32]) > limits.body_bytes:
        raise too_large
    clock = asyncio.get_running_loop().time
    end, size, more = clock() + limits.body_seconds, 0, True

    async def receive() -> Message:
        nonlocal size, more
        limit = clock() + limits.body_seconds if streams else end
        try:
            async with asyncio.timeout_at(limit if more else None):
                message = await request.receive()
        except TimeoutError:
            waited = f"the body did not come within body_seconds={limits.body_seconds}"
            raise HTTPException(408, waited, hang_up) from None
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
        if size > limits.body_bytes and not streams:
            raise too_large
        return message

    return Request(request.scope, receive)
