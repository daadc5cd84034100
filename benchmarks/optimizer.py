"""Muon Split beside torch.optim.Muon: the attention's up-projections, and a whole model's parameters.

    python benchmarks/optimizer.py [--quick] [--threads N] [--json FILE] [--plot FILE]

Gradients are random. torch.optim.Muon gets what it can hold: whole matrices, an expert's gate and up together;
torch.optim.AdamW, fused, the rest. torch's iteration is always in bfloat16; where the processor has no instructions for
that, ours runs in float32 and so does torch's here, which is otherwise many times slower.

`up_proj_vs_torch_muon` is a step on one layer's q_b and kv_b of GLM-5's sizes (64 heads of 256 x 2048, and of 192 and
256 x 512), theirs on the whole matrices over ours on heads. `full_set_vs_torch_muon` is one on all parameters of the
preset `small` (23M). `vs_best_form` is the time of all iterations of `small` as they are chosen over the sum of the
fastest form of each shape: the batch in one call, a matrix at a time, or on Gram matrices. `over_floor` is that time
over the operations of the chosen forms at the measured rate of large products.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from _machine import describe_machine
from _rounds import Job, add, in_turns, medians, ratio, show
from arcforge_core.config.compose import compose
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.contracts.optimizer import ParameterRole, RoledParameter, collect_roles
from arcforge_core.model.build import build_model
from arcforge_core.ops import reference
from arcforge_core.ops.compat import fast_bf16
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.train.throughput import matmul_rate
from arcforge_hw.torch_ops import newton_schulz as gram
from arcforge_optim.configs import COEFFICIENTS, MuonSplitConfig
from arcforge_optim.muon_split import MuonSplit

STEPS = COEFFICIENTS["kj"]
UP_PROJECTIONS = {
    "q_b_proj.weight": ((64 * 256, 2048), ParameterRole("head_matrix", 64, (256,), 64)),
    "kv_b_proj.weight": ((64 * 448, 512), ParameterRole("head_matrix", 64, (192, 256))),
}
"""Of one layer of GLM-5."""


def parameters_of_small() -> list[RoledParameter]:
    """Returns the parameters with gradients."""
    config = compose(["model=small", "attention=mla", "model.mtp.depths=0"])
    torch.manual_seed(0)
    parameters = collect_roles(build_model(config.model, config.attention))
    for item in parameters:
        item.parameter.grad = torch.randn_like(item.parameter)
    return parameters


def up_projections() -> list[RoledParameter]:
    """Returns one layer's of GLM-5's sizes, with gradients."""
    parameters = []
    for name, (shape, role) in UP_PROJECTIONS.items():
        parameter = nn.Parameter(torch.randn(shape) * 0.02)
        parameter.grad = torch.randn(shape)
        parameters.append(RoledParameter(name, parameter, role))
    return parameters


def theirs_on(parameters: list[RoledParameter]) -> Job:
    """Returns a step of torch's optimizers on the same numbers; they see experts as parameters of their own."""
    matrices, others = [], []
    for item in parameters:
        p = item.parameter
        assert p.grad is not None
        is_matrix = p.ndim >= 2 and item.role.role not in ("embedding", "norm", "head", "router")
        parts = zip(p.detach().clone(), p.grad, strict=True) if p.ndim == 3 else [(p.detach().clone(), p.grad)]
        for value, grad in parts:
            own = nn.Parameter(value)
            own.grad = grad.clone()
            (matrices if is_matrix else others).append(own)
    muon = torch.optim.Muon(matrices, lr=1e-3, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, lr=1e-3, fused=True) if others else None

    def step() -> None:
        muon.step()
        if adamw is not None:
            adamw.step()

    return step


@contextmanager
def iteration_in_float32() -> Iterator[None]:
    """Has torch.optim.Muon compute in the precision of the gradients."""
    original = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = torch.Tensor.clone  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.Tensor.bfloat16 = original  # type: ignore[method-assign]


def forms(x_BMN: Tensor) -> dict[str, Job]:
    """Returns the ways to orthogonalise a batch of matrices."""
    return {
        "batch": lambda: reference.newton_schulz(x_BMN, STEPS),
        "loop": lambda: [reference.newton_schulz(x_1MN, STEPS) for x_1MN in x_BMN.split(1)],
        "gram": lambda: gram.newton_schulz(x_BMN, STEPS),
    }


def by_shape(optimizer: MuonSplit, ops: Ops, dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    """Measures the iterations of an optimizer's chunks: as chosen, and in every form."""
    rows, seen = [], {}
    for chunk in optimizer.chunks:
        shape = (sum(len(piece.batch) for piece in chunk.pieces), *chunk.pieces[0].shape)
        seen[shape] = seen.get(shape, 0) + 1
    for (batch, height, width), count in seen.items():
        x_BMN = torch.randn(batch, height, width).to(dtype)
        sizes = {"rows": height, "columns": width}
        chosen = ops.bind(OpCall("newton_schulz", "cpu", dtype, needs_grad=False, sizes=sizes))
        jobs = {"chosen": lambda x=x_BMN, run=chosen: run(x, STEPS, 1e-7), **forms(x_BMN)}
        counted = gram.flops if chosen is gram.newton_schulz else gram.reference_flops
        rows.append(
            {
                "matrices": [batch, height, width],
                "calls": count,
                "form": "gram" if chosen is gram.newton_schulz else "batch",
                "seconds": medians(in_turns(jobs, rounds)),
                "flops": batch * counted(height, width),
            }
        )
    return rows


def main() -> None:
    """Measures and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="seconds by shape and form, as an image")
    options = parser.parse_args()
    machine, rounds = describe_machine(options.threads), 3 if options.quick else 9
    has_bf16 = fast_bf16("cpu")
    dtype, same_precision = (torch.bfloat16, nullcontext) if has_bf16 else (torch.float32, iteration_in_float32)
    ops, parameters, ups = Ops(select_hardware("cpu")), parameters_of_small(), up_projections()
    config = MuonSplitConfig(ns_dtype="bf16" if has_bf16 else "fp32")
    full = MuonSplit(config, parameters, ops)
    with same_precision():
        by_round = in_turns({"full": full.step, "full, theirs": theirs_on(parameters)}, rounds)
        up_jobs = {"up": MuonSplit(config, ups, ops).step, "up, theirs": theirs_on(ups)}
        by_round |= in_turns(up_jobs, max(1, rounds // 3))
    rows, rate = by_shape(full, ops, dtype, rounds), matmul_rate(dtype)
    chosen = sum(row["calls"] * row["seconds"]["chosen"] for row in rows)
    best = sum(row["calls"] * min(s for form, s in row["seconds"].items() if form != "chosen") for row in rows)
    report: dict[str, Any] = {
        "benchmark": "optimizer",
        "machine": machine,
        "precision": str(dtype),
        "seconds": medians(by_round),
        "iterations": rows,
    }
    add(
        report,
        {
            "up_proj_vs_torch_muon": ratio(by_round["up, theirs"], by_round["up"]),
            "full_set_vs_torch_muon": ratio(by_round["full, theirs"], by_round["full"]),
            "vs_best_form": chosen / best,
            "over_floor": chosen / (sum(row["calls"] * row["flops"] for row in rows) / rate),
        },
    )
    print(json.dumps(report, indent=2))
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    if options.plot:
        plot(rows, rate, options.plot)


def plot(rows: list[dict[str, Any]], rate: float, path: Path) -> None:
    """Draws the milliseconds of each form by shape, with the operations of the chosen one as floor."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5))
    names = ["chosen", "batch", "loop", "gram"]
    for number, name in enumerate(names):
        places = [place + 0.2 * number for place in range(len(rows))]
        axes.bar(places, [1e3 * row["seconds"][name] for row in rows], width=0.2, label=name)
    for place, row in enumerate(rows):
        axes.hlines(1e3 * row["flops"] / rate, place - 0.1, place + 0.7, color="black", linewidth=1)
    axes.set(xlabel="matrices, rows, columns", ylabel="milliseconds", yscale="log")
    axes.set_xticks([p + 0.3 for p in range(len(rows))], ["x".join(map(str, r["matrices"])) for r in rows], rotation=20)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
