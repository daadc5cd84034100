"""Users of the sandboxes of root: one each, so that they share nothing that the kernel counts per user."""

from __future__ import annotations

import itertools
import os
import random
import socket
from pathlib import Path

FIRST, BLOCK, BLOCKS = 0x70000000, 1 << 16, 1 << 12
"""Ids that neither accounts nor the containers and services of systemd get: 4,096 blocks, one for each keeper."""
UNPRIVILEGED = 65534
"""User and group of all sandboxes where ids are not free to choose, as in a container with few of them."""


class Users:
    """The users of one keeper's sandboxes; also their groups' ids.

    A block of ids belongs to the process that has bound an abstract socket with its number, until it ends.
    """

    def __init__(self) -> None:
        self.used: set[int] = set()
        self.lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ids: itertools.cycle[int] | None = None
        start = random.SystemRandom().randrange(BLOCKS)  # as other network namespaces have sockets of their own
        for block in (*range(start, BLOCKS), *range(start)) if os.getuid() == 0 and can_choose() else ():
            first = FIRST + block * BLOCK
            try:
                self.lock.bind(f"\0arcforge-sandbox-users-{first}")
            except OSError:  # another keeper's
                continue
            self.ids = itertools.cycle(range(first, first + BLOCK))
            break

    def gaps(self) -> list[str]:
        """Returns the gap where root's sandboxes cannot have users of their own."""
        if os.getuid() or self.ids is not None:
            return []
        return [
            f"all sandboxes run as user {UNPRIVILEGED} and share what the kernel counts per user, such as inotify and "
            f"signals: no ids from {FIRST} on are free in this user namespace"
        ]

    def take(self) -> int | None:
        """Returns an id that no other sandbox has; None: this process's own, because only root can act as another."""
        if os.getuid():
            return None
        if self.ids is None:
            return UNPRIVILEGED
        user = next(user for user in self.ids if user not in self.used)
        self.used.add(user)
        return user

    def give_back(self, user: int | None) -> None:
        """Takes an id back when its sandbox has ended."""
        self.used.discard(user or 0)


def can_choose(proc: str = "/proc/self") -> bool:
    """Returns whether all ids of the blocks exist in this user namespace."""
    for name in ("uid_map", "gid_map"):
        rows = [list(map(int, line.split())) for line in Path(proc, name).read_text(encoding="utf-8").splitlines()]
        if not any(first <= FIRST and first + count >= FIRST + BLOCK * BLOCKS for first, _, count in rows):
            return False
    return True
