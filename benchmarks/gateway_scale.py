"""Cost of the gateway: many rollouts at a time, or one long one, before an engine that computes nothing.

    python benchmarks/gateway_scale.py [--quick] [--rollouts 1000] [--turns 20] [--tokens 200] [--seconds 600]
                                       [--engine-seconds 10] [--tool-seconds 0.2] [--stream] [--log FOLDER]
                                       [--profile FILE] [--json FILE]
    python benchmarks/gateway_scale.py --long 1000 [--recent 5] [--json FILE]

The gateway is a process of its own, with the demo's tokenizer and template. Its stub engine answers each request after
`--engine-seconds` with `--tokens` tokens that call a tool. The clients, in this process, keep `--rollouts` sessions
open: each plays `--turns` turns over chat completions (its first time 1 to `--turns`), sends its whole history every
time, closes its session and opens another one. Between two turns it waits a random time of `--tool-seconds` at most:
without it, turns that were once held up together would meet again and again, as the engine always takes as long.

`added` is the time of a reply beyond that of the engine, as its client sees it, scheduling of both processes included,
of the `turns` after the first tenth of the run; `processor` and `clients` are processor milliseconds of a turn in the
gateway and in all clients; `memory` is the largest resident MiB of the gateway in each third of the run.
The machine should be otherwise idle: `load` says whether it was.

`--long` plays one session of that many turns, each of which calls a tool, whose agent shows the results of the last
`--recent` calls (the others are a short line): each turn then has a context of its own. It reports the gateway's
processor seconds for all turns, that for half of them, and for closing the session.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

import _path  # noqa: F401
from arcforge_core.files.find import DEMO, find_checkpoint
from arcforge_core.garbage import SERVER, frozen_garbage
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.configs import GatewayConfig, PagedEngineConfig, ServeConfig
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.server.gate.connections import connection_options
from arcforge_serving.server.gate.listening import listen
from arcforge_serving.server.serve import Server, state_of
from support.stub_engine import StubEngine

OMITTED = "Tool result is omitted to save tokens."
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
SAMPLES = 60
"""Of the gateway's memory."""
WORDS = "the value of each row is read from a file and written to another one in order "


# ---- the gateway's process -------------------------------------------------------------------------------------------


def gateway(args: argparse.Namespace) -> None:
    """Serves until its input ends; prints its port first, and figures for each line that it receives."""
    tokenizer = Tokenizer.load(find_checkpoint(DEMO))
    call = "<tool_call>run<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call><|observation|>"
    end = tokenizer.encode(call, allow_special=True)
    said = tokenizer.encode(WORDS * args.tokens)[: args.tokens - len(end)]
    state = state_of(StubEngine([*said, *end], args.engine_seconds), tokenizer, "stub")  # type: ignore[arg-type]
    app = gateway_app(state, GatewayConfig(sessions=10**6, log=args.log))
    options = connection_options(ServeConfig(PagedEngineConfig(), max_connections=10**5))

    def answer() -> None:
        for _ in sys.stdin:
            times = os.times()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            print(times.user + times.system, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, flush=True)
        server.should_exit = True

    with listen("127.0.0.1", 0) as socket:
        server = Server(state, 1.0, log_level="error", app=app, **options)
        print(socket.getsockname()[1], flush=True)
        threading.Thread(target=answer, daemon=True).start()
        profile = cProfile.Profile(time.thread_time)
        if args.profile:
            profile.enable()
        with frozen_garbage(SERVER):  # as `arcforge-serve` does
            server.run(sockets=[socket])
        if args.profile:
            profile.disable()
            profile.dump_stats(args.profile)


# ---- the clients -----------------------------------------------------------------------------------------------------


class Connection:
    """Plain HTTP/1.1 with few instructions, so that the clients' own work does not hide the gateway's."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Returns status and body of an answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**26)
        reader, writer = self._streams
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        if "content-length" in headers:
            return int(lines[0].split()[1]), await reader.readexactly(int(headers["content-length"]))
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
        return int(lines[0].split()[1]), b"".join(parts)

    def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            self._streams[1].close()


@dataclass
class Figures:
    """Seconds of the turns and closes of all clients."""

    turns: list[float] = field(default_factory=list)
    closes: list[float] = field(default_factory=list)


async def rollout(http: Connection, args: argparse.Namespace, figures: Figures, until: float, turns: int) -> None:
    """Plays one session of that many turns."""
    status, opened = await http.ask("POST", "/sessions", {})
    assert status == 200, opened
    session = json.loads(opened)["id"]
    messages: list[dict[str, Any]] = [{"role": "user", "content": WORDS * 5}]
    body = {"model": "stub", "messages": messages, "tools": [TOOL], "stream": args.stream}
    body["chat_template_kwargs"] = {"enable_thinking": False}
    shown = deque[int]()
    for turn in range(turns):
        if time.monotonic() > until:
            break
        start = time.monotonic()
        status, answer = await http.ask("POST", f"/sessions/{session}/v1/chat/completions", body)
        if time.monotonic() < until:  # then all sessions are closed, in place of five a second
            figures.turns.append(time.monotonic() - start)
        assert status == 200, answer
        message = streamed(answer) if args.stream else json.loads(answer)["choices"][0]["message"]
        result = f"{turn} {WORDS}"
        await asyncio.sleep(args.tool_seconds * random.random())
        messages += [message, {"role": "tool", "content": result, "tool_call_id": message["tool_calls"][0]["id"]}]
        shown.append(len(messages) - 1)
        if args.recent and len(shown) > args.recent:
            place = shown.popleft()
            messages[place] = {**messages[place], "content": OMITTED}
    start = time.monotonic()
    status, record = await http.ask("DELETE", f"/sessions/{session}")
    figures.closes.append(time.monotonic() - start)
    assert status == 200 and all(turn["drift"] in ("new", "clean") for turn in json.loads(record)["turns"])


def streamed(answer: bytes) -> dict[str, Any]:
    """Returns the message of a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    for line in answer.decode().split("\n\n"):
        if not line.startswith("data: {"):
            continue
        delta = json.loads(line[6:])["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            if call.get("id"):
                message["tool_calls"].append({**call, "function": {**call["function"]}})
            else:
                message["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
    return message


async def load(port: int, args: argparse.Namespace, ask: Any) -> dict[str, Any]:
    """Keeps `rollouts` sessions running; returns the figures."""
    figures, began = Figures(), time.monotonic()
    until = began + args.seconds

    async def client(number: int) -> None:
        await asyncio.sleep(args.engine_seconds * number / args.rollouts)  # their turns are spread out
        http = Connection(port)
        turns = 1 + number % args.turns  # so that sessions end evenly, too
        while time.monotonic() < until:
            await rollout(http, args, figures, until, turns)
            turns = args.turns
        http.close()

    clients = asyncio.gather(*(client(number) for number in range(args.rollouts)))
    memory: list[float] = []
    for sample in range(SAMPLES):
        await asyncio.sleep(max(began + (sample + 1) * args.seconds / SAMPLES - time.monotonic(), 0))
        now, resident = await asyncio.to_thread(ask)
        memory.append(resident)
        if sample == SAMPLES // 10:
            used, before = now, len(figures.turns)
    await clients
    third = SAMPLES // 3
    added = sorted(1e3 * (seconds - args.engine_seconds) for seconds in figures.turns[before:])
    return {
        "all_turns": len(figures.turns),
        "turns": len(added),
        "turns_per_second": len(figures.turns) / args.seconds,
        "added_p50_ms": statistics.median(added),
        "added_p99_ms": added[int(0.99 * len(added))],
        "close_p50_ms": 1e3 * statistics.median(figures.closes),
        "processor_ms_per_turn": 1e3 * (now - used) / len(added),
        "memory_mb": [max(memory[n * third : (n + 1) * third]) for n in range(3)],
    }


async def long(port: int, args: argparse.Namespace, ask: Any) -> dict[str, Any]:
    """Plays one session of half as many turns, then one of all; returns processor seconds."""
    found: dict[str, Any] = {"all_turns": 20 + args.long // 2 + args.long}
    for name, turns in (("first", 20), ("half", args.long // 2), ("whole", args.long)):
        before = ask()[0]
        http = Connection(port)
        figures = Figures()
        await rollout(http, args, figures, float("inf"), turns)
        http.close()
        found |= {f"{name}_processor_seconds": ask()[0] - before, f"{name}_close_seconds": figures.closes[0]}
    return found


def main() -> None:
    """Starts the gateway and the clients, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 rollouts, 30 seconds, an engine of one second")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--engine-seconds", type=float, default=10.0)
    parser.add_argument("--tool-seconds", type=float, default=0.2, help="of an agent between two turns at most")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--log")
    parser.add_argument("--long", type=int)
    parser.add_argument("--recent", type=int, default=0)
    parser.add_argument("--profile", help="file for cProfile's processor seconds of the gateway's loop")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gateway", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gateway:
        gateway(args)
        return
    if args.quick:
        args.rollouts, args.seconds, args.engine_seconds = min(args.rollouts, 100), min(args.seconds, 30.0), 1.0
    if args.long:
        args.engine_seconds, args.tool_seconds, args.recent = 0.0, 0.0, args.recent or 5
    options = [f"--tokens={args.tokens}", f"--engine-seconds={args.engine_seconds}"]
    options += [f"--{name}={value}" for name, value in (("log", args.log), ("profile", args.profile)) if value]
    command = [sys.executable, __file__, "--gateway", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    given, printed = process.stdin, process.stdout

    def ask() -> tuple[float, float]:
        given.write("\n")
        given.flush()
        used, memory = printed.readline().split()
        return float(used), float(memory)

    port, start = int(printed.readline()), os.getloadavg()
    gc.disable()  # a collection of the clients' garbage would be time of the gateway's
    begun = time.process_time()
    figures = uvloop.run((long if args.long else load)(port, args, ask))
    figures["clients_ms_per_turn"] = 1e3 * (time.process_time() - begun) / figures["all_turns"]
    figures["load"] = [start[0], os.getloadavg()[0]]
    given.close()
    process.wait()
    for name, value in figures.items():
        print(f"{name:24} {value}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
