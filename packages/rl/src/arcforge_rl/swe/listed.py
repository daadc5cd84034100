"""``arcforge-env swe all``: builds from each line of a file, several lines at a time, until its time has ended.

A line has the words of the command without ``--to``; ``#`` begins a comment. Each line is built by a process of its
own, in a folder of its own below ``parts``, and its instances move to the environment when the process has ended well.
So a line that was cut off leaves nothing, and a second run begins it again; lines that `BUILT` names are done.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arcforge_core.cli.errors import UNAVAILABLE
from arcforge_core.console.progress import say
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_core.files.lock import locked
from arcforge_rl.swe.instance import FILE
from arcforge_rl.swe.setup import AGENT, NOT_SET_UP, RULES

BUILT = "built.jsonl"
LOG = "attempts.jsonl"
"""Attempts at set-ups, one JSON line each."""
PARTS = "parts"
COMMAND = (sys.executable, "-m", "arcforge_rl", "env", "swe")
OUT_OF_TIME = "the time of the command has ended"


@dataclass(frozen=True)
class BuiltLine:
    """A line that was built, or could not be.

    Attributes:
        line: its words.
        reason: why there is no instance; empty if there is one.
        language: of the repository; empty if it could not be fetched.
        kinds: kind of each instance.
        seconds: wall time.
        by: who made the last attempt at the set-up, `RULES` or `AGENT`.
    """

    line: str
    reason: str
    language: str = ""
    kinds: tuple[str, ...] = ()
    seconds: float = 0.0
    by: str = RULES

    @property
    def is_set_up(self) -> bool:
        """Whether the tests of the repository run."""
        return bool(self.language) and NOT_SET_UP not in self.reason


def read_lines(path: Path, check: Callable[[Sequence[str]], object]) -> list[str]:
    """Returns the lines of a file, without comments.

    Args:
        path: of the file.
        check: raises `ArcforgeError` for words that the command refuses.

    Raises:
        DataError: it cannot be read, or a line is wrong, with its number.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                check(words)
        except (ArcforgeError, ValueError) as error:
            raise DataError(f"{path}:{number}: {error}") from error
        if words and (joined := shlex.join(words)) not in lines:
            lines.append(joined)
    if not lines:
        raise DataError(f"{path} has no line")
    return lines


def build_all(
    lines: Sequence[str], to: Path, archives: Path, jobs: int, minutes: float, agent: Sequence[str] = ()
) -> list[BuiltLine]:
    """Builds lines that `BUILT` does not name yet; returns all that it names then, in order of the lines.

    An agent also gets those that rules could not set up before. A line that met a service that did not answer is not
    named, so that the next run builds it.

    Args:
        lines: as `read_lines` returns them.
        to: folder of the environment.
        archives: folder of fetched sources.
        jobs: processes at a time.
        minutes: after which no line is begun, and those that are being built are ended; these are not named.
        agent: words of the command that name an agent of set-ups.

    Raises:
        ArcforgeError: another process builds there.
    """
    to.mkdir(parents=True, exist_ok=True)
    with locked(to):
        shutil.rmtree(to / PARTS, ignore_errors=True)
        known = {one.line: one for one in _read(to / BUILT)}
        given_up = [one.line for one in known.values() if agent and one.by == RULES and NOT_SET_UP in one.reason]
        left = [line for line in lines if line not in known or line in given_up]
        later = asyncio.run(_build(left, to, archives, jobs, time.monotonic() + 60 * minutes, agent))
        shutil.rmtree(to / PARTS, ignore_errors=True)
        known = {one.line: one for one in _read(to / BUILT)}
    known |= {line: BuiltLine(line, reason) for line, reason in later.items()}
    return [known.get(line, BuiltLine(line, OUT_OF_TIME)) for line in lines]


async def _build(
    lines: Sequence[str], to: Path, archives: Path, jobs: int, ends: float, agent: Sequence[str]
) -> dict[str, str]:
    """Builds lines; returns those that met a service that did not answer, with the reason."""
    left, later = list(enumerate(lines)), dict[str, str]()

    async def work() -> None:
        while left and time.monotonic() < ends:
            number, line = left.pop(0)
            if reason := await _one(line, to / PARTS / str(number), to, archives, ends, agent):
                later[line] = reason

    await asyncio.gather(*(work() for _ in range(jobs)))
    return later


async def _one(line: str, part: Path, to: Path, archives: Path, ends: float, agent: Sequence[str]) -> str:
    """Builds a line in a folder of its own and moves its instances; returns why a later run is to build it."""
    begun = time.monotonic()
    folders = ["--to", str(part), "--archives", str(archives)]
    argv = [*COMMAND, *shlex.split(line), *agent, *folders]
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        _, told = await asyncio.wait_for(process.communicate(), max(0.0, ends - begun))
    except TimeoutError:
        return OUT_OF_TIME
    finally:
        if process.returncode is None:  # the time has ended, or the command is interrupted
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    said = told.decode(errors="replace").strip().splitlines()
    reason = (said[-1] if said else f"the process ended with {process.returncode}") if process.returncode else ""
    rows, attempts = _rows(part / FILE), _rows(part / LOG)
    if not reason:
        _take(part, to, rows)
    with (to / LOG).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in attempts)
    if process.returncode == UNAVAILABLE:
        say(f"{line}: {reason}; the next run builds it")
        return reason
    language = str(attempts[-1]["language"]) if attempts else ""
    kinds = tuple(str(row["arcforge"]["kind"]) for row in rows) if not reason else ()
    by = str(attempts[-1]["by"]) if attempts else RULES
    one = BuiltLine(line, reason, language, kinds, round(time.monotonic() - begun, 1), by)
    with (to / BUILT).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(one)) + "\n")
    say(f"{line}: {reason or f'{len(rows)} instances'} ({one.seconds:.0f} s)")
    return ""


def _take(part: Path, to: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Moves instances and their trees; those that are there already, from a run that was cut off, stay."""
    known = {row["instance_id"] for row in _rows(to / FILE)}
    (to / "trees").mkdir(exist_ok=True)
    for row in rows:
        if row["instance_id"] in known:
            continue
        tree = to / "trees" / str(row["instance_id"])
        shutil.rmtree(tree, ignore_errors=True)
        (part / "trees" / str(row["instance_id"])).rename(tree)
        with (to / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file that may not be there; a last line that was cut off is none."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


def _read(path: Path) -> list[BuiltLine]:
    return [BuiltLine(**{**row, "kinds": tuple(row["kinds"])}) for row in _rows(path)]


def table_of(built: Sequence[BuiltLine]) -> str:
    """Returns lines of text: sources, set-ups, instances and repairs of people by language, then each failure."""
    columns = ("lines", "set up", "by agent", "built", "instances", "repairs")
    lines = [f"{'language':<12} " + " ".join(columns)]
    for language in sorted({one.language for one in built}):
        own = [one for one in built if one.language == language]
        kinds = Counter(kind for one in own for kind in one.kinds)
        up = [one.by for one in own if one.is_set_up]
        built_here = sum(not one.reason for one in own)
        figures = (len(own), len(up), up.count(AGENT), built_here, kinds.total(), kinds.total() - kinds["bug"])
        lines.append(f"{language or '(not read)':<12} " + " ".join(
            f"{figure:>{len(column)}}" for figure, column in zip(figures, columns, strict=True)
        ))  # fmt: skip
    return "\n".join([*lines, *(f"{one.line}: {one.reason}" for one in built if one.reason)])
