"""Which names a server answers to, and which pages in browsers may ask it.

A page of any site can have its name resolve to 127.0.0.1 (DNS rebinding) and then counts as the server's own page in
the browser. Only the ``Host`` header still shows the foreign name, so a server that listens on loopback refuses such
names with 421 (RFC 9110, section 15.5.20). ``Origin`` shows pages that ask across sites; foreign ones get 403.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from arcforge_serving.configs import ServeConfig
from arcforge_serving.server.gate.listening import is_loopback

HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9_-][a-z0-9_.-]{0,253}))(?::([0-9]{0,5}))?")
"""The header in lower case: an address of version 6, or a name or other address, and a port."""
PORTS = {"http": "80", "https": "443"}
Refuse = Callable[[Scope, int, str], ASGIApp]
"""(scope of a request, status, message) -> the answer, in the dialect of the request."""


@dataclass(frozen=True)
class Hosts:
    """Names and origins that are accepted.

    Attributes:
        names: besides localhost and the addresses of loopback, in lower case; None accepts every name.
        origins: of pages, besides the server's own, as browsers write them: ``https://chat.example.com``.
    """

    names: frozenset[str] | None = frozenset()
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: ServeConfig) -> Hosts:
        """Returns the configured ones: where other machines reach the server every name, unless it lists some."""
        names = frozenset(name_of(name) for name in (*config.allowed_hosts, config.host))
        every = not config.allowed_hosts and not is_loopback(config.host)
        return cls(None if every else names, frozenset(origin.lower() for origin in config.allowed_origins))

    def problem(self, scope: Scope) -> tuple[int, str] | None:
        """Returns why a request is refused, as status and message; None when it is not."""
        headers = Headers(scope=scope)
        given = headers.get("host")
        host = HOST.fullmatch((given or "").lower())
        if host is None and given is not None:
            return 400, f"Host: {shown(given)} is no name or address with a port"
        if host is not None and not self._knows(host, scope):
            return 421, f"Host: this server does not answer as {shown(host[0])}; allowed_hosts lists further names"
        for origin in headers.getlist("origin"):
            if not self._admits(origin.lower(), "" if host is None else host[0]):
                allowed = "allowed_origins lists those that may"
                return 403, f"Origin: pages of {shown(origin)} may not ask this server; {allowed}"
        return None

    def _knows(self, host: re.Match[str], scope: Scope) -> bool:
        name = host[1] or name_of(host[2])
        server = scope.get("server") or ("",)
        return self.names is None or name in self.names or is_local(name) or name == server[0]

    def _admits(self, origin: str, host: str) -> bool:
        """Returns whether an origin is listed, or names the host and port that the request names."""
        scheme, _, authority = origin.partition("://")
        port = PORTS.get(scheme)
        if origin in self.origins:
            return True
        return port is not None and bool(host) and with_port(authority, port) == with_port(host, port)


class Hosted:
    """Wraps an application: requests that `Hosts` refuses do not reach it. Listed origins receive CORS headers.

    Args:
        app: the application.
        hosts: called for each request, since a guard may be replaced.
        refuse: makes the answer.
    """

    def __init__(self, app: ASGIApp, hosts: Callable[[], Hosts], refuse: Refuse) -> None:
        self._app, self._hosts, self._refuse = app, hosts, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, hosts = self._app, self._hosts()
        if scope["type"] == "http" and (problem := hosts.problem(scope)) is not None:
            app = self._refuse(scope, *problem)
        elif scope["type"] == "http" and hosts.origins:
            app = CORSMiddleware(app, hosts.origins, allow_methods=["*"], allow_headers=["*"])
        await app(scope, receive, send)


def is_local(name: str) -> bool:
    """Returns whether a name or address in lower case always means this machine."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def name_of(host: str) -> str:
    """Returns a host name as it is compared: lower case, without brackets and the dot that ends a full name."""
    return host.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def with_port(authority: str, port: str) -> str:
    """Returns a host and its port, `port` where it names none."""
    found = HOST.fullmatch(authority)
    return "" if found is None else f"{found[1] or name_of(found[2])}:{found[3] or port}"


def shown(text: str) -> str:
    return ascii(text[:100])
