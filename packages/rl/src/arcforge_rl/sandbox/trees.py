"""Trees of files that untrusted code wrote: copied with bounds, given away, deleted."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from arcforge_core.contracts.sandbox import SandboxBoundError

DEPTH = 128
"""Maximum directories in each other."""
PATH_BYTES = 1024
"""Maximum length of a path inside a tree, and of a link's text: a quarter of the kernel's, which programs run into."""
BYTES_PER_FILE = 4096
"""Maximum files of a sandbox: its bytes divided by this, so that empty files do not fill the kernel's memory."""


@dataclass
class Size:
    """Size of a tree: bytes that are not holes, each file once; files, directories and links."""

    bytes: int = 0
    members: int = 0

    @classmethod
    def of_disk(cls, disk_bytes: int) -> Size:
        """Returns the most that fits into a sandbox's own memory file system."""
        return cls(disk_bytes, max(64, disk_bytes // BYTES_PER_FILE))

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.members + other.members)

    def add(self, part: Size, room: Size | None) -> None:
        """Grows by a part; raises `SandboxBoundError` if that is more than the room."""
        self.bytes, self.members = self.bytes + part.bytes, self.members + part.members
        for bound in ("bytes", "members"):
            if room is not None and getattr(self, bound) > getattr(room, bound):
                raise SandboxBoundError(
                    f"the tree has more than {getattr(room, bound):,} {bound}, as its sandbox's disk_bytes allows",
                    bound, getattr(room, bound),
                )  # fmt: skip


def check_path(path: str) -> None:
    """Raises `SandboxBoundError` if a path inside a tree, or a link's text, is too deep or too long."""
    if path.count("/") > DEPTH:
        raise SandboxBoundError(f"{path[:80]!r}...: more than {DEPTH} directories deep", "depth", DEPTH)
    if len(os.fsencode(path)) > PATH_BYTES:
        raise SandboxBoundError(f"{path[:80]!r}...: longer than {PATH_BYTES} bytes", "path", PATH_BYTES)


def copy_tree(source: str, target: str, room: Size | None = None) -> Size:
    """Copies the contents of a directory that nobody changes meanwhile, and returns their size.

    Hard links inside the tree and holes stay such. Owners, extended attributes, devices, pipes, sockets and set-user-id
    bits are dropped.

    Args:
        source: the directory.
        target: an existing, empty directory.
        room: with it, the tree may be no larger, no deeper than `DEPTH`, and have no paths longer than `PATH_BYTES`.

    Raises:
        SandboxBoundError: it exceeds a bound.
    """
    size, folders = Size(), []
    for name, mode, first in _members(source):
        original, copy = os.path.join(source, name), os.path.join(target, name)
        if room is not None:
            check_path(name)
        size.add(Size(members=1), room)
        if stat.S_ISDIR(mode):
            os.mkdir(copy)
            folders.append((copy, mode))
        elif first != name:
            os.link(os.path.join(target, first), copy, follow_symlinks=False)
        elif stat.S_ISLNK(mode):
            text = os.readlink(original)
            if room is not None:
                check_path(text)
            os.symlink(text, copy)
        else:
            _copy_file(original, copy, mode, size, room)
    for folder, mode in reversed(folders):  # now that nothing more is written into them
        os.chmod(folder, mode & 0o777)
    return size


def size_of(tree: str) -> Size:
    """Returns the size of what `copy_tree` would copy."""
    size = Size()
    for name, mode, first in _members(tree):
        size.members += 1
        if stat.S_ISREG(mode) and first == name:
            with open(os.path.join(tree, name), "rb") as file:
                size.bytes += sum(end - start for start, end in _data(file.fileno()))
    return size


def _members(tree: str) -> Iterator[tuple[str, int, str]]:
    """Yields the path in the tree, mode, and first path of the same file, directories before their contents."""
    first_paths: dict[tuple[int, int], str] = {}
    folders = [""]
    for folder in folders:  # which grows meanwhile
        with os.scandir(os.path.join(tree, folder)) as entries:
            for entry in entries:
                name, info = os.path.join(folder, entry.name), entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    folders.append(name)
                elif not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                    continue
                shared = info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode)
                first = first_paths.setdefault((info.st_dev, info.st_ino), name) if shared else name
                yield name, info.st_mode, first


def _copy_file(source: str, target: str, mode: int, size: Size, room: Size | None) -> None:
    """Copies the parts of a file that are not holes, each after it was added to the size."""
    with (
        open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as original,
        open(target, "xb", buffering=0) as copy,
    ):
        for start, end in _data(original.fileno()):
            size.add(Size(bytes=end - start), room)
            copy.seek(start)
            while start < end:
                sent = os.sendfile(copy.fileno(), original.fileno(), start, end - start)
                if not sent:
                    raise OSError(errno.EAGAIN, "the file became shorter while it was copied", source)
                start += sent
        copy.truncate(os.fstat(original.fileno()).st_size)
        os.fchmod(copy.fileno(), mode & 0o777)


def _data(file: int) -> Iterator[tuple[int, int]]:
    """Yields start and end of the parts of a file that are not holes."""
    end = 0
    while True:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # only a hole is left, or nothing
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end


def give(path: str, user: int | None) -> None:
    """Gives a file to the unprivileged user, if there is one."""
    if user is not None and os.lstat(path).st_uid != user:
        os.chown(path, user, user, follow_symlinks=False)


def give_tree(path: str, user: int | None) -> None:
    """Like `give`, for a directory and all its contents."""
    give(path, user)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            give(os.path.join(folder, name), user)


def remove_tree(path: str) -> None:
    """Deletes a directory that may be too deep for Python or closed to its owner."""
    if subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False).returncode:
        subprocess.run(["chmod", "-R", "u+rwx", "--", path], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", "--", path], check=False)
