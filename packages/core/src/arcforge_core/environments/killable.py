"""Verifiers in processes that can be killed: whatever one of them does, the caller gets a score in bounded time.

A process makes the environment from its class and its config and then judges one episode after the other. It is killed
when a judgement takes too long, and another one takes its place. Answers come back as JSON, so nothing that a verifier
made is unpickled here; what it prints goes nowhere. This bounds mistakes: code that means harm belongs in a sandbox.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import pickle
import queue
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from arcforge_core.contracts.environment import Episode, Score, Task
from arcforge_core.environments.rewards import as_score, failed
from arcforge_core.errors import ConfigError

if TYPE_CHECKING:
    from arcforge_core.environments.base import EnvironmentBase

START_SECONDS = 120.0
"""For a process to import the environment's class and make it; no judgement is timed with it."""
MEMORY_BYTES = 2 << 30
"""Data that a process may hold beyond what it has after its start."""
PROCESSES = 2
PATIENCE = 10
"""Times its seconds that a process has by the clock at most, where it wants to compute and others are let run."""
RUNNABLE = ("R", "T", "t")
"""States of processes in proc(5) that wait for nothing but a processor, or to be continued."""
_SERVING = threading.Event()
"""Set in the processes."""
ANSWER_BYTES = 1 << 16
CHILD = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {} import serve; serve()"


class _Died(Exception):
    """The process is gone; the message says what is known about it."""


class _Process:
    """One process. Requests are pickles behind their length, answers lines of JSON."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", CHILD.format(__name__), json.dumps(sys.path)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=environment)
        self._loaded: set[bytes] = set()
        self.killed = False

    def judge(self, environment: EnvironmentBase, method: str, task: Task, episode: Episode, seconds: float) -> Score:
        """Returns what a method finds."""
        load = _load_request(environment)
        if load not in self._loaded:
            answer = self._ask(load, START_SECONDS)
            if "error" in answer:
                name = type(environment).__name__
                hint = "cannot be made in another process: define it, and its config, at the top of a module"
                raise ConfigError("environment", name, f"{hint} ({answer['error']})")
            self._loaded.add(load)
        request = pickle.dumps(("judge", load, method, pickle.dumps((task, episode)), PATIENCE * seconds + 1.0))
        answer = self._ask(request, seconds)
        return Score(float(answer["value"]), str(answer["reason"]))

    def close(self) -> None:
        """Ends the process."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):  # a half-written request cannot be flushed any more
                pipe.close()  # type: ignore[union-attr]

    def _watch(self, done: threading.Event, seconds: float) -> None:
        """Kills the process when its time is over; who is not let run, on a busy machine, has more of it."""
        before = _used(self._child.pid)[1]
        for _ in range(PATIENCE):
            if done.wait(seconds):
                return
            state, used = _used(self._child.pid)
            if state not in RUNNABLE or used - before > 0.9 * seconds:
                break
        self.killed = True
        self._child.kill()

    def _ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, seconds), name="arcforge-verifier", daemon=True)
        watch.start()
        try:
            self._child.stdin.write(len(request).to_bytes(8, "big") + request)
            self._child.stdin.flush()
            line = self._child.stdout.readline(ANSWER_BYTES)
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            if self.killed:
                raise _Died(f"the verifier did not end within {seconds:g} s") from error
            raise _Died(f"the verifier's process ended (code {self._child.poll()})") from error
        finally:
            done.set()
            watch.join()
        return answer if isinstance(answer, dict) else {"value": 0.0, "reason": "the verifier's process spoke nonsense"}


class Verifiers:
    """A few processes that judge; used by many threads."""

    def __init__(self, processes: int = PROCESSES) -> None:
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(processes):
            self._idle.put(None)  # begun when it is needed
        atexit.register(self.close)

    def judge(self, environment: EnvironmentBase, method: str, task: Task, episode: Episode, seconds: float) -> Score:
        """Returns what a method of the environment finds, 0 where its process had to be killed or died.

        Raises:
            ConfigError: the environment cannot be made in another process.
        """
        process = self._idle.get()
        try:
            process = process or _Process()
            return process.judge(environment, method, task, episode, seconds)
        except _Died as death:
            assert process is not None
            process.close()
            process = None
            return Score(0.0, str(death))
        finally:
            if process is not None and process.killed:  # in the moment that it answered
                process.close()
                process = None
            self._idle.put(process)

    def close(self) -> None:
        """Ends the processes that judge nothing at the moment; the others end with this process's pipes."""
        while not self._idle.empty():
            process = self._idle.get()
            if process is not None:
                process.close()


@functools.cache
def verifiers() -> Verifiers:
    """Returns this process's verifiers.

    Raises:
        ConfigError: this is one of their processes: it plays an environment while it imports the module.
    """
    if _SERVING.is_set():
        raise ConfigError(
            "environment", "module", "plays when it is imported; put that below if __name__ == '__main__'"
        )
    return Verifiers()


def _used(pid: int) -> tuple[str, float]:
    """Returns a process's state and the processor seconds that it has used; nothing where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load_request(environment: EnvironmentBase) -> bytes:
    kind = type(environment)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    place = (kind.__module__, file, kind.__qualname__)
    return pickle.dumps(("load", place, pickle.dumps(environment.config)))


def serve() -> None:
    """Is the process: reads requests from standard input until it ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to answer
    _SERVING.set()
    environments: dict[bytes, EnvironmentBase] = {}
    while (request := _read(requests)) is not None:
        what, *given = pickle.loads(request)
        answer = _load(environments, request, *given) if what == "load" else _judge(environments, *given)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _read(requests: BinaryIO) -> bytes | None:
    length = requests.read(8)
    return requests.read(int.from_bytes(length, "big")) if len(length) == 8 else None


def _load(
    environments: dict[bytes, EnvironmentBase], request: bytes, place: tuple[str, str | None, str], config: bytes
) -> dict[str, str]:
    name, file, qualified = place
    try:
        found = _module(name, file)
        for part in qualified.split("."):
            found = getattr(found, part)
        environments[request] = found.for_verifiers(pickle.loads(config))
        environments[request].warm_up()
    except Exception as error:  # told to the caller, who raises
        return {"error": f"{type(error).__name__}: {error}"[:1000]}
    resource.setrlimit(resource.RLIMIT_DATA, (_held() + MEMORY_BYTES, resource.RLIM_INFINITY))
    return {}


def _held() -> int:
    """Returns the bytes of data that this process has, as far as the system tells."""
    sizes = Path("/proc/self/statm")
    return int(sizes.read_text().split()[5]) * resource.getpagesize() if sizes.exists() else 0


def _module(name: str, file: str | None) -> Any:
    """Imports a module, by its file where its name leads nowhere: scripts and tests."""
    if name in sys.modules and name != "__main__":
        return sys.modules[name]
    with contextlib.suppress(ImportError):
        if name != "__main__":
            return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("__arcforge_main__" if name == "__main__" else name, file or "")
    if spec is None or spec.loader is None:
        raise ImportError(f"no module {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _judge(
    environments: dict[bytes, EnvironmentBase], load: bytes, method: str, given: bytes, alarm: float
) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, alarm)  # for the case that the caller is dead and cannot kill
    try:
        score = as_score(getattr(environments[load], method)(*pickle.loads(given)))
    except BaseException as error:  # SystemExit, too
        score = failed(error)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    return {"value": score.value, "reason": score.reason}
