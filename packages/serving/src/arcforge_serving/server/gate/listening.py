"""The addresses that a server listens on."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def listen_unix(path: str | None) -> Iterator[list[socket.socket]]:
    """Listens on a Unix socket in the block, and removes its file afterwards; without a path, on none.

    A file that a killed server has left is replaced.

    Raises:
        ConfigError: another server listens there, the file is something else, or it cannot be made.
    """
    if path is None:
        yield []
        return
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            if os.path.lexists(path):
                free_path(path)
            before = os.umask(0o177)
            try:
                listener.bind(path)
            finally:
                os.umask(before)
        except OSError as error:
            raise ConfigError("unix_socket", path, f"cannot listen there: {error.strerror or error}") from error
        made = os.lstat(path).st_ino
        try:
            yield [listener]
        finally:
            if os.path.lexists(path) and os.lstat(path).st_ino == made:
                os.unlink(path)


def free_path(path: str) -> None:
    """Removes the file of a socket on which no program listens; raises ConfigError or OSError if that is not it."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigError("unix_socket", path, "exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigError("unix_socket", path, "another program listens there")


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
