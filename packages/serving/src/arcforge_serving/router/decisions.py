"""A file of the router's decisions, a JSON line for each request on an engine; `benchmarks/routing.py` replays it.

Nothing of a request's content is in it, apart from the name that its client gave the session.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from arcforge_core.console.progress import say
from arcforge_core.errors import ConfigError


@dataclass
class Decision:
    """A request on one engine.

    Attributes:
        session: its name; empty if unknown.
        bytes: of its body.
        engine: the engine's number.
        loads: requests in flight by engine, when it was chosen.
        moved: whether its session was on another engine, which was full.
        at: when it was chosen, in seconds since 1970.
        seconds: until it ended.
        outcome: see `Counts.requests`.
        sent: bytes of the reply's body.
        events: of a stream; 0 for a whole reply.
    """

    session: str
    bytes: int
    engine: str
    loads: dict[str, int]
    moved: bool
    at: float = field(default_factory=time.time)
    seconds: float = 0.0
    outcome: str = "left"
    sent: int = 0
    events: int = 0


class DecisionLog:
    """Appends decisions to a file; a full disk ends the log, not a request.

    Args:
        path: of the file; None writes nothing.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        try:
            self._append("")
        except OSError as error:
            raise ConfigError("router.log", path, f"must be a file that can be written: {error.strerror}") from error

    def write(self, decision: Decision) -> None:
        """Appends a line."""
        try:
            self._append(json.dumps(asdict(decision)) + "\n")
        except OSError as error:
            say(f"router.log={self._path}: {error.strerror}; no further decision is logged")
            self._path = None

    def _append(self, line: str) -> None:
        if self._path is not None:
            with Path(self._path).open("a", encoding="utf-8") as file:
                file.write(line)
