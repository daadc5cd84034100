"""Starts the processes of a run in order, watches them, starts those again that end, and ends them all.

It computes nothing and imports no torch, so that it is there within a moment and can be killed at any time: the
processes end with it, and the run is resumed.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from arcforge_core.console.progress import say
from arcforge_core.errors import ArcforgeError
from arcforge_rl.configs.launching import SupervisedLauncherConfig
from arcforge_rl.launch.child import Launched
from arcforge_rl.launch.logs import Logs

POLL, HEALTH = 0.1, 1.0
"""Seconds from one look at the processes, and at the server's health, to the next."""
SETTLED = 600.0
"""A life of this many seconds begins a new count of restarts."""
ENDING_SECONDS = 5.0
"""For the orderly end of a server and an orchestrator after that of the trainer."""
URL = re.compile(rb"https?://[\w.:\[\]-]+")
ENGINE, ORCHESTRATOR, TRAINER = "engine", "orchestrator", "trainer"
USER_ERROR = 2
"""Exit code of a command that names the error in one line."""


@dataclass
class Post:
    """A role, and the process that has it at present.

    Attributes:
        running: the process; None before the first and after the last.
        began: when.
        ends: processes in a row that ended by themselves.
        restarts: in all.
        life: the trainer's life that it began in.
    """

    role: str
    running: Launched | None = None
    began: float = 0.0
    ends: int = 0
    restarts: int = 0
    life: int = 0


class Supervisor:
    """The processes of one run.

    Args:
        config: see `SupervisedLauncherConfig`.
        logs: of the run.
        start: starts a process of a role. A trainer and an orchestrator are started with the server's URL; a trainer
            that replaces another one with the folder of the run; a server with the port that it had, 0 for any.
        orchestrated: whether there is an orchestrator.

    Attributes:
        posts: by role.
    """

    def __init__(
        self,
        config: SupervisedLauncherConfig,
        logs: Logs,
        start: Callable[[str, str, Path | None], Launched],
        orchestrated: bool,
    ) -> None:
        self.config, self.logs, self._start = config, logs, start
        roles = (ENGINE, TRAINER, ORCHESTRATOR) if orchestrated else (ENGINE, TRAINER)
        self.posts = {role: Post(role) for role in roles}
        self.url = ""
        self._asked = 0  # how often the user has asked for the end
        self._passed_on, self._deadline = 0, float("inf")
        self._up, self._healthy, self._looked, self._read_from = False, 0.0, 0.0, 0
        self._http = httpx.Client(timeout=HEALTH, trust_env=False)

    def run(self) -> int:
        """Runs the processes until the trainer ends; returns its exit code.

        Raises:
            ArcforgeError: a process did not start, or ended too often.
            KeyboardInterrupt: the user has asked for the end before there was a trainer, or twice.
        """
        with self._signals():
            try:
                self._begin(ENGINE)
                self._await_server()
                for role in self.posts:
                    if role != ENGINE:
                        self._begin(role)
                while (code := self._round()) is None:
                    time.sleep(POLL)
                return code
            finally:
                self._end()
                self._http.close()

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _begin(self, role: str) -> None:
        post = self.posts[role]
        if role == ENGINE:
            path = self.logs.path(role)
            self._read_from = path.stat().st_size if path.exists() else 0
            self._up, self._healthy = False, time.monotonic()
        resumed = self.logs.run_dir if role == TRAINER and post.life else None
        post.began = time.monotonic()
        post.life = self.posts[TRAINER].life + (role == TRAINER)
        post.running = self._start(role, self.url, resumed)

    def _await_server(self) -> None:
        """Waits until the server answers.

        Raises:
            ArcforgeError: it ended, or does not answer in time.
        """
        post, last = self.posts[ENGINE], time.monotonic() + self.config.start_seconds
        while not self._answers():
            assert post.running is not None
            if self._asked:
                raise KeyboardInterrupt
            if (code := post.running.poll()) is not None:
                raise ArcforgeError(f"the engine's server {ended(code)} before it answered: {self.logs.said(ENGINE)}")
            if time.monotonic() > last:
                seconds = f"launcher.start_seconds={self.config.start_seconds:g}"
                raise ArcforgeError(f"the engine's server has not answered within {seconds}: {self.logs.said(ENGINE)}")
            time.sleep(POLL)
        self._up, self._healthy = True, time.monotonic()

    def _answers(self) -> bool:
        """Returns whether the server says that it is well; its address is in the first line of its log."""
        if not self.url:
            try:
                with self.logs.path(ENGINE).open("rb") as file:
                    file.seek(self._read_from)
                    found = next(filter(None, map(URL.search, (line for line in file if line.endswith(b"\n")))), None)
            except FileNotFoundError:
                return False
            if found is None:
                return False
            self.url = found[0].decode()
            say(f"engine at {self.url}")
        with suppress(httpx.HTTPError):
            return self._http.get(f"{self.url}/health").status_code == 200
        return False

    # ---- watching ----------------------------------------------------------------------------------------------------

    def _round(self) -> int | None:
        """Looks at all processes once; returns the trainer's exit code if that was its last life."""
        self.logs.follow()
        self._pass_on_requests()
        trainer = self.posts[TRAINER]
        assert trainer.running is not None
        if (code := trainer.running.poll()) is not None:
            self.logs.follow()
            if code >= 0 or self._asked:
                return code
            if self.logs.run_dir is None or not any((self.logs.run_dir / "checkpoints").glob("step-*")):
                raise ArcforgeError(f"the trainer {ended(code)} before its first checkpoint: {self.logs.said(TRAINER)}")
            self._again(trainer, code)
        for post in (self.posts[ENGINE], self.posts.get(ORCHESTRATOR)):
            if post is not None and post.running is not None and (code := post.running.poll()) is not None:
                self._look_after(post, code)
        self._look_at_health()
        return None

    def _look_after(self, post: Post, code: int) -> None:
        """Starts a server or an orchestrator again, unless its end is in order."""
        if post.role == ORCHESTRATOR and post.life < self.posts[TRAINER].life:  # it ended with its trainer
            post.running.release()  # type: ignore[union-attr]  # checked
            self._begin(post.role)
        elif post.role == ORCHESTRATOR and code == 0:  # its trainer needs it no more
            post.running.release()  # type: ignore[union-attr]
            post.running = None
        elif not self._asked:
            self._again(post, code)

    def _again(self, post: Post, code: int) -> None:
        """Starts a process that ended by itself again.

        Raises:
            ArcforgeError: that has happened too often in a row.
        """
        assert post.running is not None
        post.running.release()
        settled = time.monotonic() - post.began > SETTLED
        post.ends = 1 if settled else post.ends + 1
        name = "engine's server" if post.role == ENGINE else post.role
        if post.ends > self.config.restarts:
            times = f"{post.ends} times in a row (launcher.restarts={self.config.restarts})"
            raise ArcforgeError(f"the {name} {ended(code)}, {times}: {self.logs.said(post.role)}{self._resume_hint()}")
        say(f"the {name} {ended(code)}; restarting")
        post.restarts += 1
        if post.role == TRAINER:
            self._renew_server()
        self._begin(post.role)
        if post.role == TRAINER and ORCHESTRATOR in self.posts and self.posts[ORCHESTRATOR].running is None:
            self._begin(ORCHESTRATOR)

    def _renew_server(self) -> None:
        """Starts the server again for another trainer: versions of weights are steps, and never go back. The trainer
        returns to its last checkpoint, and the server may be past that."""
        running = self.posts[ENGINE].running
        assert running is not None
        running.release()
        self._begin(ENGINE)
        self._await_server()

    def _look_at_health(self) -> None:
        """Kills a server that has not answered for too long; it is started again in the next round."""
        now, post = time.monotonic(), self.posts[ENGINE]
        if now - self._looked < HEALTH or post.running is None:
            return
        if self._answers():
            self._up, self._healthy = True, time.monotonic()
        self._looked = time.monotonic()
        seconds = self.config.hang_seconds if self._up else self.config.start_seconds
        if now - self._healthy > seconds:
            say(f"the engine's server has not answered for {seconds:g} s")
            post.running.signal(signal.SIGKILL)
            self._healthy = now

    # ---- ending ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Notes what the user asks for; without effect outside the main thread, where the caller ends the run."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self._asked += 1

        before: dict[int, Any] = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on_requests(self) -> None:
        """Lets the trainer end its step at the first Ctrl-C, interrupts it at the second, and kills it after that."""
        post, now = self.posts[TRAINER], time.monotonic()
        assert post.running is not None
        if self._asked > self._passed_on:
            if not self._passed_on:
                self._deadline = now + self.config.stop_seconds
            self._passed_on = self._asked
            post.running.signal(signal.SIGINT if self._asked < 3 else signal.SIGKILL)
        if now > self._deadline:
            say(f"the trainer has not ended within launcher.stop_seconds={self.config.stop_seconds:g}; killing it")
            post.running.signal(signal.SIGKILL)
            self._deadline = float("inf")

    def _end(self) -> None:
        """Ends what still runs: the trainer first, then in order what it needs, and after some seconds in any way."""
        trainer = self.posts[TRAINER].running
        if trainer is not None:
            trainer.release()
            self.logs.follow()
        others = [post.running for post in self.posts.values() if post.role != TRAINER and post.running is not None]
        for running in others:
            running.signal(signal.SIGTERM)
        last = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < last and any(running.poll() is None for running in others):
            time.sleep(POLL)
        for running in others:
            running.release()

    def _resume_hint(self) -> str:
        return "" if self.logs.run_dir is None else f"; resume={self.logs.run_dir} continues the run"


def ended(code: int) -> str:
    """Returns how a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def finish(code: int, logs: Logs) -> None:
    """Ends the command as its trainer ended; returns after a trainer that succeeded.

    Raises:
        ArcforgeError: the trainer's own.
        SystemExit: it ended with another code.
    """
    rest = logs.rest()
    if code == USER_ERROR and rest.startswith("error: "):
        raise ArcforgeError(rest.removeprefix("error: "))
    if rest:
        print(rest, file=sys.stderr if code else sys.stdout, flush=True)
    if code < 0:
        raise ArcforgeError(f"the trainer {ended(code)}: {logs.said(TRAINER)}")
    if code:
        raise SystemExit(code)
