"""The keeper: a small single-threaded process that owns the sandboxes of one backend.

Started as ``python -m arcforge_rl.sandbox.supervisor CONFIG FD``. It forks the commands, so that a training process
with gigabytes of memory and many threads need not. When the other end of the socket closes, even by ``kill -9``, it
kills every command, removes control groups and directories, and ends; mounts end with its namespace.

Messages are JSON, one per packet. In: ``open``, ``spawn`` (with descriptors), ``run``, ``signal``, ``kill``, ``copy``,
``close``.
Out: an answer to ``open``, ``copy`` and ``close`` by ``id``, and ``spawned`` and ``ended`` by ``exec``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from arcforge_core.contracts.sandbox import SandboxBoundError
from arcforge_rl.sandbox import system
from arcforge_rl.sandbox.boxes import (
    BLOCK,
    HAND_OVER,
    HIGHEST,
    INPUT,
    SCRIPT,
    STATUS,
    STDERR,
    STDOUT,
    Box,
    Boxes,
    NamespaceBoxes,
    Running,
)
from arcforge_rl.sandbox.cgroups import Group, Parent, sweep
from arcforge_rl.sandbox.forks import threads_of
from arcforge_rl.sandbox.landlock_boxes import LandlockBoxes
from arcforge_rl.sandbox.network import Network
from arcforge_rl.sandbox.trees import Size, copy_tree, remove_tree
from arcforge_rl.sandbox.view import View

MESSAGE = 1 << 18
PROCESSES = "{{ ulimit -u {0} 2>/dev/null || ulimit -p {0}; }}"
"""bash and busybox accept the first form, dash the second."""
NO_PROCESS = 126
"""Exit code of a command for which the sandbox's limit of processes leaves none, as a shell has it."""
OPEN_FILES = 512
"""Limit per process."""
FIXED_LIMITS = {resource.RLIMIT_CORE: 0, resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_MEMLOCK: 1 << 16}
"""Inherited by commands from the keeper, which needs none of it."""
WAYS: dict[str, Callable[[dict[str, Any]], Boxes]] = {"bubblewrap": NamespaceBoxes, "landlock": LandlockBoxes}


class Keeper:
    """State and loop of the process."""

    def __init__(self, config: dict[str, Any], control: socket.socket) -> None:
        self.parents = [Parent(folder, version, tuple(names)) for folder, version, names in config["cgroups"]]
        self.counted = {name for parent in self.parents for name in parent.controllers}
        self.nproc_by_namespace = config["way"] == "bubblewrap"
        self.control = control
        system.prctl(system.SET_SUBREAPER, 1)
        sweep(self.parents)
        self.boxes = WAYS[config["way"]](config)
        self.opened: dict[int, tuple[Box, Group]] = {}
        self.running: dict[int, Running] = {}
        self.closing: dict[int, int] = {}
        self.copying: dict[int, list[dict[str, Any]]] = {}
        self.helpers: set[int] = set()
        self.selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Handles messages and ends of processes until the other side disconnects."""
        self.selector.register(self.control, selectors.EVENT_READ, self.receive)
        self.send({"ready": True, "gaps": self.boxes.gaps})
        try:
            while True:
                for key, _ in self.selector.select():
                    key.data()
        except (ConnectionError, EOFError):
            self.end()

    def send(self, message: dict[str, Any]) -> None:
        self.control.send(json.dumps(message).encode())

    def receive(self) -> None:
        """Handles one message; an error is its answer."""
        data, fds, _, _ = socket.recv_fds(self.control, MESSAGE, 8)
        for fd in fds:
            os.set_inheritable(fd, False)
        if not data:
            raise EOFError
        message = json.loads(data)
        do = message["do"]
        if do == "open":
            self.open(message)
        elif do == "spawn":
            try:
                self.spawn(message, fds)
            except (OSError, KeyError) as error:
                report = {"code": None, "kills": 0, "killed": False, "error": f"{type(error).__name__}: {error}"}
                self.send({"exec": message["exec"], "ended": True, **report})
            finally:
                for fd in fds:
                    os.close(fd)
        elif do in ("run", "signal"):
            self.command(message)
        elif do == "kill":
            self.kill(message["exec"])
        elif do == "copy":
            self.copy(message)
        elif do == "close":
            self.close(message)

    def aside(self, work: Callable[[], dict[str, Any]], then: Callable[[dict[str, Any]], None]) -> None:
        """Works in a separate process, so that other sandboxes do not wait; `then` gets the result, or the error."""
        report, report_end = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                system.prctl(system.SET_PDEATHSIG, signal.SIGKILL)
                self.control.close()  # its end tells the caller that the keeper is gone
                result = work()
            except BaseException as error:
                result = told(error)
            try:
                os.write(report_end, json.dumps(result).encode())
            finally:
                os._exit(0)
        os.close(report_end)
        self.helpers.add(pid)

        def ended() -> None:
            result = json.loads(os.read(report, MESSAGE) or "null")
            self.selector.unregister(report)
            os.close(report)
            self.helpers.remove(pid)
            os.waitpid(pid, 0)
            then({"error": "the process that did this was killed"} if result is None else result)

        self.selector.register(report, selectors.EVENT_READ, ended)

    def open(self, message: dict[str, Any]) -> None:
        """Creates a sandbox."""
        number, group = message["box"], Group(self.parents, str(message["box"]))
        try:
            box = self.boxes.open(str(number), message["disk"], View(**message["view"]))
        except Exception as error:
            group.remove()
            self.send({"id": message["id"], **told(error)})
            return
        self.opened[number] = (box, group)
        if not message["forward"]:
            self.fill(message)
            return
        try:
            box.network = network = Network({int(port): path for port, path in message["forward"].items()})
        except OSError as error:
            reason = told(error)
            self.remove(number, lambda _: self.send({"id": message["id"], **reason}))
            return
        self.selector.register(network.report, selectors.EVENT_READ, lambda: self.connected(message, network))

    def connected(self, message: dict[str, Any], network: Network) -> None:
        """Continues to open a sandbox, or removes it if its network cannot be made."""
        self.selector.unregister(network.report)
        error = network.begun()
        if error is None:
            self.fill(message)
        else:
            self.remove(message["box"], lambda _: self.send({"id": message["id"], "error": f"forward: {error}"}))

    def fill(self, message: dict[str, Any]) -> None:
        """Answers, after a base was put into the sandbox aside."""
        number, base = message["box"], message["base"]
        box, _ = self.opened[number]
        if base is None:
            self.send({"id": message["id"], "work": box.work})
        else:
            self.aside(lambda: asdict(self.boxes.fill(box, base)), lambda copied: self.filled(message, copied))

    def filled(self, message: dict[str, Any], copied: dict[str, Any]) -> None:
        """Answers, or removes a sandbox whose base cannot be put into it."""
        number = message["box"]
        box, _ = self.opened[number]
        if "error" in copied:
            self.remove(number, lambda _: self.send({"id": message["id"], **copied}))
        else:
            box.copied.add(Size(**copied), None)
            self.send({"id": message["id"], "work": box.work})

    def copy(self, message: dict[str, Any]) -> None:
        """Copies the work directory of an idle sandbox aside."""
        number, target = message["box"], self.boxes.reached(message["target"])
        try:
            if number in self.copying or any(r.box == number and r.script < 0 for r in self.running.values()):
                raise ValueError("a command or another copy is running in the sandbox")
            box, _ = self.opened[number]
            os.mkdir(target)
        except (OSError, ValueError, KeyError) as error:
            self.send({"id": message["id"], **told(error)})
            return

        def work() -> dict[str, Any]:
            try:
                copy_tree(box.work, target, box.room())
            except BaseException:
                remove_tree(target)
                raise
            return {}

        self.copying[number] = []
        self.aside(work, lambda result: self.copied(message, result))

    def copied(self, message: dict[str, Any], result: dict[str, Any]) -> None:
        """Answers, and starts the work that waited for the copy."""
        number = message["box"]
        self.send({"id": message["id"], **result})
        for waiting in self.copying.pop(number):
            self.command(waiting)
        if number in self.closing:
            self.close_if_idle(number)

    def spawn(self, message: dict[str, Any], fds: list[int]) -> None:
        """Starts a confined process that waits for its script."""
        number, name = message["box"], message["exec"]
        box, _ = self.opened[number]
        if box.network is not None:
            box.network.check()
        status, status_end = os.pipe()
        block, release = os.pipe()
        script_end, script = os.pipe()
        streams = dict(zip((INPUT, STDOUT, STDERR), fds, strict=True))
        try:
            places = {**streams, STATUS: status_end, BLOCK: block, SCRIPT: script_end}
            pid = self.boxes.start(box, places, message["user"] == "verifier")
        except OSError:
            for fd in (status, release, script):
                os.close(fd)
            raise
        finally:
            for fd in (status_end, block, script_end):
                os.close(fd)
        self.running[name] = Running(number, pid, status, release, script, box.user_of(message["user"] == "verifier"))
        self.await_end(name, pid)
        self.selector.register(status, selectors.EVENT_READ, lambda: self.hear(name))

    def await_end(self, name: int, pid: int) -> int:
        """Watches a process of a command; the end of the last one ends the command."""
        handle = os.pidfd_open(pid)
        self.running[name].awaited.add(handle)
        self.selector.register(handle, selectors.EVENT_READ, lambda: self.over(name, handle))
        return handle

    def hear(self, name: int) -> None:
        """Reads a report of bubblewrap or the supervisor: first the process, then how the command ended."""
        running = self.running[name]
        data = os.read(running.status, 4096)
        running.text += data
        *lines, running.text = running.text.split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "child-pid" in report:
                running.child = report["child-pid"]
                try:
                    running.handle = self.await_end(name, running.child)
                    # it has no children yet, and creates none before its release
                    self.opened[running.box][1].enter(running.child)
                except ProcessLookupError:  # it is dead and already reaped
                    pass
                except OSError as error:
                    running.error, running.doomed = f"the control group cannot be entered: {error}", True
                if running.doomed:
                    self.kill(name)
                self.send({"exec": name, "spawned": True})
            running.code = report.get("exit-code", running.code)
        if not data:
            self.selector.unregister(running.status)
            os.close(running.status)
            running.status = -1
            self.finish(name)

    def command(self, message: dict[str, Any]) -> None:
        """Runs or signals a command, if it has not ended; while its sandbox is copied, it waits."""
        running = self.running.get(message["exec"])
        if running is None or running.child is None or running.doomed:
            return
        if running.box in self.copying:
            self.copying[running.box].append(message)
        elif message["do"] == "run":
            self.run(running, message)
        elif running.handle >= 0:
            self.boxes.signal(running.child, running.handle, message["signal"])

    def run(self, running: Running, message: dict[str, Any]) -> None:
        """Sets the limits and releases the command."""
        limits, (_, group) = message["limits"], self.opened[running.box]
        running.limits = limits
        shared = [other.limits for other in self.running.values() if other.box == running.box and other.limits]
        memory, processes = (max(one[name] for one in shared) for name in ("memory_bytes", "processes"))
        try:
            group.limit(memory, processes + len(shared))  # one of each is bubblewrap's
            running.kills, running.refused = group.out_of_memory(), group.refused()
        except OSError as error:  # its files already exceed its memory limit
            running.error = f"the limits cannot be set: {error}"
            self.kill(message["exec"])
            return
        with contextlib.suppress(
            BrokenPipeError
        ):  # it is dead and its end will be reported; or nothing reads the release
            script = f"{self.bounds(limits, running.user)}\n{message['script']}{HAND_OVER}\n"
            os.write(running.script, script.encode())
            os.close(running.script)
            running.script = -1
            os.write(running.release, b"1")

    def bounds(self, limits: dict[str, Any], user: int | None) -> str:
        """Returns shell commands that set the limits of a process.

        The confined shell sets them itself, because processes are then counted in its own user namespace, and root in a
        container may not set another user's limits. A limit that cannot be set ends the command.
        """
        seconds, processes = max(1, round(limits["cpu_seconds"])), limits["processes"]
        lines = [f"ulimit -St {seconds}", f"ulimit -Ht {seconds + 1}", f"ulimit -f {limits['disk_bytes'] // 512}"]
        lines.append(f"ulimit -n {OPEN_FILES}")
        if self.nproc_by_namespace:
            lines.append(PROCESSES.format(processes + 1))  # the namespace's first process counts
        elif "pids" not in self.counted:
            lines.append(PROCESSES.format(threads_of(user or os.getuid()) + processes))
        if "memory" not in self.counted:  # with a group, it would only break programs that reserve more than they use
            lines.append(f"ulimit -v {limits['memory_bytes'] // 1024}")
        return " && ".join(["true", *lines]) + " || exit 126"

    def kill(self, name: int) -> None:
        """Kills a command, if it has not ended."""
        running = self.running.get(name)
        if running is None:
            return
        running.doomed = True  # without bubblewrap its child would wait forever: kill the child first, once it is known
        if running.child is not None:
            with contextlib.suppress(ProcessLookupError):
                self.boxes.kill(running.pid, running.child)

    def over(self, name: int, handle: int) -> None:
        """Handles the end of one of a command's processes."""
        running = self.running[name]
        self.selector.unregister(handle)
        os.close(handle)
        running.awaited.remove(handle)
        if handle == running.handle:
            running.handle = -1
        self.finish(name)

    def finish(self, name: int) -> None:
        """Reports the end when all processes of the command are gone."""
        running = self.running[name]
        if running.awaited or running.status >= 0:
            return
        self.reap(running)
        os.close(running.release)
        if running.script >= 0:
            os.close(running.script)
        del self.running[name]
        _, group = self.opened[running.box]
        kills, code = group.out_of_memory() - running.kills, running.code
        if code is None and running.limits and group.refused() > running.refused:
            code = NO_PROCESS  # other programs of the sandbox take them all
        report = {"code": code, "kills": kills, "killed": running.doomed, "error": running.error}
        self.send({"exec": name, "ended": True, **report})
        if running.box in self.closing:
            self.close_if_idle(running.box)

    def reap(self, running: Running) -> None:
        """Reaps dead processes: if bubblewrap ends before the sandbox's first process, that becomes our child."""
        os.waitpid(running.pid, 0)
        if running.child is not None:
            with contextlib.suppress(ChildProcessError):  # already reaped by bubblewrap or the supervisor
                os.waitpid(running.child, 0)

    def close(self, message: dict[str, Any]) -> None:
        """Ends a sandbox after its commands."""
        number = message["box"]
        self.closing[number] = message["id"]
        for name, running in list(self.running.items()):
            if running.box == number:
                self.kill(name)
        self.close_if_idle(number)

    def close_if_idle(self, number: int) -> None:
        """Removes a sandbox's files and groups once its last command has ended."""
        if number in self.copying or any(running.box == number for running in self.running.values()):
            return
        answer = {"id": self.closing.pop(number)}
        self.remove(number, lambda result: self.send(answer | result))

    def remove(self, number: int, then: Callable[[dict[str, Any]], None]) -> None:
        """Removes a sandbox; a directory that is left is deleted aside."""
        box, group = self.opened.pop(number)
        if box.network is not None:
            box.network.end()
        try:
            left = self.boxes.close(box)
            group.remove()
        except Exception as error:
            then(told(error))
            return
        if left is None:
            then({})
            return

        def delete() -> dict[str, Any]:
            remove_tree(left)
            return {}

        self.aside(delete, then)

    def end(self) -> None:
        """Kills all commands and removes all sandboxes."""
        self.send = lambda message: None  # type: ignore[method-assign]
        for name, running in list(self.running.items()):
            self.kill(name)
            while running.status >= 0:  # until the first process is reported, if it is not yet, and to the end
                self.hear(name)
            if name in self.running:
                self.reap(running)
        for pid in self.helpers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for box, group in self.opened.values():
            if box.network is not None:
                box.network.end()
            self.boxes.close(box)
            group.remove()
        self.boxes.end()


def told(error: BaseException) -> dict[str, Any]:
    """Returns an error as a part of an answer."""
    if isinstance(error, SandboxBoundError):
        return {"error": str(error), "bound": error.bound, "limit": error.limit}
    return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Reads the configuration and serves."""
    os.setsid()  # a terminal's Ctrl-C is for the caller, which then closes the socket
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=int(sys.argv[2]))
    try:
        keeper = Keeper(config, control)
    except (OSError, ValueError) as error:
        control.send(json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}).encode())
        return
    control.set_inheritable(False)
    for limit, bound in FIXED_LIMITS.items():
        resource.setrlimit(limit, (bound, bound))
    while os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) < HIGHEST:
        pass  # reserves descriptors, so that later ones do not collide with a confined process's numbers
    gc.freeze()  # a collection would write to pages shared with forked processes
    gc.disable()
    keeper.serve()


if __name__ == "__main__":
    main()
