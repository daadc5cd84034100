"""How prefill and decode processes find each other: the addresses and the secret that each is started with."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arcforge_serving.engine.paged import PagedEngine


@dataclass(frozen=True)
class Wiring:
    """The connections of one process.

    Attributes:
        addresses: of the prefill roles; a restarted process keeps its address.
        secret: shared by all of them.
        listener: of a prefill role; None makes a decode role.
    """

    addresses: tuple[tuple[str, int], ...]
    secret: str
    listener: socket.socket | None = None

    def connect(self, engine: PagedEngine) -> None:
        """Gives an engine its role.

        Raises:
            ConfigError: see `check_pages`.
        """
        from arcforge_serving.disaggregation.roles import DecodeRole, PrefillRole
        from arcforge_serving.disaggregation.tcp import PrefillServer, TcpConnector

        if self.listener is None:
            engine.prefill = DecodeRole(engine, TcpConnector(self.addresses, self.secret))
        else:
            PrefillServer(PrefillRole(engine).pages, self.listener, self.secret)


@contextmanager
def wired(decode: int, prefill: int) -> Iterator[list[Wiring | None]]:
    """Yields the wiring of each process, decode roles first; None for each if there are no prefill roles."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(prefill)]
        common = Wiring(tuple(each.getsockname()[:2] for each in listeners), secrets.token_hex(16))
        roles = [replace(common, listener=listener) for listener in listeners]
        yield [*[common if prefill else None] * decode, *roles]
