"""A terminal that stays between calls: keys go in, the agent sees the screen."""

from __future__ import annotations

import asyncio
import re
from importlib import resources

import pyte

from arcforge_core.contracts.chat import Tool
from arcforge_core.contracts.sandbox import Command, Process, Sandbox
from arcforge_rl.terminal.worlds import World

ROWS, COLUMNS = 30, 110
QUIET = 0.3
"""Seconds without output after which the screen is shown."""
LONGEST = 60.0
"""Seconds that a call may wait."""
MOST = 64 << 10
"""Bytes of output that a call reads; a program that prints more waits for the next call."""
SECONDS = 3600.0
"""Processor time of each program."""
NAMED = {
    "enter": "\r", "tab": "\t", "esc": "\x1b", "space": " ", "backspace": "\x7f", "delete": "\x1b[3~", "up": "\x1b[A",
    "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D", "home": "\x1b[H", "end": "\x1b[F", "pageup": "\x1b[5~",
    "pagedown": "\x1b[6~",
}  # fmt: skip
KEY = re.compile(rf"<(?:ctrl-([a-z\[\\\]^_])|({'|'.join(NAMED)}))>", re.IGNORECASE)
SEQUENCE = re.compile(rb"^\x1b\[[0-?]*[ -/]*[@-~]")
SESSION = Tool({"type": "function", "function": {
    "name": "session", "description": f"Types keys into a terminal of {ROWS} rows and {COLUMNS} columns that runs bash "
    "and stays between calls, with its programs, and returns its screen. Other tools do not reach its ports. "
    "Named keys: <Enter>, <Tab>, <Esc>, <Up>, <Down>, <Left>, <Right>, <Backspace>, <Delete>, <Home>, <End>, <PageUp>, "
    "<PageDown>, <Ctrl-C> and other letters; a line break is <Enter>.",
    "parameters": {"type": "object", "properties": {
        "keys": {"type": "string", "description": "may be empty, to look again"},
        "wait": {"type": "number", "description": "seconds to wait for output, 5 by default, 60 at most"},
    }, "required": ["keys"]},
}})  # fmt: skip


def bytes_of(keys: str) -> bytes:
    """Returns keys as a terminal sends them."""

    def one(found: re.Match[str]) -> str:
        return chr(ord(found[1].upper()) & 31) if found[1] else NAMED[found[2].lower()]

    return KEY.sub(one, keys.replace("\r\n", "\n").replace("\n", "\r")).encode(errors="replace")


class TerminalSession:
    """A terminal in a sandbox, started by the first keys; on the event loop of its backend only."""

    tool = SESSION

    def __init__(self, sandbox: Sandbox, world: World, python: str) -> None:
        self._sandbox, self._world, self._python = sandbox, world, python
        self._process: Process | None = None
        self._reset()

    def _reset(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    async def press(self, keys: str, wait: float) -> str:
        """Types keys and returns the screen when it has been quiet for a moment, or after `wait` seconds.

        Raises:
            SandboxFault: the sandbox broke.
        """
        process = self._process or await self._start()
        end = asyncio.get_running_loop().time() + min(max(wait, QUIET), LONGEST)
        try:
            process.stdin.write(bytes_of(keys))
            async with asyncio.timeout_at(end):
                await process.stdin.drain()
        except (ConnectionError, TimeoutError):
            pass  # the shell has ended, or reads nothing: the screen says so
        ended = await self._read(process, end)
        shown = self.screen()
        if ended:
            status = await process.wait()
            self._process = None
            shown += f"\n[the terminal has ended: {status.outcome.value} {status.code}; keys start another]"
        return shown

    async def _start(self) -> Process:
        program = resources.files("arcforge_rl.terminal").joinpath("typist.py").read_text(encoding="utf-8")
        words = (self._python, "-I", "-c", program, str(ROWS), str(COLUMNS))
        limits = self._world.limits(SECONDS, SECONDS)
        self._reset()
        command = Command(words, env=self._world.env, cwd=self._world.workdir, limits=limits)
        self._process = await self._sandbox.start(command)
        await self._read(self._process, asyncio.get_running_loop().time() + 10)
        return self._process

    async def _read(self, process: Process, end: float) -> bool:
        """Shows output on the screen until it is quiet; returns whether there will be no more."""
        loop, size = asyncio.get_running_loop(), 0
        while (left := end - loop.time()) > 0 and size < MOST:
            try:
                async with asyncio.timeout(min(left, QUIET) if size else left):
                    data = await process.stdout.read(1 << 13)
            except TimeoutError:
                return False
            if not data:
                return True
            size += len(data)
            self._show(data)
            await asyncio.sleep(0)
        return False

    def _show(self, data: bytes) -> None:
        for piece in re.split(rb"(?=\x1b)", data):
            try:
                self._stream.feed(piece)
            except (TypeError, ValueError, IndexError, KeyError, AttributeError):  # a sequence that pyte does not know
                self._stream = pyte.ByteStream(self._screen)
                self._stream.feed(SEQUENCE.sub(b"", piece, count=1))

    def screen(self) -> str:
        """Returns the screen as text, without blanks at the ends of lines, and the place of the cursor."""
        lines = [line.rstrip() for line in self._screen.display]
        while lines and not lines[-1]:
            lines.pop()
        cursor = self._screen.cursor
        return "\n".join([*lines, f"[cursor: row {cursor.y + 1}, column {cursor.x + 1}]"])

    async def close(self) -> None:
        """Ends the terminal and everything that runs in it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()
