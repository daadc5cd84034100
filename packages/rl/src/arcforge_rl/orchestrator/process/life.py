"""One life of the orchestrator's process, as the trainer sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from arcforge_rl.orchestrator.process.child import Build, Given
from arcforge_rl.orchestrator.process.start import Begun

ENDING_SECONDS = 10.0
"""For its orderly end."""


class LifeEnded(Exception):
    """The process ended before it answered; the text says how."""


class Life:
    """A process, a thread that hears it, and calls to it.

    Args:
        start: gives the process, see `arcforge_rl.orchestrator.process.start`.
        given, build: see `run_orchestrator`.
        interval: seconds from one heartbeat to the next.
        dead_seconds: after which a silent process is killed.
        on_end: called in the thread when the process ended or was killed, unless `stop` ended it.

    Attributes:
        began: when.
        why: it ended.
        wants_weights: whether the engine has started again, and lacks the present weights.
    """

    def __init__(
        self,
        start: Callable[[Given, Build, float], Begun],
        given: Given,
        build: Build,
        interval: float,
        dead_seconds: float,
        on_end: Callable[[Life], None],
    ) -> None:
        self.began, self.why, self.wants_weights = time.monotonic(), "", False
        self._interval, self._dead_seconds, self._on_end = interval, dead_seconds, on_end
        self._answers: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._calling, self._sending, self._stopping = threading.Lock(), threading.Lock(), False
        self._process, self._pipe = start(given, build, dead_seconds)
        self._thread = threading.Thread(target=self._hear, name="arcforge-orchestrator", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def answer(self, meanwhile: Callable[[], None] | None = None) -> Any:
        """Waits for the answer to a call, or at the beginning for the source to be built.

        Args:
            meanwhile: called at the interval of heartbeats until then.

        Raises:
            LifeEnded: there will be none.
            Exception: the call's own.
        """
        while True:
            try:
                kind, content = self._answers.get(timeout=None if meanwhile is None else self._interval)
                break
            except Empty:
                assert meanwhile is not None
                meanwhile()
        if kind == "ended":
            self._answers.put((kind, content))
            raise LifeEnded(content)
        if kind == "failed":
            raise content
        return content

    def call(self, name: str, *arguments: Any, meanwhile: Callable[[], None] | None = None) -> Any:
        """Calls a method of `Child`; see `answer`."""
        with self._calling:
            self._send("call", (name, arguments))
            return self.answer(meanwhile)

    def stop(self) -> None:
        """Ends the process in order, or kills it."""
        self._stopping = True
        try:
            self.call("stop")
        except LifeEnded:
            return
        finally:
            self._send("end", None)
            self._thread.join(ENDING_SECONDS)
            self._process.kill()
            self._thread.join()

    def _send(self, kind: str, content: Any) -> None:
        with self._sending:
            try:
                self._pipe.send((kind, content))
            except OSError:
                return  # it is gone: `_hear` sees that

    def _hear(self) -> None:
        self.why = self._until_end()
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._answers.put(("ended", f"the orchestrator {self.why}"))
        if not self._stopping:
            self._on_end(self)

    def _until_end(self) -> str:
        """Sends heartbeats and sorts what comes; returns how it ended."""
        heard = time.monotonic()
        try:
            while True:
                self._send("ping", None)
                next_one = time.monotonic() + self._interval
                while self._pipe.poll(max(0.0, next_one - time.monotonic())):
                    kind, content = self._pipe.recv()
                    heard = time.monotonic()
                    if kind == "pong":
                        self.wants_weights = content
                    else:
                        self._answers.put((kind, content))
                if time.monotonic() - heard > self._dead_seconds:
                    return f"has not answered for {self._dead_seconds:g} s"
        except (EOFError, OSError):
            return "has ended"
