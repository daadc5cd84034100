"""The address that a server listens on."""

from __future__ import annotations

import ipaddress
import socket

from arcforge_core.errors import ConfigError
from arcforge_serving.server.gate.auth import USER_KEYS


def listen(host: str, port: int, *, keys: bool = False) -> socket.socket:
    """Binds the address before a model is loaded, so that a wrong address is reported early.

    Args:
        host, port: the address.
        keys: whether those who ask need a key; without, only this machine may reach it.

    Raises:
        ConfigError: the address is taken or not this machine's, or others reach it without a key.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError("port", port, f"cannot listen on {host}: {error.strerror or error}") from error
    address = ipaddress.ip_address(listener.getsockname()[0])
    if not address.is_loopback and not keys:
        listener.close()
        accepted = f"other machines reach {address}, which needs an API key: api_key_file, or {USER_KEYS}"
        raise ConfigError("host", host, accepted)
    return listener


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches a host name or address; a name that does not resolve counts as such."""
    if not host:  # all addresses
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def url(listener: socket.socket) -> str:
    """Returns the address of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
