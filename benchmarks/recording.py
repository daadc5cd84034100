"""Processor time of recording one long rollout, without that of the engine: branches, template, agent.

    python benchmarks/recording.py [--turns 1000] [--tokens 120] [--rounds 3] [--quick] [--json FILE]

A stub engine answers each turn with `--tokens` tokens. `branch` appends them to a `Branch`; `agent` is a `PolicyAgent`,
which also compares the conversation with the one it knows, continues its ids in GLM-5's format, and parses the reply.
`contexts` adds the turns of an agent that shows the last 5 results of its tools to a `SessionTree`, so each turn has a
context of its own, and `export` writes the session's record as JSON; neither counts the time of reading the agent's
requests. Each row also has the ratio to half as many turns: 2 is linear.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _machine import describe_machine
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import ChatOptions, Message
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.contracts.sessions import SessionRecord
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup, build_dialogue
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.gateway.tree import SessionTree

TOKENIZER = small_tokenizer()
RECENT = 5
"""Results of tools that an agent shows."""


class Stub:
    """An engine that gives the same tokens always, and ends the turn."""

    weight_version = 0

    def __init__(self, tokens: int) -> None:
        words = (TOKENIZER.encode("one two three ") * tokens)[: tokens - 1]
        self.output = GenerationOutput([*words, TOKENIZER.special["<|user|>"]], [-1.0] * tokens, "stop", 0)

    def generate(self, prompts: Sequence[Sequence[int]], params: Any) -> list[GenerationOutput]:
        """Returns the output for each prompt."""
        return [self.output for _ in prompts]


def record_branch(turns: int, tokens: int) -> None:
    """Appends turns to a branch."""
    branch, output = Branch("b"), Stub(tokens).output
    for _ in range(turns):
        branch.read(output.token_ids[:10])
        branch.sample(output.token_ids, output.logprobs, [0] * tokens)


def record_agent(turns: int, tokens: int) -> None:
    """Has an agent reply turn by turn to a conversation that grows."""
    lockstep = Lockstep(Stub(tokens))  # type: ignore[arg-type]
    agent = PolicyAgent(lockstep, 0, SamplingSetup(build_dialogue(TOKENIZER, "off"), tokens, 1.0, 10**9), "seed")

    async def program() -> None:
        messages = [Message("user", "one")]
        with lockstep.program():
            for _ in range(turns):
                reply = await agent.reply(messages)
                messages += [reply.message, Message("user", "two")]

    asyncio.run(program())
    (branch,) = agent.recorded
    assert branch.num_sampled == turns * tokens


def contexts(turns: int, tokens: int) -> tuple[float, SessionTree]:
    """Plays an agent that shows its last results alone; returns the processor time of recording, and the tree."""
    tree, spent = SessionTree(build_dialogue(TOKENIZER, "off").template), 0.0
    ids = [*Stub(tokens).output.token_ids[:-1], TOKENIZER.special["<|observation|>"]]
    output = GenerationOutput(ids, [-1.0] * tokens, "stop", 0)
    messages, shown = [Message("user", "one")], deque[int]()
    options = ChatOptions(enable_thinking=False)
    for turn in range(turns):
        at = tree.attach(messages, (), options)
        reply = tree.template.parse(ids, at.read).message
        start = time.process_time()
        tree.record(at, output, reply)
        spent += time.process_time() - start
        messages += [reply, Message("tool", f"{turn} two three")]
        shown.append(len(messages) - 1)
        if len(shown) > RECENT:
            messages[shown.popleft()] = Message("tool", "Tool result is omitted to save tokens.")
    return spent, tree


def record_contexts(turns: int, tokens: int) -> float:
    """Returns the processor time of recording."""
    return contexts(turns, tokens)[0]


def export(turns: int, tokens: int) -> float:
    """Returns the processor time of writing a record."""
    tree = contexts(turns, tokens)[1]
    assert len(tree.leaves) == turns - RECENT
    start = time.process_time()
    json.dumps(SessionRecord("s", [], tree.parts, tree.leaves, tree.masked).as_json())
    return time.process_time() - start


def timed(of: Callable[[int, int], None]) -> Callable[[int, int], float]:
    """Returns a function that returns the processor time of another."""

    def timing(turns: int, tokens: int) -> float:
        start = time.process_time()
        of(turns, tokens)
        return time.process_time() - start

    return timing


ROWS = {"branch": timed(record_branch), "agent": timed(record_agent), "contexts": record_contexts, "export": export}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="an eighth of the turns, one round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    turns, count = (args.turns // 8, 1) if args.quick else (args.turns, args.rounds)
    rows = {}
    for name, measure in ROWS.items():
        half, whole = (min(measure(each, args.tokens) for _ in range(count)) for each in (turns // 2, turns))
        rows[name] = {"seconds": whole, "ratio": whole / half}
        print(f"{name:8} {turns} turns of {args.tokens} tokens: {whole:.3f} s, {whole / half:.2f}x of half as many")
    if args.json:
        ratios = {name: row["ratio"] for name, row in rows.items()}
        report = {"benchmark": "recording", "machine": describe_machine(1), "rows": rows, "ratios": ratios}
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
