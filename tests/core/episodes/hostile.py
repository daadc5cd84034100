"""Environments whose verifiers misbehave. Other processes construct them again, so they are in a module."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

from arcforge_core.config.schema import EnvironmentConfig
from arcforge_core.contracts.environment import EpisodeFailure, Score, Task
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.base import EnvironmentBase
from arcforge_core.episodes.rewards import metric, reward


@dataclass
class HostileConfig(EnvironmentConfig):
    """What the verifier does."""

    name: str = "hostile"
    deed: str = "answer"


def stopped():
    """Is stopped for two seconds, which is longer than its time."""
    judge = os.getpid()
    if os.fork() == 0:  # no program is started: that takes longer than the limit on a busy machine
        time.sleep(2)
        os.kill(judge, signal.SIGCONT)
        os._exit(0)
    os.kill(judge, signal.SIGSTOP)
    return 1.0


def broken():
    """Finds its sandbox broken."""
    raise SandboxFault("no space left")


def lost():
    """Lost the process it asked."""
    raise EpisodeFailure("worker", "gone")


def leave_once():
    """Takes its process with it the first time."""
    if not os.path.exists(os.environ["HOSTILE_ONCE"]):
        open(os.environ["HOSTILE_ONCE"], "w").close()
        os._exit(0)
    return 1.0


class Anything:
    def __float__(self):
        raise RuntimeError("no number")


DEEDS = {
    "answer": lambda: 1.0,
    "true": lambda: True,
    "stopped": stopped,
    "raise": lambda: 1 / 0,
    "exit": lambda: sys.exit(0),
    "sandbox": broken,
    "worker": lost,
    "leave once": leave_once,
    "leave": lambda: os._exit(0),
    "crash": lambda: ctypes.string_at(0),
    "hang": lambda: time.sleep(3600),
    "spin": lambda: [None for _ in iter(int, 1)],
    "nan": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "negative": lambda: -1.0,
    "two": lambda: 2,
    "none": lambda: None,
    "word": lambda: "yes",
    "anything": Anything,
    "print": lambda: [sys.stdout.write("x" * 10_000_000) and os.write(1, b"y" * 1_000_000) for _ in range(10)] and 0.5,
    "long reason": lambda: Score(0.25, "z" * 10**8),
    "power": lambda: 9**9**9,
    "memory": lambda: bytearray(1 << 34),
}


class Asked(EnvironmentBase):
    """One question, which no verifier here depends on."""

    def task(self, index):
        return Task(f"asked/{index}", "?", "!")


class Hostile(Asked):
    @reward(timeout=1.0)
    def judged(self, task, episode):
        return DEEDS[self.config.deed]()


class HostileHere(Asked):
    @reward(timeout=None)
    def judged(self, task, episode):
        return DEEDS[self.config.deed]()


class Several(Asked):
    """Two rewards, one of which may misbehave, and a metric."""

    @reward(weight=3.0, timeout=None)
    def good(self, task, episode):
        return True

    @reward(timeout=1.0)
    def other(self, task, episode):
        return DEEDS[self.config.deed]()

    @metric(timeout=None)
    def length(self, task, episode):
        return Score(min(1.0, len(episode.reply.text) / 10), "tenths")
