"""Where the processes of a run write: files of the run's folder, of which the trainer's is shown as it grows."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from arcforge_rl.launch.child import last_words

FOLDER = "launch"
"""Of the logs, in the run's folder."""
RUN = re.compile(r"^run (.+)$", re.MULTILINE)
"""The line in which a trainer names the run's folder."""
ERROR = b"error: "


class Logs:
    """Logs of a run. Its folder exists once its trainer has built everything; until then they lie beside it.

    Args:
        near: folder in which the run's will be.
        run_dir: of a resumed run, which exists.

    Attributes:
        folder: of the logs.
        run_dir: None until it is known.
    """

    def __init__(self, near: Path, run_dir: Path | None = None) -> None:
        self.run_dir, self._shown, self._held = run_dir, 0, b""
        if run_dir is not None:
            self.folder = run_dir / FOLDER
            self.folder.mkdir(exist_ok=True)
        else:
            self.folder = near / f".launch-{os.getpid()}"
            shutil.rmtree(self.folder, ignore_errors=True)  # of a process that had this id before
            self.folder.mkdir(parents=True)
        self._shown = self._size()

    def path(self, role: str) -> Path:
        """Returns the log of a role's processes, one after another."""
        return self.folder / f"{role}.log"

    def said(self, role: str) -> str:
        """Returns the last words of a role's last process, and where the rest is."""
        words, place = last_words(self.path(role)), os.path.relpath(self.path(role))
        return f"{words} (log: {place})" if words else f"it said nothing (log: {place})"

    def follow(self) -> None:
        """Prints what the trainer has written since the last call, in whole lines.

        A last line with an error is kept back: the command ends with it.
        """
        try:
            with self.path("trainer").open("rb") as file:
                file.seek(self._shown)
                new = file.read()
        except FileNotFoundError:  # it has not begun
            return
        whole = self._held + new
        self._shown += len(new)
        lines = whole.splitlines(keepends=True)
        self._held = lines.pop() if lines and (lines[-1].startswith(ERROR) or not lines[-1].endswith(b"\n")) else b""
        text = b"".join(lines).decode(errors="replace")
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
        if self.run_dir is None and (found := RUN.search(text)):
            self._settle(Path(found[1]))

    def rest(self) -> str:
        """Returns what `follow` has kept back."""
        return self._held.decode(errors="replace").strip()

    def remove_unless_settled(self) -> None:
        """Removes the logs of a run that never had a folder."""
        if self.run_dir is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _settle(self, run_dir: Path) -> None:
        """Moves the logs into the run's folder; processes that write to them continue to."""
        self.run_dir = run_dir
        try:
            self.folder = self.folder.rename(run_dir / FOLDER)
        except OSError:  # another file system: a move would leave their writers behind
            (run_dir / FOLDER).symlink_to(self.folder.resolve(), target_is_directory=True)

    def _size(self) -> int:
        path = self.path("trainer")
        return path.stat().st_size if path.exists() else 0
