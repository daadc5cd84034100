"""The process of a console script: its Ctrl-C before `main` runs, and its end.

Imported before everything else of the package, because the other imports take a second and more.
"""

import atexit
import gc
import os
import signal
import sys
from types import FrameType


def quietly(number: int, frame: FrameType | None) -> None:
    """Ends the process as `run_main` does; of use while imports run, which Ctrl-C would leave with a traceback."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def is_console_script(program: str) -> bool:
    """Returns whether a program is a console script of ours, and not a script of the user's with such a name."""
    name, suffix = os.path.splitext(os.path.basename(program))
    return suffix in ("", ".exe") and (name == "arcforge" or name.startswith("arcforge-"))


if is_console_script(sys.argv[0]):
    # Registered first, it runs after all other exit functions. The interpreter's last collections would visit every
    # object of torch and Lightning several times, a processor second between a command's last line and its end.
    atexit.register(gc.freeze)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, quietly)  # until `main` runs
