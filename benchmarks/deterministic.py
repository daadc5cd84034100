"""What `deterministic` costs: a training step, a prompt and a decoded token with it, beside the same without it.

    python benchmarks/deterministic.py [--quick] [--threads N] [--preset mini] [--json FILE]

Both sides are the same weights and tokens, and their losses and logits are compared before anything is timed. Rounds
alternate; ratios are of medians, time with over time without. A training step is forward, backward, clipping and fused
AdamW on rows of 512 tokens, MTP as in the preset; prompts and decoded tokens are those of 16 sequences of 100 to 400.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import _path  # noqa: F401
from _machine import describe_machine
from arcforge_core.config.compose import compose
from arcforge_core.model.build import build_model
from arcforge_core.model.cache import PagedCache
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.train.step import StepBatch, accumulate_gradients, clip_gradients
from support.models import train_batch

VARIANTS = ("gqa", "mla", "dsa")
LENGTH = 512
PROMPTS = [100 + 20 * n for n in range(16)]
AGREEING = 0.98
"""Share of values that both sides must agree on: near-ties of routers and indexers may fall differently."""
Job = Callable[[], Tensor]
"""Does the work once and returns what both sides must agree on."""


def build_pair(preset: str, attention: str) -> dict[bool, CausalLM]:
    """Returns the model without and with deterministic ops, fp32, the same weights."""
    config = compose([f"model={preset}", f"attention={attention}"])
    torch.manual_seed(0)
    plain = build_model(config.model, config.attention, Ops(select_hardware("cpu")))
    other = build_model(config.model, config.attention, Ops(select_hardware("cpu"), deterministic=True))
    other.load_state_dict(copy.deepcopy(plain.state_dict()))
    return {False: plain, True: other}


def training_step(model: CausalLM, rows: int) -> Job:
    """Returns one optimizer step on `rows` rows; its value is the loss."""
    batch = train_batch([LENGTH] * rows, model.config.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def job() -> Tensor:
        result = accumulate_gradients(model, StepBatch([batch]), torch.Tensor.backward, lambda values: (values, 1.0))
        clip_gradients(model.named_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return result.losses["loss"]

    return job


def prompts(model: CausalLM, decoded: int) -> tuple[Job, Job]:
    """Returns reading all prompts, and then decoding one token of each, whose values are logits."""
    tokens_T = torch.randint(model.config.vocab_size, (sum(PROMPTS),), generator=torch.Generator().manual_seed(2))
    caches: list[PagedCache] = []

    @torch.inference_mode()
    def prefill() -> Tensor:
        cache = model.new_cache([n + decoded for n in PROMPTS])
        caches[:] = [cache]
        logits_TV: Tensor = model(tokens_T, cache.batch(range(len(PROMPTS)), PROMPTS), cache).logits
        return logits_TV

    @torch.inference_mode()
    def decode() -> Tensor:
        batch = caches[0].batch(range(len(PROMPTS)), [1] * len(PROMPTS))
        logits_TV: Tensor = model(tokens_T[: len(PROMPTS)], batch, caches[0]).logits
        return logits_TV

    return prefill, decode


def alternate(jobs: dict[bool, Job], rounds: int) -> dict[bool, list[float]]:
    """Checks that both sides agree, then times them in turns."""
    plain, other = (jobs[side]() for side in (False, True))
    share = torch.isclose(other, plain, rtol=1e-4, atol=1e-4).double().mean()
    if share < AGREEING:
        raise SystemExit(f"the two sides do not compute the same: {share:.2%} of the values agree")
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for side, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds[side].append(time.perf_counter() - start)
    return seconds


def measure(preset: str, attention: str, rows: int, rounds: int) -> dict[str, dict[bool, list[float]]]:
    """Returns the seconds of each job, without and with."""
    models = build_pair(preset, attention)
    steps = {side: training_step(model, rows) for side, model in models.items()}
    generation = {side: prompts(model.eval(), decoded=4 * rounds + 1) for side, model in models.items()}
    found = {"prefill": alternate({side: jobs[0] for side, jobs in generation.items()}, rounds)}
    found["decode"] = alternate({side: jobs[1] for side, jobs in generation.items()}, 4 * rounds)
    return {"train": alternate(steps, rounds), **found}


def main() -> None:
    """Measures all variants and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9, 4 rows instead of 8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds, rows = (3, 4) if options.quick else (9, 8)
    report: dict[str, Any] = {
        "benchmark": "deterministic", "preset": options.preset, "rounds": rounds, "rows": rows,
        "machine": describe_machine(options.threads), "seconds": {}, "ratios": {},
    }  # fmt: skip
    print(f"{'':<16}{'without ms':>12}{'with ms':>12}{'ratio':>8}")
    for attention in VARIANTS:
        for job, seconds in measure(options.preset, attention, rows, rounds).items():
            medians = {side: statistics.median(times) for side, times in seconds.items()}
            name, ratio = f"{job}_{attention}", medians[True] / medians[False]
            report["seconds"][name] = {"without": seconds[False], "with": seconds[True]}
            report["ratios"][name] = ratio
            print(f"{name:<16}{1e3 * medians[False]:>12.1f}{1e3 * medians[True]:>12.1f}{ratio:>8.2f}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
