"""Times a training step beside transformers: same weights, tokens, loss, optimizer and precision.

    python benchmarks/train_vs_transformers.py [--quick] [--threads N] [--preset small] [--precision fp32|bf16|both]
        [--json FILE]

Ours is the step that `arcforge-train` runs. The peer is transformers' `DeepseekV3ForCausalLM` (the same multi-head
latent attention and mixture of experts) with the fastest of its settings, found by a sweep over attention, experts,
dtype, rows of a micro-batch and, not with `--quick`, `torch.compile`; settings whose first loss differs from ours are
left out. Rows are whole documents, so that both attend to the same keys. The peer has neither MTP nor a balance loss;
ours are off too, and a second row (`with_mtp`) shows what they cost.

Rounds alternate between the two; ratios are of medians. Peak memory is measured in processes of their own.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from _machine import describe_machine, peak_growth
from _peers import EXPERTS, Peer, Swept, Unfit, peers, sweep
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.config.compose import compose
from arcforge_core.config.schema import ModelConfig, TrainConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.params import training_flops_per_token
from arcforge_core.ops.compat import fast_bf16, why_precision
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.train.step import StepBatch, accumulate_gradients, balance_routers, clip_gradients
from arcforge_core.train.throughput import matmul_rate, mean_visible_keys

ROWS, LENGTH = 8, 512
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
Step = Callable[[Tensor], float]
"""Takes tokens [B, S + 1], trains one step on them and returns the loss."""


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """The optimizer of both sides."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)


def our_model(preset: str, dtype: str, mtp: bool) -> CausalLM:
    """Builds the preset with dense multi-head latent attention; seeded, so that both sides start alike."""
    config: TrainConfig = compose([f"model={preset}", "attention=mla"])
    model: ModelConfig = replace(config.model, balance_loss_weight=config.model.balance_loss_weight if mtp else 0.0)
    if not mtp:
        model = replace(model, mtp=replace(model.mtp, depths=0))
    torch.manual_seed(0)
    built = build_model(model, config.attention, Ops(select_hardware("cpu")))
    built.set_compute_dtype(torch.bfloat16 if dtype == "bf16" else torch.float32)
    return built


def our_step(model: CausalLM) -> Step:
    """The step of `arcforge-train` with this benchmark's optimizer."""
    optimizer = adamw(model)

    def step(tokens_BS: Tensor) -> float:
        rows, length = tokens_BS.shape[0], tokens_BS.shape[1] - 1
        batch = TrainBatch(
            tokens_BS[:, :-1].flatten(),
            tokens_BS[:, 1:].flatten(),
            torch.ones(rows * length),
            SequenceBatch.build([length] * rows),
            cursor=0,
            num_bytes=0,
        )
        result = accumulate_gradients(model, StepBatch([batch]), torch.Tensor.backward, lambda v: (v, 1.0))
        clip_gradients(model.named_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        balance_routers(model, result.expert_loads, model.config.router_bias_rate)
        return float(result.losses["loss"])

    return step


def their_step(model: Any, peer: Peer) -> Step:
    """Their forward with labels, in micro-batches of `peer.batch` rows, clipping and the same optimizer."""
    model.train()
    optimizer = adamw(model)

    def step(tokens_BS: Tensor) -> float:
        total = 0.0
        parts = tokens_BS.split(peer.batch)
        for part_BS in parts:
            inputs, labels = part_BS[:, :-1].contiguous(), part_BS[:, 1:].contiguous()
            with peer.casting():
                loss = model(input_ids=inputs, labels=labels, shift_labels=labels, use_cache=False).loss / len(parts)
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def timed(step: Step, tokens_BS: Tensor) -> float:
    """Returns the seconds of one step."""
    start = time.perf_counter()
    step(tokens_BS)
    return time.perf_counter() - start


def fastest_peer(
    folder: Path, precision: str, quick: bool, tokens: list[Tensor], expected: float
) -> tuple[Swept[Peer], Step]:
    """Returns the sweep over transformers' settings whose first loss is `expected`, and a step of the fastest."""

    def prepare(peer: Peer) -> Callable[[], float]:
        step = their_step(peer.load(folder), peer)
        losses = [step(tokens[0])]
        if abs(losses[0] - expected) > LOSS_TOLERANCE[precision] * expected:
            raise Unfit(f"loss {losses[0]:.5f} is not {expected:.5f}")
        return lambda: timed(step, tokens[1])

    def further(best: Peer) -> list[Peer]:
        split = [replace(best, batch=rows) for rows in (ROWS // 2, ROWS // 4, 1)]
        return split if quick else [*split, *(replace(peer, compiled=True) for peer in (best, *split[:1]))]

    dtypes = ("fp32",) if precision == "fp32" else ("autocast", "bf16")
    swept = sweep(peers(dtypes, EXPERTS, batch=ROWS), prepare, further)
    return swept, their_step(swept.best.load(folder), swept.best)


def flops_per_step(model: CausalLM) -> float:
    """Returns the products of a step: six per active matmul parameter and token, and attention."""
    flops = training_flops_per_token(model, mean_visible_keys([LENGTH] * ROWS))
    return flops.main * ROWS * LENGTH


def compare(precision: str, options: argparse.Namespace, rounds: int) -> dict[str, Any]:
    """Times one precision; returns medians, ratios and what was swept."""
    model = our_model(options.preset, precision, mtp=False)
    generator = torch.Generator().manual_seed(1)
    shape = (ROWS, LENGTH + 1)
    tokens = [torch.randint(model.config.vocab_size, shape, generator=generator) for _ in range(rounds + 3)]
    with tempfile.TemporaryDirectory() as folder:
        export_hf(model, folder, "deepseek_v3")
        first = our_step(copy.deepcopy(model))(tokens[0])
        print(f"{precision}: sweep of transformers (first loss {first:.5f})")
        swept, theirs = fastest_peer(Path(folder), precision, options.quick, tokens, first)
        sides_of_memory = ("ours", "transformers")
        memory = {side: peak_memory(side, precision, options, folder, swept.best) for side in sides_of_memory}
    flops = flops_per_step(model)
    sides = {
        "ours": our_step(model),
        "transformers": theirs,
        "ours_with_mtp": our_step(our_model(options.preset, precision, mtp=True)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    rates = []
    for number in range(-1, rounds):
        for name, step in sides.items():
            took = timed(step, tokens[number])
            if number >= 0:  # the first round warms up
                seconds[name].append(took)
                rates.append(matmul_rate(torch.float32))  # machines drift: as often as the steps
    rate = statistics.median(rates)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "settings": str(swept.best),
        "sweep": swept.tried,
        "seconds": {name: {"median": medians[name], "all": times} for name, times in seconds.items()},
        "tokens_per_s": {name: ROWS * LENGTH / median for name, median in medians.items()},
        "speedup": medians["transformers"] / medians["ours"],
        "speedup_with_mtp": medians["transformers"] / medians["ours_with_mtp"],
        "fp32_matmul_gflops": {"median": rate / 1e9, "all": [r / 1e9 for r in rates]},
        "of_fp32_matmul_rate": flops / medians["ours"] / rate,
        "their_share_of_fp32_matmul_rate": flops / medians["transformers"] / rate,
        "peak_memory_mb": memory,
        "memory_ratio": memory["ours"] / memory["transformers"],
    }


def peak_memory(side: str, precision: str, options: argparse.Namespace, folder: str, peer: Peer) -> float:
    """Returns the megabytes that two steps add to a fresh process."""
    command = [sys.executable, __file__, "--preset", options.preset, "--threads", str(options.threads)]
    command += ["--memory-of", json.dumps([side, precision, folder, asdict(replace(peer, compiled=False))])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"peak memory of {side}: {result.stderr}")
    return float(result.stdout.splitlines()[-1])


def measure_memory(spec: str, preset: str) -> None:
    """Prints the megabytes by which building a side and two steps raise the process's peak (Linux)."""
    import transformers  # noqa: F401  # both sides pay for the import

    side, precision, folder, fields = json.loads(spec)

    def two_steps() -> None:
        if side == "ours":
            step = our_step(our_model(preset, precision, mtp=False))
        else:
            peer = Peer(**fields)
            step = their_step(peer.load(folder), peer)
        for _ in range(2):
            step(torch.randint(256, (ROWS, LENGTH + 1)))

    print(peak_growth(two_steps))


def main() -> None:
    """Sweeps, compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9; the peer is not compiled")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--precision", choices=("fp32", "bf16", "both"), default="both")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if options.memory_of:
        measure_memory(options.memory_of, options.preset)
        return
    report: dict[str, Any] = {"benchmark": "train_vs_transformers", "preset": options.preset}
    report["machine"] = {**describe_machine(options.threads), "fast_bf16": fast_bf16("cpu")}
    precisions = ("fp32", "bf16") if options.precision == "both" else (options.precision,)
    if "bf16" in precisions and not fast_bf16("cpu"):
        print(f"precision=auto is {why_precision('cpu')}; figures of bf16 are of the slower dtype")
    rounds = 3 if options.quick else 9
    for precision in precisions:
        report[precision] = compare(precision, options, rounds)
        print(
            json.dumps(
                {k: v for k, v in report[precision].items() if k not in ("seconds", "fp32_matmul_gflops")}, indent=2
            ),
            flush=True,
        )
    report["ratios"] = ratios(report)
    for name, value in report["ratios"].items():
        print(f"{name:<24}{value:8.3f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


def ratios(report: dict[str, Any]) -> dict[str, float]:
    """Returns the figures to watch; those of a precision that was not run are absent."""
    found: dict[str, float] = {}
    if fp32 := report.get("fp32"):
        found |= {"tokens_per_s": fp32["speedup"], "mfu": fp32["of_fp32_matmul_rate"]}
        found["peak_memory"] = fp32["memory_ratio"]
    if bf16 := report.get("bf16"):
        found |= {"tokens_per_s_bf16": bf16["speedup"], "mfu_bf16_of_fp32_rate": bf16["of_fp32_matmul_rate"]}
    if fp32 and bf16:
        found["bf16_over_fp32"] = bf16["tokens_per_s"]["ours"] / fp32["tokens_per_s"]["ours"]
    return found


if __name__ == "__main__":
    main()
