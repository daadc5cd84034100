"""The system-call filter of the sandboxes, assembled to classic BPF in plain Python.

A deny list: calls that help to escape, or that reach parts of the kernel that untrusted programs do not need, return
EPERM; all others pass. Namespaces, capabilities and Landlock confine; this is the second layer. Numbers are those of
the kernel's tables for x86_64 and of its generic table for aarch64; a call of another architecture (i386, x32) kills
the process.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> column of the tables below, AUDIT_ARCH value."""

DENIED: dict[str, tuple[int | None, int | None]] = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "perf_event_open": (298, 241),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272), "userfaultfd": (323, 282),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "move_mount": (429, 429),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "mount_setattr": (442, 442), "setns": (308, 268),
    "unshare": (272, 97), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "syslog": (103, 116), "lookup_dcookie": (212, 18), "vhangup": (153, 58), "fanotify_init": (300, 262),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
}  # fmt: skip

DENIED_ON_THE_HOST: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "process_mrelease": (448, 448), "shmat": (30, 196), "shmctl": (31, 195),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_unlink": (241, 181), "connect": (42, 203), "bind": (49, 200),
}  # fmt: skip
"""Permitted by Landlock, but confined by namespaces: attributes of files by path, System V objects, scheduling of
other processes, named sockets in the file system, on which a user's other programs listen."""

CLONE, CLONE3, IOCTL, SOCKET, SOCKETPAIR = (56, 220), (435, 435), (16, 29), (41, 198), (53, 199)
PRLIMIT, UTIMENSAT, FCNTL = (302, 261), (280, 88), (72, 25)
SET_LEASE, NOTIFY = 1024, 1026
"""Commands of fcntl that make the owner's other programs wait when they open a file, or watch them."""
NAMESPACES = 0x7E020000 | 0x80
"""CLONE_NEW* of user, mount, process, network, ipc, uts, cgroup and time."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""Typing or pasting into a terminal that is shared with the caller."""
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
STREAM, SEQPACKET = 1, 5

LOAD, EQUAL, AT_LEAST, ANY_BIT, MASK, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCH = 0, 4
"""Offsets in struct seccomp_data."""
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def program(network: bool, machine: str | None = None) -> bytes:
    """Returns the filter as an array of ``struct sock_filter``.

    Args:
        network: whether the sandbox has its own empty network, where internet sockets reach nothing. Without one, all
            sockets except connected pairs are denied, and so are the calls in `DENIED_ON_THE_HOST`.
        machine: processor; None: this one.

    Raises:
        OSError: the processor is not one of `ARCHITECTURES`.
    """
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}: must be one of {', '.join(ARCHITECTURES)}")
    column, arch = ARCHITECTURES[machine]
    return b"".join(struct.pack("=HBBI", *line) for line in _lines(column, arch, network))


Line = tuple[int, int, int, int]


def _lines(column: int, arch: int, network: bool) -> Iterator[Line]:
    """Yields (code, jump if true, jump if false, value)."""
    yield LOAD, 0, 0, ARCH
    yield EQUAL, 1, 0, arch
    yield RETURN, 0, 0, KILL
    yield LOAD, 0, 0, NUMBER
    if column == 0:  # x32 calls carry bit 30
        yield AT_LEAST, 0, 1, 0x40000000
        yield RETURN, 0, 0, KILL
    for numbers in [*DENIED.values(), *(() if network else DENIED_ON_THE_HOST.values())]:
        number = numbers[column]
        if number is not None:
            yield from _call(number, [(RETURN, 0, 0, ERRNO | errno.EPERM)])
    # glibc falls back to clone, whose flags can be inspected
    yield from _call(CLONE3[column], [(RETURN, 0, 0, ERRNO | errno.ENOSYS)])
    yield from _call(CLONE[column], _deny(ANY_BIT, _argument(0), NAMESPACES))
    yield from _call(IOCTL[column], [*_deny(EQUAL, _argument(1), TIOCSTI), *_deny(EQUAL, _argument(1), TIOCLINUX)])
    yield from _call(FCNTL[column], [*_deny(EQUAL, _argument(1), SET_LEASE), *_deny(EQUAL, _argument(1), NOTIFY)])
    yield from _call(SOCKET[column], _allow_only(_argument(0), (UNIX, INET, INET6, NETLINK) if network else ()))
    if not network:
        # a pair of datagram sockets can send to any named socket
        yield from _call(SOCKETPAIR[column], _allow_only(_argument(1), (STREAM, SEQPACKET), mask=0xF))
        yield from _call(PRLIMIT[column], _allow_only(_argument(0), (0,)))
        # a NULL path means the open file itself
        yield from _call(UTIMENSAT[column], [*_allow_only(_argument(1), (0,)), *_allow_only(_argument(1) + 4, (0,))])
    yield RETURN, 0, 0, ALLOW


def _argument(index: int) -> int:
    """Returns the offset of an argument's low half; both machines are little-endian."""
    return 16 + 8 * index


def _call(number: int, body: list[Line]) -> Iterator[Line]:
    """Yields `body` for one system call; if it does not decide, reloads the number for the next test."""
    yield EQUAL, 0, len(body) + 1, number
    yield from body
    yield LOAD, 0, 0, NUMBER


def _deny(test: int, offset: int, value: int) -> list[Line]:
    return [(LOAD, 0, 0, offset), (test, 0, 1, value), (RETURN, 0, 0, ERRNO | errno.EPERM)]


def _allow_only(offset: int, values: tuple[int, ...], mask: int = 0xFFFFFFFF) -> list[Line]:
    tests = [(EQUAL, len(values) - n, 0, value) for n, value in enumerate(values)]
    return [(LOAD, 0, 0, offset), (MASK, 0, 0, mask), *tests, (RETURN, 0, 0, ERRNO | errno.EPERM)]
