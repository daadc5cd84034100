"""Routing policies on agents' traces: what is found in prefix caches, what is computed again, how long replies take.

    python benchmarks/routing.py [--quick] [--log FILE] [--engines 8] [--load 0.8] [--room 1.2] [--seeds 3]
                                 [--json FILE] [--plot FILE]

The policies are those of the router; engines are simulated, in virtual time. An engine shares its capacity between the
requests that it has (`PREFILL` prompt tokens a second, or one output token for `PER_TOKEN` of them) and keeps what it
has computed as far as it has room, the least recently used session going first and its last tokens first.

As in a training run, a fixed number of sessions runs at any time, and each that ends is replaced: a task, then turns
that bring a tool's result of 50 to 400 tokens and ask for 50 to 200, with a pause in between. There are as many
sessions as would keep the engines busy for the share `--load` of the time if nothing were computed twice, and the
caches hold `--room` times what these sessions hold on average. In the middle of each run an engine dies and comes back
without its cache.

With `--log` the sessions are those that a router has logged (``router.log``): each turn with the size of its prompt and
reply (a token for `PROMPT_BYTES` bytes; for an event or `REPLY_BYTES`), after the pause that was before it. As many
sessions run at a time as did, and the engines are as fast as makes the load. No engine dies.

`hits` is the share of all prompt tokens that was found, first turns included; `known` is what one cache without bounds
would find. `again` are the prompt tokens computed although they had been, by tokens that had to be. `hash` is
``session`` without a bound: pure consistent hashing. Ratios are of medians over seeds, each by the same trace.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import statistics
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _machine import describe_machine
from arcforge_serving.configs import RouterConfig
from arcforge_serving.router.policies import Bound, Policy, SessionHash, Wanted, build_policy

PREFILL, PER_TOKEN = 8000.0, 8.0
BLOCK = 128
TASK, RESULT, OUTPUT, TURNS, PAUSE = (300, 1500), (50, 400), (50, 200), (5, 60), 4.0
PROMPT_BYTES, REPLY_BYTES = 4, 30
"""Of a token in a request, as an id or as text, and in a whole reply of ``/v1/rl/generate``."""
SECONDS = 1200.0
"""Of virtual time, the first fifth of which does not count."""
Clock = Callable[[], float]
POLICIES: dict[str, Callable[[Clock], Policy]] = {
    "hash": lambda clock: SessionHash(Bound(math.inf), clock),
    "session": lambda clock: build_policy(RouterConfig("session"), clock),
    "prefix": lambda clock: build_policy(RouterConfig("prefix"), clock),
    "least_load": lambda clock: build_policy(RouterConfig("least_load"), clock),
    "round_robin": lambda clock: build_policy(RouterConfig("round_robin"), clock),
}


@dataclass
class Session:
    """A conversation: what its prompt has, how many turns are left, and its own random numbers."""

    name: str
    rng: random.Random
    prompt: int = 0
    turns: int = 0
    known: int = 0

    def __post_init__(self) -> None:
        self.prompt, self.turns = self.rng.randint(*TASK), self.rng.randint(*TURNS)

    def output(self) -> int:
        """Returns the tokens that the present turn asks for."""
        return self.rng.randint(*OUTPUT)

    def then(self, made: int) -> tuple[float, bool]:
        """Continues after a reply; returns the seconds until the next turn, and whether there is one."""
        self.prompt += made
        self.known = self.prompt
        self.turns -= 1
        self.prompt += self.rng.randint(*RESULT)
        return self.rng.expovariate(1 / PAUSE), self.turns > 0


@dataclass
class LoggedSession:
    """A conversation that a router has logged: (seconds after the turn before, prompt, output) of each turn."""

    name: str
    logged: list[tuple[float, int, int]]
    known: int = 0
    turn: int = 0

    @property
    def prompt(self) -> int:
        """Tokens of the present turn's prompt."""
        return self.logged[self.turn][1]

    def output(self) -> int:
        """Returns the tokens that the present turn got."""
        return self.logged[self.turn][2]

    def then(self, made: int) -> tuple[float, bool]:
        """Continues after a reply; see `Session.then`."""
        self.known = self.prompt + made
        last = self.turn + 1 == len(self.logged)
        self.turn += not last
        return self.logged[self.turn][0], not last


Conversation = Session | LoggedSession


@dataclass(frozen=True)
class Trace:
    """Sessions to replay.

    Attributes:
        sessions: (seconds, session) at which they begin.
        fresh: returns the session that replaces one that has ended; None when there are no more.
        kept: tokens of all sessions that are there at a time, on average.
        rate: prompt tokens that an engine computes in a second.
        seconds: of virtual time.
        counted: from when on figures count.
        dies: when an engine does; 0 for never.
    """

    sessions: list[tuple[float, Conversation]]
    fresh: Callable[[], Conversation | None]
    kept: float
    rate: float
    seconds: float
    counted: float
    dies: float


def made_up(engines: int, load: float, seed: int) -> Trace:
    """Returns a training run's sessions, whose number makes the load."""
    count, size = sessions_of(load, engines)
    numbers, starts = itertools.count(), random.Random(seed)

    def fresh() -> Session:
        name = f"{seed}-{next(numbers)}"
        return Session(name, random.Random(name))

    sessions: list[tuple[float, Conversation]] = [(starts.random() * 60.0, fresh()) for _ in range(count)]
    return Trace(sessions, fresh, size * count, PREFILL, SECONDS, SECONDS / 5, SECONDS / 2)


def logged(path: Path, engines: int, load: float) -> Trace:
    """Returns the sessions of a router's log; requests without a session, or that failed, are left out."""
    turns: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        decision = json.loads(line)
        if decision["session"] and decision["outcome"] == "done":
            turns.setdefault(decision["session"], []).append(decision)
    waiting: list[LoggedSession] = []
    work = pauses = size = 0.0
    for name, decisions in turns.items():
        decisions.sort(key=lambda decision: decision["at"])
        found, ended, known = [], decisions[0]["at"], 0
        for decision in decisions:
            prompt = max(1, decision["bytes"] // PROMPT_BYTES)
            output = max(1, decision["events"] or decision["sent"] // REPLY_BYTES)
            found.append((max(0.0, decision["at"] - ended), prompt, output))
            pauses += found[-1][0]
            ended = decision["at"] + decision["seconds"]
            work += prompt - min(known, prompt - 1) + PER_TOKEN * output
            known = prompt + output
            size += prompt * prompt  # a session with more tokens is there for longer
        waiting.append(LoggedSession(name, found))
    spans = [(each[0]["at"], each[-1]["at"]) for each in turns.values()]
    width = max(sum(begin <= moment <= end for begin, end in spans) for moment, _ in spans)
    if not width > load * engines:
        raise SystemExit(f"--log {path}: {width} sessions at a time cannot keep {load * engines:g} engines busy")
    busy = load * engines * pauses / (width - load * engines)  # so that width * busy / (pauses + busy) is the load
    later = iter(waiting[width:])
    prompts = sum(prompt for session in waiting for _, prompt, _ in session.logged)
    first: list[tuple[float, Conversation]] = [(0.0, session) for session in waiting[:width]]
    return Trace(first, lambda: next(later, None), size / prompts * width, work / busy, math.inf, 0.0, 0.0)


@dataclass
class Engine:
    """Shares its capacity between its requests; `virtual` is the work that each of them has got since the beginning."""

    room: float
    kept: OrderedDict[str, int] = field(default_factory=OrderedDict)
    jobs: list[tuple[float, int, float, Conversation, int]] = field(default_factory=list)
    virtual: float = 0.0
    now: float = 0.0
    lives: int = 0

    def advance(self, now: float) -> None:
        """Works until a time before the next request ends."""
        if self.jobs:
            self.virtual += (now - self.now) / len(self.jobs)
        self.now = now

    @property
    def next_end(self) -> float:
        """When the next request ends if none comes."""
        return self.now + (self.jobs[0][0] - self.virtual) * len(self.jobs) if self.jobs else math.inf

    def keep(self, session: Conversation, tokens: int) -> None:
        """Keeps a session's tokens; others go as far as there is no room, those of running requests last."""
        self.kept[session.name] = tokens
        self.kept.move_to_end(session.name)
        surplus, running = sum(self.kept.values()) - self.room, {job[3].name for job in self.jobs}
        for name in [name for name in self.kept if name not in running and name != session.name]:
            if surplus <= 0:
                return
            gone = min(surplus, self.kept[name])
            surplus -= gone
            self.kept[name] -= math.ceil(gone)
            if self.kept[name] <= 0:
                del self.kept[name]


def sessions_of(load: float, engines: int) -> tuple[int, float]:
    """Returns how many sessions make a load, and how many tokens one of them has on average."""
    new, made, turns = sum(RESULT) / 2, sum(OUTPUT) / 2, range(TURNS[0], TURNS[1] + 1)
    work = (new + PER_TOKEN * made) / PREFILL
    seen = sum(n * n for n in turns) / sum(turns)  # long ones are there for longer
    return round(load * engines * (PAUSE + work) / work), sum(TASK) / 2 + seen / 2 * (new + made)


def replay(build: Callable[[Clock], Policy], engines: int, room: float, trace: Trace) -> dict[str, float]:
    """Runs one trace under a policy."""
    fleet = [Engine(room * trace.kept / engines) for _ in range(engines)]
    now = 0.0
    policy = build(lambda: now)
    order = itertools.count()
    waiting = [(begins, next(order), session) for begins, session in trace.sessions]
    heapq.heapify(waiting)
    dies, back, down = trace.dies, trace.dies + 2.0 if trace.dies else 0.0, False
    figures = dict.fromkeys(("prompt", "found", "known", "again", "new"), 0)
    latencies: list[float] = []
    while True:
        ends = min(fleet, key=lambda engine: engine.next_end)
        now = min(ends.next_end, waiting[0][0] if waiting else math.inf, dies if not down and dies else math.inf)
        if now > trace.seconds or math.isinf(now):
            break
        if dies and now == dies:  # what it has is asked again, elsewhere
            fleet[0].advance(now)
            for job in fleet[0].jobs:
                heapq.heappush(waiting, (now, next(order), job[3]))
            fleet[0].jobs, dies = [], 0.0
            fleet[0].kept.clear()
            policy.forget("0")
        elif ends.next_end == now:
            ends.advance(now)
            _, _, asked, session, made = heapq.heappop(ends.jobs)
            if asked >= trace.counted:
                latencies.append(now - asked)
            ends.keep(session, session.prompt + made)
            pause, continues = session.then(made)
            later = session if continues else trace.fresh()
            if later is not None:
                heapq.heappush(waiting, (now + pause, next(order), later))
        else:
            _, _, session = heapq.heappop(waiting)
            loads = {str(n): len(engine.jobs) for n, engine in enumerate(fleet) if n or not back - 2 <= now < back}
            blocks = tuple(hash((session.name, n)) for n in range(session.prompt // BLOCK))
            engine = fleet[int(policy.choose(Wanted(session.name, blocks), loads))]
            engine.advance(now)
            found = min(engine.kept.get(session.name, 0), session.prompt - 1)
            made = session.output()
            work = (session.prompt - found + PER_TOKEN * made) / trace.rate
            heapq.heappush(engine.jobs, (engine.virtual + work, next(order), now, session, made))
            engine.keep(session, session.prompt)
            if now >= trace.counted:
                known = min(session.known, session.prompt - 1)
                figures["prompt"] += session.prompt
                figures["found"] += found
                figures["known"] += known
                figures["again"] += max(0, known - found)
                figures["new"] += session.prompt - known
    latencies.sort()
    return {
        "hits": figures["found"] / figures["prompt"], "known": figures["known"] / figures["prompt"],
        "again": figures["again"] / figures["new"], "requests": len(latencies),
        "moves": policy.moves, "p50_s": latencies[len(latencies) // 2], "p99_s": latencies[99 * len(latencies) // 100],
    }  # fmt: skip


def plot(found: dict[str, dict[str, float]], path: Path) -> None:
    """Draws hits and latencies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.2))
    for axis, name in zip(axes, ("hits", "again", "p99_s"), strict=True):
        axis.bar(list(found), [each[name] for each in found.values()])
        axis.set_title(name)
        axis.tick_params(axis="x", rotation=30)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Replays the traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--log", type=Path, help="decisions of a router, instead of made-up sessions")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--room", type=float, default=1.2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name, build in POLICIES.items():
        seeds = range(1 if options.quick or options.log else options.seeds)
        traces = (
            logged(options.log, options.engines, options.load)
            if options.log
            else made_up(options.engines, options.load, seed)
            for seed in seeds
        )
        runs = [replay(build, options.engines, options.room, trace) for trace in traces]
        found[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(f"{name:12}", *(f"{key} {value:.3g}" for key, value in found[name].items()), flush=True)
    ours = found["session"]
    ratios: dict[str, float] = {"session_hits": ours["hits"], "session_hits_of_known": ours["hits"] / ours["known"]}
    for name in ("hash", "prefix", "least_load", "round_robin"):
        ratios[f"hits_by_{name}"] = ours["hits"] / found[name]["hits"]
        ratios[f"p99_of_{name}_by_ours"] = found[name]["p99_s"] / ours["p99_s"]
    report: dict[str, Any] = {"machine": describe_machine(1), "policies": found, "ratios": ratios}
    print(json.dumps(ratios, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1))
    if options.plot is not None:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
