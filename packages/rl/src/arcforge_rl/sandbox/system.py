"""Linux system calls that Python 3.11 does not wrap: namespaces, mounts, process attributes, Landlock."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

NEW_MOUNTS, NEW_USERS, NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
"""Flags of unshare(2) and setns(2)."""
NO_SUID, NO_DEVICES, BIND, RECURSIVE, SLAVE = 0x2, 0x4, 0x1000, 0x4000, 0x80000
"""Flags of mount(2)."""
DETACH = 2
SET_PDEATHSIG, SET_SUBREAPER, SET_NO_NEW_PRIVS, SET_SECCOMP = 1, 36, 38, 22
FILTER = 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
READ, WRITE_DEVICE, EVERYTHING = 0b1101, 0b110, 0xFFFF & ~((1 << 6) | (1 << 11))
"""Landlock's rights: execute, read, list; read and write a device; all except creating devices."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Moves this process, which must have one thread, into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def enter_namespace(fd: int, flag: int) -> None:
    """Moves this process into an existing namespace."""
    _check(_libc.setns(fd, flag), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mounts a file system; raises OSError with the system's reason."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None)
    _check(_libc.mount(*arguments), f"mount {kind or 'bind'} on {target}")


def unmount(target: str) -> None:
    """Unmounts lazily: new accesses to the path no longer reach the mount."""
    _check(_libc.umount2(target.encode(), DETACH), f"unmount {target}")


def prctl(option: int, value: int, pointer: object = 0) -> None:
    """Sets an attribute of this process."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0), f"prctl {option}")


def install_filter(program: bytes) -> None:
    """Installs a seccomp filter on this process, which then cannot gain privileges."""
    prctl(SET_NO_NEW_PRIVS, 1)
    lines = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(lines)))
    prctl(SET_SECCOMP, FILTER, ctypes.byref(header))


def landlock_abi() -> int:
    """Returns the version of the kernel's Landlock, 0 if it has none."""
    return max(0, int(_libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def restrict_files(readable: Iterable[str], devices: Iterable[str], writable: Iterable[str]) -> None:
    """Confines this process to these paths, without TCP, without signals or abstract sockets to others (ABI 6)."""
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", 0xFFFF, 0b11, 0b11), 24)
    ruleset = _check(_libc.syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(24), 0), "landlock_create_ruleset")
    for paths, rights in ((readable, READ), (devices, WRITE_DEVICE), (writable, EVERYTHING)):
        for path in paths:
            _allow(ruleset, path, rights)
    prctl(SET_NO_NEW_PRIVS, 1)
    _check(_libc.syscall(LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    folder = os.path.isdir(path)
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights if folder else rights & 0b111, parent), 12)
        _check(_libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(parent)
