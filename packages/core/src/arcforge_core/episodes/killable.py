"""Verifiers in killable processes: whatever a verifier does, the caller gets a score in bounded time.

A process builds the environment from its class and config and then judges episodes one by one. It is killed when a
judgement takes too long, and a new process replaces it. Answers come back as JSON, so no object from a verifier is
unpickled here; its output is discarded. This protects against bugs only: malicious code belongs in a sandbox.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

from arcforge_core.contracts.environment import Episode, EpisodeFailure, NoVerdict, Score, Task
from arcforge_core.episodes.rewards import judged, score_of
from arcforge_core.errors import ConfigError

START_SECONDS = 120.0
"""Seconds for a process to import and build the environment, outside the time limit of judgements."""
MEMORY_BYTES = 2 << 30
"""Memory that a process may allocate beyond that after its start."""
PROCESSES = 2
ATTEMPTS = 2
"""Attempts at a judgement whose process dies."""
PATIENCE = 10
"""Maximum wall time of a judgement, as a multiple of its limit, on a machine that is busy with other processes."""
WAITING = ("R", "D", "T", "t")
"""States in proc(5) of processes that wait for the machine: runnable, waiting for a disk, or stopped."""
_SERVING = threading.Event()
"""Environment variable set in the verifier processes."""
ANSWER_BYTES = 1 << 16
CHILD = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {} import serve; serve()"


class Judging(Protocol):
    """The part of an environment that a verifier's process rebuilds; see `arcforge_core.episodes.base`."""

    @property
    def config(self) -> Any: ...

    @classmethod
    def for_verifiers(cls, config: Any) -> Self:
        """Returns an environment that is asked for no tasks."""
        ...

    def warm_up(self) -> None:
        """Imports what the verifiers need."""


class _Died(Exception):
    """The process ended by itself."""


class _Killed(Exception):
    """The process exceeded its time limit and was killed."""


class _Starved(_Died):
    """The process was killed without having been let run for its time: the machine was busy, whatever it judged."""


class _Process:
    """One process. Requests are length-prefixed pickles, answers are lines of JSON."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", CHILD.format(__name__), json.dumps(sys.path)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=environment)
        self._loaded: set[bytes] = set()
        self.killed = self.starved = False

    def judge(self, environment: Judging, method: str, task: Task, episode: Episode, seconds: float) -> Score:
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
        if "none" in answer:
            raise NoVerdict(str(answer["none"]))
        if "failure" in answer:
            raise EpisodeFailure(str(answer["failure"]), str(answer["reason"]))
        raw = answer.get("raw")
        return Score(float(answer["value"]), str(answer["reason"]), None if raw is None else float(raw))

    def close(self) -> None:
        """Ends the process."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):  # a partial request can no longer be flushed
                pipe.close()  # type: ignore[union-attr]

    def _watch(self, done: threading.Event, seconds: float) -> None:
        """Kills the process when its time is over; a process that waits for a busy processor gets more wall time."""
        before = _used(self._child.pid)[1]
        for _ in range(PATIENCE):
            if done.wait(seconds):
                return
            state, used = _used(self._child.pid)
            if state not in WAITING or used - before > 0.9 * seconds:
                break
        else:
            self.starved = True
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
            if self.starved:
                raise _Starved(f"the verifier's process did not get {seconds:g} s of a busy machine") from error
            if self.killed:
                raise _Killed(f"the verifier did not end within {seconds:g} s") from error
            raise _Died(f"the verifier's process ended (code {self._child.poll()})") from error
        finally:
            done.set()
            watch.join()
        if not isinstance(answer, dict):
            raise _Died("the verifier's process did not answer with a score")
        return answer


class Verifiers:
    """A thread-safe pool of verifier processes.

    Attributes:
        threads: one per process, for callers that must not block.
    """

    def __init__(self, processes: int = PROCESSES) -> None:
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(processes):
            self._idle.put(None)  # started on demand
        self.threads = ThreadPoolExecutor(processes, "arcforge-verifier")
        atexit.register(self.close)

    def judge(self, environment: Judging, method: str, task: Task, episode: Episode, seconds: float) -> Score:
        """Returns the score of a method of the environment, 0 where its process had to be killed.

        Raises:
            ConfigError: the environment cannot be built in another process.
            EpisodeFailure: the process died or was not let run, `ATTEMPTS` times.
            NoVerdict: a judge that the method asks gave none.
        """
        for _ in range(ATTEMPTS):
            try:
                return self._judge(environment, method, task, episode, seconds)
            except _Killed as killed:
                return Score(0.0, str(killed))
            except _Died as died:
                reason = str(died)
        raise EpisodeFailure("verifier", reason)

    def _judge(self, environment: Judging, method: str, task: Task, episode: Episode, seconds: float) -> Score:
        process = self._idle.get()
        try:
            process = process or _Process()
            return process.judge(environment, method, task, episode, seconds)
        except (_Died, _Killed):
            assert process is not None
            process.close()
            process = None
            raise
        finally:
            if process is not None and process.killed:  # killed while it was answering
                process.close()
                process = None
            self._idle.put(process)

    def close(self) -> None:
        """Ends idle processes; busy ones end when this process closes their pipes."""
        while not self._idle.empty():
            process = self._idle.get()
            if process is not None:
                process.close()


@functools.cache
def verifiers() -> Verifiers:
    """Returns this process's verifiers.

    Raises:
        ConfigError: this is a verifier process: importing the environment's module plays an environment.
    """
    if _SERVING.is_set():
        raise ConfigError(
            "environment", "module", "plays when it is imported; put that below if __name__ == '__main__'"
        )
    return Verifiers()


def _used(pid: int) -> tuple[str, float]:
    """Returns a process's state and CPU seconds; empty values if the system does not provide them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load_request(environment: Judging) -> bytes:
    kind = type(environment)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    place = (kind.__module__, file, kind.__qualname__)
    return pickle.dumps(("load", place, pickle.dumps(environment.config)))


def serve() -> None:
    """Runs the verifier process: reads requests from standard input until it closes."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    _SERVING.set()
    environments: dict[bytes, Judging] = {}
    while (request := _read(requests)) is not None:
        what, *given = pickle.loads(request)
        answer = _load(environments, request, *given) if what == "load" else _judge(environments, *given)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _read(requests: BinaryIO) -> bytes | None:
    length = requests.read(8)
    return requests.read(int.from_bytes(length, "big")) if len(length) == 8 else None


def _load(
    environments: dict[bytes, Judging], request: bytes, place: tuple[str, str | None, str], config: bytes
) -> dict[str, str]:
    name, file, qualified = place
    try:
        found = _module(name, file)
        for part in qualified.split("."):
            found = getattr(found, part)
        environments[request] = found.for_verifiers(pickle.loads(config))
        environments[request].warm_up()
    except Exception as error:  # sent to the caller, which raises it
        return {"error": f"{type(error).__name__}: {error}"[:1000]}
    resource.setrlimit(resource.RLIMIT_DATA, (_held() + MEMORY_BYTES, resource.RLIM_INFINITY))
    return {}


def _held() -> int:
    """Returns the data size of this process in bytes, if the system provides it."""
    sizes = Path("/proc/self/statm")
    return int(sizes.read_text().split()[5]) * resource.getpagesize() if sizes.exists() else 0


def _module(name: str, file: str | None) -> Any:
    """Imports a module by name, or by file if the name cannot be imported, as for scripts and tests."""
    if name in sys.modules and name != "__main__":
        return sys.modules[name]
    with contextlib.suppress(ImportError):
        if name != "__main__":
            return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("__arcforge_main__" if name == "__main__" else name, file or "")
    if spec is None or spec.loader is None:
        raise ImportError(f"no module {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _judge(environments: dict[bytes, Judging], load: bytes, method: str, given: bytes, alarm: float) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, alarm)  # in case the caller is dead and cannot kill this process
    try:
        score = judged(getattr(environments[load], method), *pickle.loads(given))
        answer: dict[str, Any] = {"value": score.value, "reason": score.reason, "raw": score.raw}
    except NoVerdict as error:
        answer = {"none": error.failure.reason}
    except EpisodeFailure as error:
        answer = {"failure": error.failure.kind, "reason": error.failure.reason}
    except BaseException as error:
        score = score_of(error)
        answer = {"value": score.value, "reason": score.reason}
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    return answer
