"""Items worked off by processes that may crash or hang: each item gets a result, and the others lose none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from queue import Empty, Queue
from typing import Any

RUNNING: set[subprocess.Popen[str]] = set()


def results_of(
    command: Sequence[str], items: Sequence[str], limit: float, broken: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each item's result, from processes that take the remaining items as arguments.

    A process writes lines ``{"item", "ended", "result"}``. An item of which nothing is heard for `limit` seconds ends
    its process, and so does a crash: its result is the figures told so far, with `error_text`, and a new process takes
    the rest.

    Args:
        command: to which the items are added.
        items: in order.
        limit: seconds between lines.
        broken: exit status of a process that leaves items after having reported all it worked on.
    """
    left = list(items)
    while left:
        known: dict[str, Any] = {}
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                [*command, *left], stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
            RUNNING.add(process)
            lines: Queue[str | None] = Queue()
            reader = threading.Thread(target=_pump, args=(process, lines), daemon=True)
            reader.start()
            try:
                while left:
                    line = lines.get(timeout=limit)
                    if line is None:
                        if process.wait() != broken:
                            text = f"the process ended with {process.returncode}: {_tail(errors)}"
                            yield left.pop(0), {**known, "error_text": text}
                        break
                    found = json.loads(line)
                    known = found["result"]
                    if found["ended"]:
                        yield left.pop(0), known
                        known = {}
            except Empty:
                yield left.pop(0), {**known, "error_text": f"nothing for {limit:.0f} s: {_tail(errors)}"}
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                RUNNING.discard(process)
                reader.join()


def end_when_asked() -> None:
    """Makes SIGTERM end this process and those it has started, which are in sessions of their own."""

    def end(*_: object) -> None:
        for process in list(RUNNING):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def _pump(process: subprocess.Popen[str], lines: Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as stdout:
        for line in stdout:
            lines.put(line)
    lines.put(None)


def _tail(errors: Any) -> str:
    errors.flush()
    errors.seek(0)
    return str(errors.read()[-1200:]).strip()
