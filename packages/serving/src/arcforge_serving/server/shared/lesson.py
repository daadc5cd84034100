"""A training run of the served model in a process of its own, started and watched from the page."""

from __future__ import annotations

import csv
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from arcforge_core.errors import ArcforgeError
from arcforge_core.files.find import find_checkpoint
from arcforge_core.files.rundir import dated_folder

Status = Literal["ready", "running", "finished", "failed"]
OUTPUTS = Path("outputs")
COMMAND = (sys.executable, "-m", "arcforge_core", "rl")


class Lesson:
    """One run of ``arcforge-rl`` at a time; after it the engine serves the weights that it has learned.

    Args:
        options: of ``arcforge-rl``, e.g. ``["recipe=demo"]``.
        take: called with the folder of the trained checkpoint.
        command: program that takes the options and ``folder=FOLDER``.

    Attributes:
        folder: of the last run; None before the first.
        failure: why the last run failed, in one line; empty if it did not.
        taught: whether the engine serves the weights of the last run.
    """

    def __init__(self, options: Sequence[str], take: Callable[[Path], Any], command: Sequence[str] = COMMAND) -> None:
        self.options, self._take, self._command = tuple(options), take, tuple(command)
        self.folder: Path | None = None
        self.failure, self.taught = "", False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._waiting: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether a run is in progress, or its weights are being taken."""
        return self._waiting is not None and self._waiting.is_alive()

    def start(self) -> bool:
        """Starts a run; False if one is in progress."""
        with self._lock:
            if self.running:
                return False
            self.failure, self.taught = "", False
            self.folder = dated_folder(OUTPUTS, "lesson")
            line = [*self._command, *self.options, f"folder={self.folder}"]
            self._process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            self._waiting = threading.Thread(target=self._wait, args=(self._process, self.folder), daemon=True)
            self._waiting.start()
            return True

    def stop(self) -> None:
        """Ends a run in progress; it saves itself."""
        process, waiting = self._process, self._waiting
        if process is not None and process.poll() is None:
            process.terminate()
        if waiting is not None:
            waiting.join(timeout=30)

    def _wait(self, process: subprocess.Popen[str], folder: Path) -> None:
        _, printed = process.communicate()
        if process.returncode:
            lines = printed.strip().splitlines() or [f"the run ended with exit code {process.returncode}"]
            self.failure = lines[-1].removeprefix("error: ")
            return
        try:
            self._take(find_checkpoint(folder))
            self.taught = True
        except ArcforgeError as error:
            self.failure = str(error)

    @property
    def status(self) -> Status:
        """Of the last run."""
        if self.running:
            return "running"
        if self.folder is None:
            return "ready"
        return "failed" if self.failure else "finished"

    def progress(self) -> dict[str, Any]:
        """Returns what the run has written so far.

        ``rewards`` by step, ``share`` of the budget that is used (0 to 1), and ``heldout``: step and pass@1.
        """
        steps = rows_of(self.folder, "metrics.csv")
        rated = [row for row in rows_of(self.folder, "evaluations.csv") if row.get("domain") == "all"]
        return {
            "rewards": [float(row["reward"]) for row in steps],
            "share": float(steps[-1]["progress"]) if steps else 0.0,
            "heldout": [(int(row["step"]), float(row["pass@1"])) for row in rated],
        }

    def report(self) -> bytes | None:
        """Returns the page of the last run; None while there is none."""
        page = None if self.folder is None else self.folder / "report.html"
        return page.read_bytes() if page is not None and page.is_file() else None


def rows_of(folder: Path | None, name: str) -> list[dict[str, str]]:
    """Returns the whole rows of a run's CSV file, without one that is being written."""
    file = None if folder is None else folder / name
    if file is None or not file.is_file():
        return []
    whole, _, _ = file.read_text(encoding="utf-8").rpartition("\n")
    return list(csv.DictReader(whole.splitlines()))
