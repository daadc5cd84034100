"""Console scripts of core; modules here import nothing heavy at the top."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType


def quietly(number: int, frame: FrameType | None) -> None:
    """Ends the process as `run_main` does; of use while imports run, which Ctrl-C would leave with a traceback."""
    os.write(2, b"interrupted\n")
    os._exit(130)


if Path(sys.argv[0]).stem.startswith("arcforge") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, quietly)  # until `main` runs
