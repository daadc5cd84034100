"""Processor time of recording one long rollout, without that of the engine: branches, template, agent.

    python benchmarks/recording.py [--turns 1000] [--tokens 120] [--json FILE]

A stub engine answers each turn with `--tokens` tokens. `branch` appends them to a `Branch`; `agent` is a `PolicyAgent`,
which also compares the conversation with the one it knows, continues its ids in GLM-5's format, and parses the reply.
Each row also has the ratio to half as many turns: 2 is linear.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _machine import describe_machine
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup, build_dialogue
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.testing.small_models import small_tokenizer

TOKENIZER = small_tokenizer()


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
    agent = PolicyAgent(lockstep, 0, SamplingSetup(build_dialogue(TOKENIZER, False), tokens, 1.0, 10**9), "seed")

    async def program() -> None:
        messages = [Message("user", "one")]
        with lockstep.program():
            for _ in range(turns):
                reply = await agent.reply(messages)
                messages += [reply.message, Message("user", "two")]

    asyncio.run(program())
    (branch,) = agent.recorded
    assert branch.num_sampled == turns * tokens


def seconds(of: Callable[[], None]) -> float:
    """Returns the least processor time of three runs."""
    found = []
    for _ in range(3):
        start = time.process_time()
        of()
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = {}
    for name, record in (("branch", record_branch), ("agent", record_agent)):
        half, whole = (seconds(partial(record, turns, args.tokens)) for turns in (args.turns // 2, args.turns))
        rows[name] = {"seconds": whole, "ratio": whole / half}
        print(
            f"{name:8} {args.turns} turns of {args.tokens} tokens: {whole:.3f} s, {whole / half:.2f}x of half as many"
        )
    if args.json:
        args.json.write_text(json.dumps({"machine": describe_machine(1), **rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
