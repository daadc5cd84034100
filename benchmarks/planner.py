"""Plans beside measurements: steps of small models on this machine, and published deployments.

    python benchmarks/planner.py [--quick] [--threads N | --processor] [--presets small mini] [--json FILE]

Here: prompts, decoding and a training step in fp32; prompts and decoding with integers. The plan knows the model's
sizes, and rates measured in the same run: a product's start, its rate with many rows and the bandwidth with one, of
products of other shapes; and the rate of a sum of two arrays, for the work between products. A ratio is the plan's time
over the measured one. ``--json`` keeps every finished row; the same command continues after them. ``--presets`` without
a name leaves this part out.

Published: tokens per second of other people's deployments over the plan's. The plan has no drafts, no overlap and
evenly loaded experts, and rests on assumed efficiencies.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from _machine import describe_machine
from arcforge_core.config.compose import compose, compose_config
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.model.adapt.quantised import MODES, QuantLinear
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.norm import Linear
from arcforge_core.ops import bind_ops
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.train.step import StepBatch, accumulate_gradients, clip_gradients
from arcforge_hw.planner.command import plan
from arcforge_hw.planner.configs import PlanConfig, tokens_of
from arcforge_hw.planner.counts import count_model
from arcforge_hw.planner.layout import Layout
from arcforge_hw.planner.machine import Machine
from arcforge_hw.planner.step import Load, forward
from arcforge_hw.planner.training import training_step
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

PROMPT, STREAMS, TOKENS = 512, (1, 16), 64
TRAIN_ROWS, TRAIN_LENGTH = 8, 256
WIDTH = 512
MODE = {"none": "fp32", "w8a8": "int8", "w4a8": "int4 rounded", "int4": "int4"}
CLOCK = [time.perf_counter]
"""Returns the seconds of a measurement."""
DEEPSEEK = [
    "model=glm5", "attention=mla", "model.hidden_size=7168", "model.num_hidden_layers=61",
    "model.intermediate_size=18432", "model.num_attention_heads=128", "model.q_lora_rank=1536",
    "model.qk_nope_head_dim=128", "model.v_head_dim=128", "model.vocab_size=129280",
    "model.max_position_embeddings=163840", "model.mtp.depths=1",
]  # fmt: skip
"""DeepSeek-V3's sizes, which R1 has."""
A3 = "docs: SGLang, best practice on Ascend NPU, DeepSeek-R1 on Atlas 800I A3"
LMSYS = "lmsys.org/blog/2025-05-05-large-scale-ep"
MATRIX = "arXiv 2506.12708, abstract"
PUBLISHED = {
    # name: overrides, figure of the plan, devices or nodes that it is divided by, published value, source
    "R1 W4A8, one A3 node, 2K + 2K, new tokens/s per card": (
        "chip=ascend_910c weights=w4a8 context=2k new_tokens=2k", "new_tokens_per_s", 8, 528.375, A3),
    "R1 W4A8, one A3 node, 3.5K + 1K, new tokens/s per card": (
        "chip=ascend_910c weights=w4a8 context=3500 new_tokens=1k", "new_tokens_per_s", 8, 312.079, A3),
    "R1, 12 H100 nodes, 2K, prompt tokens/s per node": (
        "chip=nvidia_h100 nodes=12 weights=w8a8 context=2k new_tokens=100 +assume.network=50",
        "prefill_tokens_per_s", 12, 52_300, LMSYS),
    "R1, 12 H100 nodes, 2K, new tokens/s per node": (
        "chip=nvidia_h100 nodes=12 weights=w8a8 context=2k new_tokens=100 tpot_ms=100 +assume.network=50",
        "decode_tokens_per_s", 12, 22_300, LMSYS),
    "R1, CloudMatrix384, decoding in 50 ms, new tokens/s per 910C": (
        "chip=ascend_910c nodes=20 weights=w8a8 context=4k new_tokens=1k +assume.network=196",
        "decode_tokens_per_s", 160, 1_943, MATRIX),
}  # fmt: skip


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Returns the median time of a call after two others."""
    times = []
    for _ in range(rounds + 2):
        start = CLOCK[0]()
        work()
        times.append(CLOCK[0]() - start)
    return statistics.median(times[2:])


def products(width: int, copies: int, weights: str) -> list[nn.Module]:
    """Returns square products in a number format, bound to this machine's kernels."""
    made: list[nn.Module] = [Linear(width, width) for _ in range(copies)]
    if weights != "none":
        mode = MODES[weights]
        made = [QuantLinear(each, mode.experts, mode.rounds) for each in made]  # type: ignore[arg-type]
    for each in made:
        bind_ops(each, Ops(select_hardware("cpu")).binder(torch.float32, "cpu", needs_grad=False))
    return made


@torch.no_grad()
def rates(weights: str, size: float, rounds: int) -> dict[str, float]:
    """Measures products of this format whose weights have `size` bytes together, with one row and with many; a sum."""

    def per_product(width: int, copies: int, rows: int) -> float:
        chain, x = products(width, copies, weights), torch.randn(rows, width)
        return seconds(lambda: [each(x) for each in chain], rounds) / copies

    start = per_product(64, 32, 1)
    [one] = products(WIDTH, 1, weights)
    held = sum(x.nbytes for x in one.state_dict().values())
    copies = max(1, min(256, math.ceil(size / held)))
    read, many = per_product(WIDTH, copies, 1), per_product(WIDTH, 4, PROMPT)
    first, second = torch.randn(2, PROMPT, WIDTH)
    return {
        "stream_bytes_per_s": 3 * first.nbytes / seconds(lambda: first + second, 10 * rounds),
        "call_s": start,
        "bytes_per_s": held / max(read - start, read / 10),
        "flops_per_s": 2 * WIDTH**2 * PROMPT / max(many - start, many / 10),
    }


def machine(found: dict[str, float]) -> Machine:
    """Returns what the plan computes with."""
    flops = dict.fromkeys(("fp32", "int8"), found["flops_per_s"])
    return Machine(flops, found["bytes_per_s"], None, None, None, 0.0, found["call_s"], {}, found["stream_bytes_per_s"])


def model_of(preset: str) -> CausalLM:
    """Builds a preset with random weights and this machine's kernels."""
    config = compose([f"model={preset}"])
    torch.manual_seed(0)
    return build_model(config.model, config.attention, Ops(select_hardware("cpu")))


def served(preset: str, weights: str, rounds: int) -> dict[str, float]:
    """Measures the engine: seconds of a prompt, and of a decoding step by concurrency."""
    engine = PagedEngine(PagedEngineConfig(weights=weights, prefix_cache=False), model_of(preset).eval())
    generator = torch.Generator().manual_seed(0)
    vocabulary = engine.model.config.vocab_size

    def generate(streams: int, tokens: int) -> float:
        prompts = [torch.randint(vocabulary, (PROMPT,), generator=generator).tolist() for _ in range(streams)]
        params = SamplingParams(max_new_tokens=tokens, temperature=0.0)
        start = CLOCK[0]()
        engine.generate(prompts, params)
        return CLOCK[0]() - start

    found = {}
    for streams in STREAMS:
        pairs = [(generate(streams, 1), generate(streams, 1 + TOKENS)) for _ in range(rounds + 1)][1:]
        found[f"decode {streams}"] = statistics.median((long - short) / TOKENS for short, long in pairs)
        if streams == 1:
            found["prompt"] = statistics.median(short for short, _ in pairs)
    engine.close()
    return found


def trained(preset: str, rounds: int) -> float:
    """Measures a training step of `arcforge-train` with AdamW and everything recomputed, as the plan assumes."""
    model = model_of(preset)
    model.activation_checkpointing = True
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        tokens = torch.randint(model.config.vocab_size, (TRAIN_ROWS, TRAIN_LENGTH + 1), generator=generator)
        batch = TrainBatch(
            tokens[:, :-1].flatten(), tokens[:, 1:].flatten(), torch.ones(TRAIN_ROWS * TRAIN_LENGTH),
            SequenceBatch.build([TRAIN_LENGTH] * TRAIN_ROWS), cursor=0, num_bytes=0,
        )  # fmt: skip
        accumulate_gradients(model, StepBatch([batch]), torch.Tensor.backward, lambda v: (v, 1.0))
        clip_gradients(model.named_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return seconds(step, rounds)


def planned(preset: str, weights: str, found: dict[str, float]) -> dict[str, float]:
    """Returns the plan's seconds of what `served` and `trained` measure."""
    config = compose([f"model={preset}"])
    count, here = count_model(config.model, config.attention, weights, torch.float32), machine(found)

    def step(load: Load) -> float:
        return forward(count, here, Layout(), load).total

    times = {f"decode {n}": step(Load(n, PROMPT + TOKENS / 2, n, n)) for n in STREAMS}
    times["prompt"] = step(Load(PROMPT, 0, 1, 1))
    if weights == "none":
        batch = TRAIN_ROWS * TRAIN_LENGTH
        times["train"] = training_step(count, here, Layout(), batch, TRAIN_LENGTH).seconds
    return times


def published(report: dict[str, Any], save: Callable[[], None]) -> None:
    """Plans what was published, and prints both."""
    for name, (overrides, figure, parts, value, source) in PUBLISHED.items():
        if name not in report["published"]:
            config = compose_config("plan", PlanConfig, [*DEEPSEEK, *overrides.split()])
            numbers = plan(config)[1][0][1]
            tokens = numbers["requests_per_s"].known * tokens_of("new_tokens", config.new_tokens)
            mine = (tokens if figure == "new_tokens_per_s" else numbers[figure].known) / parts
            report["published"][name] = {"planned": mine, "published": value, "ratio": mine / value, "source": source}
            save()
        row = report["published"][name]
        print(f"{name:<66}{row['planned']:>10,.0f}{row['published']:>10,.0f}{row['ratio']:>8.2f}  {row['source']}")


def main() -> None:
    """Measures, plans and prints both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor", action="store_true", help="processor time of one thread, for a busy machine")
    parser.add_argument("--presets", nargs="*", default=["small", "mini"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds = 3 if options.quick else 9
    if options.processor:
        options.threads, CLOCK[0] = 1, time.process_time
    report: dict[str, Any] = {"benchmark": "planner", "here": {}, "published": {}}
    if options.json and options.json.exists():
        report = json.loads(options.json.read_text())
    if options.presets and "machine" not in report:
        report["machine"] = describe_machine(options.threads)
    torch.set_num_threads(options.threads)

    def save() -> None:
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))

    print(f"{'here':<30}{'plan ms':>10}{'ms':>10}{'ratio':>8}")
    for preset in options.presets:
        for weights in MODE:
            name = f"{preset} {weights}"
            if name not in report["here"]:
                config = compose([f"model={preset}"])
                size = count_model(config.model, config.attention, weights, torch.float32).bytes
                found = rates(weights, size, rounds)
                times = served(preset, weights, rounds)
                if weights == "none":
                    times["train"] = trained(preset, rounds)
                plans = planned(preset, weights, found)
                ratios = {part: plans[part] / took for part, took in times.items()}
                report["here"][name] = {"rates": found, "measured": times, "planned": plans, "ratios": ratios}
                save()
            row = report["here"][name]
            for part, took in row["measured"].items():
                mine, ratio = row["planned"][part], row["ratios"][part]
                print(f"{name + ', ' + part:<30}{1e3 * mine:>10.2f}{1e3 * took:>10.2f}{ratio:>8.2f}")
    print(f"{'published':<66}{'planned':>10}{'published':>10}{'ratio':>8}  source")
    published(report, save)


if __name__ == "__main__":
    main()
