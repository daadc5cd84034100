"""``arcforge-serve`` that kills itself: ``python -m support.mortal_server MOST checkpoint=...``.

The request that follows MOST others makes the process SIGKILL itself, before it answers that one and those that came
with it; 0: never.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def mortal_server(checkpoint: Path, port: int, key: str, most: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Starts a server with an admin key and yields its process when it answers."""
    command = [
        *(sys.executable, "-m", "support.mortal_server", str(most)),
        *(f"checkpoint={checkpoint}", f"port={port}", "hardware=torch_cpu"),
    ]
    own = {"ARCFORGE_SERVE_ADMIN_KEYS": key, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **own}) as process:
        assert process.stdout is not None
        try:
            assert "http://" in process.stdout.readline(), "the server has not started"
            yield process
        finally:
            process.kill()


def main() -> int:
    """Serves."""
    from arcforge_core.cli.main import main as command
    from arcforge_serving.engine.paged import PagedEngine

    most, submit, asked = int(sys.argv[1]), PagedEngine.submit, 0

    def counted(self: PagedEngine, *given: Any, **further: Any) -> Any:
        nonlocal asked
        if most and asked == most:
            os.kill(os.getpid(), signal.SIGKILL)
        asked += 1
        return submit(self, *given, **further)

    PagedEngine.submit = counted  # type: ignore[method-assign]
    return command(["serve", *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
