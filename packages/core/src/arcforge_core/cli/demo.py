"""``arcforge demo``: a small fine-tuned model in the browser; ``arcforge demo rl`` trains it in four minutes."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
import webbrowser

from arcforge_core.cli.errors import run_main
from arcforge_core.cli.main import run_command
from arcforge_core.config.config_file import written
from arcforge_core.console.result import Result
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.files.find import DEMO_FOLDER

USAGE = """\
Usage: arcforge demo [--no-browser] [FIELD=VALUE ...]       chat with the model of this package
       arcforge demo rl [--no-browser] [FIELD=VALUE ...]    train it by reinforcement learning for four minutes

The model has 4 million parameters and was fine-tuned on arithmetic, calls of a calculator and greetings. The fields are
those of arcforge-serve (port=8001), and of arcforge-rl (trainer.minutes=2): arcforge serve --help, arcforge rl --help.
"""
HOST, PORT, PORTS = "127.0.0.1", 8000, 50
RECIPE = "recipe=demo"
MODEL = written(str(DEMO_FOLDER))
"""The packed model itself: a run may have the name ``demo``, as the one that ``demo rl`` leaves."""
NO_BROWSER = "--no-browser"


@run_main
def main() -> int:
    """Runs the command line."""
    arguments = [argument for argument in sys.argv[1:] if argument != NO_BROWSER]
    browser = NO_BROWSER not in sys.argv[1:] and has_browser()
    if {"-h", "--help"} & set(arguments):
        print(USAGE, end="")
        return 0
    if arguments and arguments[0].casefold() == "rl":
        return teach(arguments[1:], browser)
    if arguments and re.fullmatch(r"\w+", arguments[0]):
        raise ArcforgeError(f"arcforge demo {arguments[0]}: write arcforge demo for the chat, or arcforge demo rl")
    return chat(arguments, browser)


def chat(arguments: list[str], browser: bool) -> int:
    """Serves the model; the page opens when the server listens."""
    if not any(argument.startswith("port=") for argument in arguments):
        arguments = [f"port={free_port()}", *arguments]
    port = next(argument for argument in reversed(arguments) if argument.startswith("port="))
    if browser:
        threading.Thread(target=open_page, args=(int(port.removeprefix("port=")),), daemon=True).start()
    lesson = written([RECIPE, f"init={MODEL}"])
    sys.argv = ["arcforge-serve", f"checkpoint={MODEL}", "served_name=demo", f"lesson={lesson}", *arguments]
    return run_command("serve")


def teach(arguments: list[str], browser: bool) -> int:
    """Trains the model and opens the run's report."""

    def show(result: Result) -> None:
        if browser:
            webbrowser.open((result.dir / "report.html").resolve().as_uri())

    sys.argv = ["arcforge-rl", RECIPE, f"init={MODEL}", *arguments]
    return run_command("rl", after=show)


def has_browser() -> bool:
    """Returns whether a page can be shown: on Linux only under a desktop, where no text browser takes the terminal."""
    desktop = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(desktop or os.environ.get("BROWSER"))


def free_port() -> int:
    """Returns the first free port from 8000 on, so that a second demo runs beside the first.

    Raises:
        ConfigError: none of fifty is free.
    """
    for port in range(PORT, PORT + PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ConfigError("port", PORT, f"neither it nor the next {PORTS - 1} ports are free; name another, as port=9000")


def open_page(port: int, seconds: float = 60.0) -> None:
    """Opens the page as soon as the server answers; gives up after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
        except OSError:
            time.sleep(0.2)
            continue
        webbrowser.open(f"http://{HOST}:{port}/")
        return
