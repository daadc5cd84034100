"""Files in and out of a sandbox. Only commands inside access them, so a program's links or pipes lead nowhere else.

Downloads are archives that an adversary may have written. They are unpacked in a thread, with bounds, with Python's
``data`` filter, which refuses members that would leave the target, and only if they describe a tree: no member lies
below a link, and none comes twice. Programs that defeat the filter, in versions of Python that have not been mended
(CVE-2025-4517 and others), need one of these.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arcforge_core.contracts.sandbox import (
    Command,
    CommandStatus,
    ExecResult,
    SandboxBoundError,
    SandboxError,
    SandboxLimits,
    SandboxUser,
)
from arcforge_rl.sandbox.trees import Size, check_path

READ = 'test -L "$1" && exit 65; test -f "$1" || exit 66; exec head -c "$2" "$1"'
WRITE = 'test -e "$1" && ! test -f "$1" && exit 66; mkdir -p "${1%/*}/" && exec cat > "$1"'
SPARSE = "case $(tar --version) in *GNU*) holes=--sparse;; esac 2>/dev/null; "
PACK = f'{SPARSE}test -e "$1" || exit 67; cd "${{1%/*}}/" && exec tar -c $holes -f - -- "${{1##*/}}"'
UNPACK = 'mkdir -p "$1" && exec tar -xmf - --no-same-owner -C "$1"'
REASONS = {65: "is a link", 66: "is not a regular file", 67: "does not exist"}
AGENT = SandboxUser.AGENT
OVERHEAD = 2
"""Maximum size of an archive, as a multiple of the sandbox's limit: small files are rounded up in it."""


class FileOperations(ABC):
    """`read`, `write`, `upload` and `download` of a sandbox, by commands in it."""

    limits: SandboxLimits

    @abstractmethod
    async def exec(self, command: Command) -> ExecResult:
        """Runs a command; see the contract."""

    def locate(self, path: str) -> str:
        """Returns a path of the contract as commands in this sandbox see it."""
        return path

    async def read(self, path: str, limit: int = 1 << 20, user: SandboxUser = AGENT) -> bytes:
        done = await self._shell(READ, [path, str(limit + 1)], output=limit + 1, user=user)
        if len(done.stdout) > limit:
            raise SandboxBoundError(f"{path}: longer than {limit} bytes", "bytes", limit)
        return done.stdout

    async def write(self, path: str, data: bytes, user: SandboxUser = AGENT) -> None:
        """Writes a file and its parent directories."""
        await self._shell(WRITE, [path], data, user=user)

    async def upload(self, source: Path, path: str, user: SandboxUser = AGENT) -> None:
        """Copies a host file or directory to `path`."""
        if source.is_file() and not source.is_symlink():
            await self.write(path, await asyncio.to_thread(source.read_bytes), user)
            return
        if not source.is_dir():
            raise SandboxError(f"{source}: must be a file or directory")
        await self._shell(UNPACK, [path], await asyncio.to_thread(pack, source), user=user)

    async def download(self, path: str, target: Path, user: SandboxUser = AGENT) -> None:
        """Copies a file or directory of the sandbox to the new directory `target`, under its own name."""
        await self._unpack(PACK, path.rstrip("/") or "/", target, user)

    async def _unpack(self, script: str, path: str, target: Path, user: SandboxUser = AGENT) -> None:
        """Unpacks the archive that a script writes."""
        done = await self._shell(script, [path], output=OVERHEAD * self.limits.disk_bytes, user=user)
        await asyncio.to_thread(unpack, done.stdout, target, Size.of_disk(self.limits.disk_bytes))

    async def _shell(
        self,
        script: str,
        arguments: list[str],
        data: bytes = b"",
        output: int | None = None,
        user: SandboxUser = AGENT,
    ) -> ExecResult:
        """Runs a shell script on a path; raises `SandboxError` with the cause of a failure."""
        path = arguments[0]
        limits = self.limits if output is None else replace(self.limits, output_bytes=output)
        located = [self.locate(path), *arguments[1:]]
        done = await self.exec(Command(("/bin/sh", "-c", script, "sh", *located), data, limits=limits, user=user))
        if output is not None and done.outcome is CommandStatus.OUTPUT_LIMIT:
            raise SandboxBoundError(f"{path}: more than {output:,} bytes", "bytes", output)
        if not done.ok:
            text = done.stderr.decode(errors="replace").strip()
            known = REASONS.get(done.code or 0) if done.outcome is CommandStatus.EXIT else None
            raise SandboxError(f"{path}: {known or text or done.outcome.value}")
        return done


def pack(source: Path) -> bytes:
    """Returns an archive of a directory's contents."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for entry in sorted(source.iterdir()):
            tar.add(entry, entry.name)
    return archive.getvalue()


def unpack(archive: bytes, target: Path, room: Size) -> None:
    """Unpacks an untrusted archive into the new directory `target`, or leaves no files.

    Raises:
        SandboxBoundError: the tree is larger than `room`, or exceeds the bounds of `check_path`.
        SandboxError: a member would leave the directory, or is no file, directory or link; or it is not an archive of
            one tree.
    """
    if not hasattr(tarfile, "data_filter"):
        raise SandboxError("untrusted archives are not unpacked: Python before 3.11.4 has no tarfile filters")
    os.makedirs(target)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            _extract(tar, target, room)
    except SandboxBoundError:
        shutil.rmtree(target)
        raise
    except (tarfile.TarError, OSError, SandboxError) as error:
        shutil.rmtree(target)
        raise SandboxError(f"{target}: {error}") from error


def _extract(tar: tarfile.TarFile, target: Path, room: Size) -> None:
    size, folders, files, links = Size(), {""}, set[str](), set[str]()
    for member in tar:
        path, source = os.path.normpath(member.name), os.path.normpath(member.linkname)
        check_path(path)
        check_path(member.linkname)
        parent, _, name = path.rpartition("/")
        if path == "." and member.isdir():
            continue
        if parent not in folders or name in ("", "..") or path in folders or path in files or path in links:
            raise SandboxError(f"{path!r} does not belong to a tree")
        if member.islnk() and source not in files:
            raise SandboxError(f"{path!r} is a hard link to no earlier file")
        parts: Sequence[tuple[int, int]] | None = getattr(member, "sparse", None)  # None: it has no holes
        data = member.size if parts is None else sum(count for _, count in parts)
        size.add(Size(0 if member.islnk() else data, 1), room)
        tar.extract(member, target, filter="data")
        (folders if member.isdir() else links if member.issym() else files).add(path)
