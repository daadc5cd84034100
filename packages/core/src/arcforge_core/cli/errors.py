"""Exit codes of every command: 0 done, 2 the user's error and 75 a service that did not answer, both in one clear line,
1 a bug in arcforge.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, ParamSpec

from arcforge_core.config.foreign import meant_by
from arcforge_core.errors import DISK_FULL, ArcforgeError, UnavailableError
from arcforge_core.script import quietly

P = ParamSpec("P")

OUR_FAULT, USER_ERROR = 1, 2
UNAVAILABLE = 75
"""EX_TEMPFAIL of sysexits.h: the same command may do its work later."""
INTERRUPTED, BROKEN_PIPE = 130, 141  # what a shell reports for SIGINT and SIGPIPE


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raises `ArcforgeError`, which names the option that an unknown one means."""
        hint = f"{self.prog} --help says what is accepted"
        if found := re.match(r"unrecognized arguments: -*([\w-]+)", message):
            flags = {flag for action in self._actions for flag in action.option_strings if flag.startswith("--")}
            name = found[1].replace("-", "_")
            meant = meant_by(name, {flag[2:].replace("-", "_") for flag in flags}) or found[1]
            near = difflib.get_close_matches(f"--{meant.replace('_', '-')}", flags, n=1, cutoff=0.75)
            hint = f"did you mean {near[0]}?" if near else hint
        raise ArcforgeError(f"{message}; {hint}")


def run_main(main: Callable[P, int | None]) -> Callable[P, int]:
    """Wraps a command's `main` so that it always returns an exit code.

    An `ArcforgeError` is a user error: its message goes to stderr in one line, with the traceback only under
    ``ARCFORGE_DEBUG=1``; so is a full disk. Any other exception is a bug and keeps its traceback. Ctrl-C and a
    reader that closed the pipe (``| head``) end quietly.
    """

    @functools.wraps(main)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        if signal.getsignal(signal.SIGINT) is quietly:  # imports are done: from here a Ctrl-C is an exception
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            code = main(*args, **kwargs) or 0
            sys.stdout.flush()
            return code
        except ArcforgeError as error:
            if os.environ.get("ARCFORGE_DEBUG") == "1":
                traceback.print_exc()
            print("error:", " ".join(str(error).split()), file=sys.stderr)
            return UNAVAILABLE if isinstance(error, UnavailableError) else USER_ERROR
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            # the interpreter flushes stdout once more at exit, which would raise again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL and os.environ.get("ARCFORGE_DEBUG") != "1":
                print(f"error: {error.filename or 'a file'} cannot be written: {error.strerror}", file=sys.stderr)
                return USER_ERROR
            traceback.print_exc()
            print("error: this is a fault of arcforge, please report it with the lines above", file=sys.stderr)
            return OUR_FAULT

    return wrapped
