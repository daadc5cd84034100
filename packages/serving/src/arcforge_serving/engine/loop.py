"""Who drives the engine: the calling thread or a thread of its own, and the actions that other threads post to it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from arcforge_serving.engine.driver import Driver
from arcforge_serving.engine.errors import ClosedError

T = TypeVar("T")
Action = Callable[[], object]


class StepLoop:
    """Runs the driver's steps, and posted actions between them.

    Without `start`, the calling thread drives: `step`, again and again. After it, a daemon thread does, and every
    method may be called from any thread.

    Args:
        driver: launches steps.
        on_fault: called once if the loop itself fails, with the error; it fails all requests.

    Attributes:
        paused: no step is launched.
        closed: nothing can be posted any more.
        busy_seconds: time in which there were steps.
        lock: guards `closed`, the queues and the caller's own count of posted requests.
    """

    def __init__(self, driver: Driver, on_fault: Callable[[Exception], None]) -> None:
        self.driver, self.paused, self.closed = driver, False, False
        self.busy_seconds = 0.0
        self.lock = threading.Lock()
        self._on_fault = on_fault
        self._actions: deque[Action] = deque()
        self._aborts: deque[Action] = deque()  # run first, even while a pause waits for running requests
        self._driving = threading.RLock()  # held by whichever thread drives
        self._posted = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def threaded(self) -> bool:
        """Whether the loop has a thread of its own."""
        return self._thread is not None

    def start(self) -> None:
        """Starts the thread; no effect on a loop that has one."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="arcforge-engine", daemon=True)
            self._thread.start()

    def step(self) -> bool:
        """Runs what was posted, launches a step and handles the results of the previous one.

        Returns:
            Whether there was a step to launch or to handle.
        """
        with self._driving:
            self._run_posted()
            began = time.perf_counter()
            worked = not self.paused and self.driver.advance()
            self.busy_seconds += time.perf_counter() - began if worked else 0.0
            return worked

    def close(self, last: Action) -> None:
        """Refuses further actions, and returns when those posted, and then `last`, have run."""
        with self.lock:
            if not self.closed:
                self.closed = True
                self._actions.append(self.driver.settle)
                self._actions.append(last)
        self.wake()
        if self._thread is not None:
            self._thread.join()
        else:
            with self._driving:
                self._run_posted()

    # ---- posting -----------------------------------------------------------------------------------------------------

    def post(self, action: Action) -> None:
        """Has the driving thread run an action before its next step."""
        with self.lock:
            self._actions.append(action)
        self.wake()

    def post_locked(self, action: Action) -> None:
        """`post` for a caller that holds `lock` and calls `wake` after releasing it.

        Raises:
            ClosedError: `close` was called.
        """
        self.check_open()
        self._actions.append(action)

    def post_abort(self, action: Action) -> None:
        """Has the driving thread end requests before its next step, even one that a pause waits for."""
        with self.lock:
            if not self.closed:
                self._aborts.append(action)
        self.wake()

    def between_steps(self, action: Callable[[], T]) -> T:
        """Runs an action while no step is being computed, and returns its result.

        Raises:
            ClosedError: `close` was called.
            Exception: the action's.
        """
        if self._thread is None:
            with self._driving:
                self._run_posted()
                self.driver.settle()
                return action()
        done: Future[T] = Future()
        with self.lock:
            self.post_locked(partial(self._settle_and_run, action, done))
        self.wake()
        return done.result()

    def wake(self) -> None:
        """Has a waiting thread look at the queues."""
        self._posted.set()

    def check_open(self) -> None:
        """Raises `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError("the engine was closed")

    # ---- driving -----------------------------------------------------------------------------------------------------

    def run_aborts(self) -> None:
        """Ends the requests for which that was posted."""
        _drain(self._aborts)

    def _run_posted(self) -> None:
        _drain(self._aborts)
        _drain(self._actions)

    def _settle_and_run(self, action: Callable[[], T], done: Future[T]) -> None:
        try:
            self.driver.settle()
            done.set_result(action())
        except Exception as error:  # the caller's: it is raised there, and the loop continues
            done.set_exception(error)

    def _run(self) -> None:
        try:
            while True:
                self._posted.clear()
                if self.step():
                    continue
                with self.lock:
                    if self.closed and not self._actions and not self._aborts:
                        return
                self._posted.wait()
        except Exception as error:  # our own fault: no caller may be left waiting for this thread
            with self.lock:
                self.closed = True
            self._run_posted()
            self._on_fault(error)
            raise


def _drain(actions: deque[Action]) -> None:
    while actions:
        actions.popleft()()
