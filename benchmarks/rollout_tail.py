"""The longest rollouts with drafts, quantised weights and engines that prefill, on one trace of tool calls.

    python benchmarks/rollout_tail.py [--checkpoint demo] [--rollouts 24] [--seeds 3] [--variants ...] [--json FILE]

The trace, the same for each variant of a seed: every rollout asks the policy an arithmetic question in each of 1 to
`--turns` turns (geometric, so that few rollouts are long), a tool answers after a log-normal time (median `--median`
seconds, sigma 1, cut at 30 times the median), and one result in four is long: a listing of `--long` tokens.

Time is virtual: an engine's clock advances by the processor seconds of its steps, tools wait on the same clock, and two
engines compute in parallel. So other programs on the machine, and its number of cores, change nothing but noise.

- `plain`: one engine. `drafts`: `engine.draft_tokens=3 engine.drafting=auto`. `w8a8`: `engine.weights=w8a8`.
  `w8a8 drafts`: both.
- `two engines`: sessions in turns on two. `prefill`: prompts with 64 new tokens or more are computed on the second one,
  and their pages move to the first.

`p50`, `p99`: seconds of a rollout. `makespan`: of all. `right`: share of right answers. `gap`: mean difference in nats
to the log-probs of the unquantised model. A variant says `loses reward` if it answers fewer questions than `plain`
right, by more than two standard errors of the paired difference, and `loses time` if its `p99` is longer.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from _machine import describe_machine
from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.environment import Environment, Episode, Task
from arcforge_core.episodes.agent import Dialogue, build_dialogue
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import default_ops
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.engine_suite import continuation_logits
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.engine.stream import Stream

DRAFTS = {"draft_tokens": 3, "drafting": "auto"}
VARIANTS: dict[str, tuple[dict[str, Any], int, bool]] = {
    "plain": ({}, 1, False),
    "drafts": (DRAFTS, 1, False),
    "w8a8": ({"weights": "w8a8"}, 1, False),
    "w8a8 drafts": ({"weights": "w8a8", **DRAFTS}, 1, False),
    "two engines": ({}, 2, False),
    "prefill": ({}, 2, True),
}
"""Options of the engines, how many there are, and whether the second one only prefills."""
Rows = dict[str, list[tuple[dict[str, float], dict[tuple[int, int], bool]]]]
MOST_READ = 1500
"""Tokens of results after which a rollout's further ones are short: the demo's model has 4,096 positions."""
LEAST_PREFILL = 64
"""New tokens of a prompt from which it goes to the engine that prefills."""


@dataclass(frozen=True)
class Turn:
    """A question, the tokens of a tool's result before it, and the seconds that the tool takes."""

    task: Task
    result: Sequence[int]
    latency: float


def trace(seed: int, options: argparse.Namespace, tokenizer: Tokenizer, environment: Environment) -> list[list[Turn]]:
    """Returns the turns of each rollout."""
    draw = random.Random(seed)
    numbers = itertools.count(1000 * seed)
    rollouts = []
    for _ in range(options.rollouts):
        count = min(options.turns, 1 + int(math.log(1 - draw.random()) / math.log(1 - 1 / options.mean_turns)))
        turns, read = [], 0
        for place in range(count):
            listing = " ".join(f"{draw.randrange(10**6)}" for _ in range(options.long))
            long = draw.random() < 0.25 and read < MOST_READ
            ids = tokenizer.encode(listing)[: options.long if long else 8] if place else []
            read += len(ids)
            latency = min(30.0, math.exp(draw.gauss(0.0, 1.0))) * options.median
            turns.append(Turn(environment.task(next(numbers)), ids, latency))
        rollouts.append(turns)
    return rollouts


@dataclass
class Lane:
    """An engine with its clock."""

    engine: PagedEngine
    now: float = 0.0
    running: dict[int, tuple[Stream, Callable[[], None]]] = field(default_factory=dict)

    def spend(self, work: Callable[[], Any]) -> Any:
        """Does work, and advances the clock by its processor time."""
        begun = time.process_time()
        found = work()
        self.now += time.process_time() - begun
        return found

    def step(self) -> None:
        """Computes a step, and tells whose sequences have ended."""
        self.spend(self.engine.step)
        for number, (stream, ended) in list(self.running.items()):
            if stream.done:
                del self.running[number]
                ended()


class Play:
    """All rollouts of a trace on some engines."""

    def __init__(
        self, lanes: Sequence[Lane], prefills: bool, dialogue: Dialogue, environment: Environment, most: int
    ) -> None:
        self.lanes, self.prefills, self.dialogue, self.environment, self.most = (
            lanes, prefills, dialogue, environment, most,
        )  # fmt: skip
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self.seconds: list[float] = []
        self.sampled: dict[tuple[int, int], tuple[list[int], list[int], list[float]]] = {}
        self.right: dict[tuple[int, int], bool] = {}

    def at(self, when: float, what: Callable[[float], None]) -> None:
        """Does something at a time."""
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, rollouts: Sequence[Sequence[Turn]]) -> None:
        """Plays them; all begin at 0."""
        for number, turns in enumerate(rollouts):
            self.at(0.0, self._rollout(number, turns))
        while self._events or any(lane.running for lane in self.lanes):
            busy = min((lane for lane in self.lanes if lane.running), key=lambda lane: lane.now, default=None)
            if self._events and (busy is None or self._events[0][0] <= busy.now):
                when, _, what = heapq.heappop(self._events)
                what(when)
            elif busy is not None:
                busy.step()

    def _rollout(self, number: int, turns: Sequence[Turn]) -> Callable[[float], None]:
        lane = self.lanes[0] if self.prefills else self.lanes[number % len(self.lanes)]
        ids: list[int] = []
        left: Iterator[tuple[int, Turn]] = iter(enumerate(turns))

        def ask(when: float) -> None:
            place, turn = next(left)
            known = len(ids)
            question = self.dialogue.prompt([Message("user", turn.task.prompt)], ()).ids
            ids.extend([*turn.result, *question])
            if self.prefills and len(ids) - known >= LEAST_PREFILL:
                self._prefill(when, ids, lambda then: submit(then, place, turn))
            else:
                submit(when, place, turn)

        def submit(when: float, place: int, turn: Turn) -> None:
            lane.now = max(lane.now, when)
            params = SamplingParams(self.most, stop_token_ids=self.dialogue.stop_ids, seed=1000 * number + place)
            (stream,) = lane.spend(lambda: lane.engine.submit(ids, params))
            lane.running[number] = stream, lambda: ended(stream, place, turn)

        def ended(stream: Stream, place: int, turn: Turn) -> None:
            output = stream.result(0)
            self.sampled[number, place] = [*ids], output.token_ids, output.logprobs
            reply = self.dialogue.parse(output.token_ids, ids, ())
            episode = Episode((Message("user", turn.task.prompt), reply.message), reply)
            outcome = asyncio.run(self.environment.score(turn.task, episode))
            self.right[number, place] = outcome.rewards.get("reward", 0.0) >= 1.0
            ids.extend(output.token_ids)
            if place + 1 == len(turns):
                self.seconds.append(lane.now)
            else:
                self.at(lane.now + turn.latency, ask)

        return ask

    def _prefill(self, when: float, ids: Sequence[int], then: Callable[[float], None]) -> None:
        decode, prefill = self.lanes
        prefill.now = max(prefill.now, when)
        first = decode.engine.exchange.count(ids)
        prefill.spend(lambda: prefill.engine.generate([list(ids)], SamplingParams(1)))
        version, records = prefill.spend(lambda: prefill.engine.exchange.export(ids, first))

        def arrive(now: float) -> None:
            decode.now = max(decode.now, now)
            decode.spend(lambda: decode.engine.exchange.insert(ids, first, version, records))
            then(decode.now)

        self.at(prefill.now, arrive)


def measure(
    variant: str, seed: int, options: argparse.Namespace, folder: Path
) -> tuple[dict[str, float], dict[tuple[int, int], bool]]:
    """Plays a seed's trace with a variant; returns figures, and which questions were answered right."""
    given, count, prefills = VARIANTS[variant]
    tokenizer, ops = Tokenizer.load(folder), default_ops()
    dialogue = build_dialogue(tokenizer, "on")
    component = registry().get("environment", "math")
    environment = component.load()(component.load_schema()(kinds=["expressions"], split="heldout"))
    config = PagedEngineConfig(cache_tokens=131072, max_running=options.rollouts, overlap=False, **given)
    lanes = [Lane(PagedEngine(config, load_pretrained(folder, torch.float32, ops).eval())) for _ in range(count)]
    for lane in lanes:  # first steps compile, allocate and choose kernels
        lane.engine.generate([list(range(9, 40))] * 4, SamplingParams(16))
    play = Play(lanes, prefills, dialogue, environment, options.new_tokens)
    play.run(trace(seed, options, tokenizer, environment))
    for lane in lanes:
        lane.engine.close()
    seconds, turns = sorted(play.seconds), [play.sampled[key] for key in sorted(play.sampled)]
    figures = {
        "p50": seconds[len(seconds) // 2],
        "p99": seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))],
        "makespan": seconds[-1],
        "right": statistics.mean(play.right.values()),
        "gap": gap(
            load_pretrained(folder, torch.float32, ops).eval(), [play.sampled[key] for key in sorted(play.sampled)]
        ),
        "turns": len(play.right),
        "tokens": sum(len(sampled) for _, sampled, _ in turns),
    }
    return figures, play.right


@torch.no_grad()
def gap(model: CausalLM, sampled: Sequence[tuple[list[int], list[int], list[float]]], most: int = 16) -> float:
    """Returns the mean difference between reported log-probs and the model's, over some turns."""
    total = count = 0.0
    for prompt, ids, logprobs in list(sampled)[:: max(1, len(sampled) // most)]:
        found_SV = continuation_logits(model, prompt, ids).log_softmax(-1)
        found_S = found_SV.gather(1, torch.tensor(ids)[:, None])[:, 0]
        total += float((found_S - torch.tensor(logprobs)).abs().sum())
        count += len(ids)
    return total / count


def verdict(rows: Rows, variant: str) -> str:
    """Returns how a variant compares with `plain`, over all seeds."""
    pairs = list(zip(rows["plain"], rows[variant], strict=True))
    slower = statistics.median(mine["p99"] / plain["p99"] for (plain, _), (mine, _) in pairs)
    lost = [int(plain[key]) - int(mine[key]) for (_, plain), (_, mine) in pairs for key in plain]
    mean, error = statistics.mean(lost), statistics.pstdev(lost) / len(lost) ** 0.5
    said = [text for text, holds in (("loses reward", mean > 2 * error), ("loses time", slower > 1.0)) if holds]
    return f"p99 x{slower:.2f}, right {-mean:+.1%} +- {error:.1%} {', '.join(said)}"


def main() -> None:
    """Plays all variants, seed by seed in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--rollouts", type=int, default=24)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--mean-turns", type=float, default=4.0)
    parser.add_argument("--new-tokens", type=int, default=80)
    parser.add_argument("--long", type=int, default=512)
    parser.add_argument("--median", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    variants = ["plain", *(name for name in options.variants if name != "plain")]
    folder = find_checkpoint(options.checkpoint)
    rows: Rows = {name: [] for name in variants}
    for seed in range(options.seeds):
        for variant in variants:
            rows[variant].append(found := measure(variant, seed, options, folder))
            print(f"seed {seed} {variant:12}", *(f"{k} {v:.4g}" for k, v in found[0].items()), flush=True)
    for variant in variants[1:]:
        print(f"{variant:12} {verdict(rows, variant)}")
    if options.json is not None:
        figures = {name: [row for row, _ in of] for name, of in rows.items()}
        options.json.write_text(json.dumps({"machine": describe_machine(1), "rows": figures}, indent=1))


if __name__ == "__main__":
    main()
