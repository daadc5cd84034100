"""Times the gradient of a step of reinforcement learning with the prompts of groups computed once, and once a rollout.

    python benchmarks/shared_prefixes.py [--model mini] [--attention mla] [--prompt 256] [--reply 64] [--rounds 5]

Groups of `--size` rollouts with random tokens; replies have half to all of `--reply` tokens. Both layouts run in turns;
a line gives the tokens computed, the FLOPs counted for them (`training_flops_per_token`) and the processor seconds.
The loss is the mean log-probability, whose two values are compared.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from _machine import describe_machine
from arcforge_core.config.compose import compose
from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.params import training_flops_per_token
from arcforge_rl.trainer.prefixes import by_ids
from arcforge_rl.trainer.tokens import PolicyMicro, pack, read


def groups(options: argparse.Namespace, vocabulary: int) -> list[Trace]:
    """Returns the rollouts."""
    draw, traces = random.Random(0), []
    for group in range(options.groups):
        prompt = [draw.randrange(vocabulary) for _ in range(options.prompt)]
        for number in range(options.size):
            branch = Branch(f"{group}.{number}", prompt, [False] * len(prompt), [0.0] * len(prompt), [-1] * len(prompt))
            count = draw.randint(options.reply // 2, options.reply)
            branch.sample([draw.randrange(vocabulary) for _ in range(count)], [-1.0] * count, [0] * count)
            traces.append(Trace(f"{group}", f"{group}", branch.branch_id, [branch], {"reward": 0.0}))
    return traces


def gradient(model: CausalLM, micros: list[PolicyMicro], sampled: int) -> float:
    """Returns the loss after its backward pass."""
    model.zero_grad()
    loss = 0.0
    for micro in micros:
        part = -read(model, micro, 1.0).logprobs_S.sum() / sampled
        part.backward()  # type: ignore[no-untyped-call]
        loss += float(part.detach())
    return loss


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("model", "mini"), ("attention", "mla")):
        parser.add_argument(f"--{name}", default=value)
    sizes = {"groups": 2, "size": 8, "prompt": 256, "reply": 64, "rounds": 5, "threads": 1, "micro-batch-tokens": 4096}
    for name, count in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = describe_machine(options.threads)
    config = compose([f"model={options.model}", f"attention={options.attention}"])
    torch.manual_seed(0)
    model = build_model(config.model, config.attention)
    traces = groups(options, config.model.vocab_size)
    sampled = sum(trace.num_sampled for trace in traces)
    sides: dict[str, dict[str, Any]] = {}
    micros = {}
    for side, alike in (("alone", None), ("shared", by_ids)):
        start = time.process_time()
        micros[side] = pack(traces, options.micro_batch_tokens, alike=alike)
        keys_T = torch.cat([micro.batch.positions_T for micro in micros[side]]).double() + 1
        flops = training_flops_per_token(model, keys_T).main * len(keys_T)
        layout = time.process_time() - start
        sides[side] = {"tokens": len(keys_T), "gflop": flops / 1e9, "layout_s": layout, "cpu_s": [], "loss": 0.0}
    for number in range(options.rounds + 1):
        for side, found in sides.items():
            start = time.process_time()
            found["loss"] = gradient(model, micros[side], sampled)
            if number:  # the first round compiles and allocates
                found["cpu_s"].append(time.process_time() - start)
    for side, found in sides.items():
        low, high = min(found["cpu_s"]), max(found["cpu_s"])
        print(
            f"{side}: {found['tokens']:,} tokens, {found['gflop']:,.0f} GFLOP, layout {found['layout_s']:.3f} s, "
            f"{statistics.median(found['cpu_s']):.2f} s of the processor ({low:.2f} to {high:.2f}), "
            f"loss {found['loss']:.8f}"
        )
    ratios = [a / b for a, b in zip(sides["alone"]["cpu_s"], sides["shared"]["cpu_s"], strict=True)]
    print(f"alone / shared: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "options": str(options), **sides, "ratios": ratios}))


if __name__ == "__main__":
    main()
