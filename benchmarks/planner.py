"""Plans beside measurements: steps of small models on this machine, and published deployments.

    python benchmarks/planner.py [--quick] [--threads N | --processor] [--presets small mini] [--json FILE]

Here: prompts, decoding and a training step in fp32; prompts and decoding with integers. The plan knows a preset's
sizes, and costs fitted in the same run to steps of other models, as `arcforge-plan measure=FILE` writes them. A ratio
is the plan's time over the measured one, the fastest of rounds before and after the other models, as theirs are of two
passes: the speed of shared machines changes by the minute. `slower` is the other rounds' time over it. ``--json`` keeps
every finished format; the same command continues after them.
``--presets`` without a name leaves this part out.

Published: tokens per second of other people's deployments over the plan's. The plan has no drafts, no overlap and
evenly loaded experts, and rests on assumed efficiencies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from _machine import describe_machine
from arcforge_core.config.compose import compose, compose_config
from arcforge_hw.planner.chip import Chip
from arcforge_hw.planner.command import plan
from arcforge_hw.planner.configs import PROBES, PlanConfig, tokens_of
from arcforge_hw.planner.counts import count_model
from arcforge_hw.planner.fit import Fit
from arcforge_hw.planner.layout import Layout
from arcforge_hw.planner.machine import machine_of
from arcforge_hw.planner.probes import fitted
from arcforge_hw.planner.serving import decode, prefill
from arcforge_hw.planner.steps import Clock, Served, random_model, train
from arcforge_hw.planner.training import training_step

PROMPT, STREAMS, TOKENS = 512, (1, 16), 64
TRAIN_BATCH, TRAIN_LENGTH = 2048, 256
MODE = {"none": "fp32", "w8a8": "int8", "w4a8": "int4 rounded", "int4": "int4"}
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


def measured(preset: str, weights: str, rounds: int, clock: Clock) -> dict[str, float]:
    """Measures the seconds of a preset's prompt, of its decoding steps by concurrency and of its training step."""
    config = compose([f"model={preset}"])
    model = random_model(config.model, config.attention, torch.float32)
    found = {}
    if weights == "none":
        found["train"] = train(model, TRAIN_BATCH, TRAIN_LENGTH, rounds, clock)
    with Served(model, weights, clock) as served:
        found["prompt"] = served.prompt(PROMPT, rounds)
        for streams in STREAMS:
            found[f"decode {streams}"] = served.decode(streams, PROMPT, TOKENS, rounds)
    return found


def planned(preset: str, weights: str, fits: dict[str, Fit]) -> dict[str, float]:
    """Returns the plan's seconds of what `measured` measures."""
    config = compose([f"model={preset}"])
    count = count_model(config.model, config.attention, weights, torch.float32)
    here = machine_of(Chip("here", fits={count.formats: fits}), {})
    times = {f"decode {n}": decode(count, here, Layout(), n, PROMPT + TOKENS / 2)[0] for n in STREAMS}
    times["prompt"] = prefill(count, here, Layout(), PROMPT).ttft
    if "train" in fits:
        together = TRAIN_BATCH // TRAIN_LENGTH
        times["train"] = training_step(count, here, Layout(), TRAIN_BATCH, TRAIN_LENGTH, together).seconds
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
    parser.add_argument("--quick", action="store_true", help="2 rounds instead of 4, half of the models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor", action="store_true", help="processor time of one thread, for a busy machine")
    parser.add_argument("--presets", nargs="*", default=["small", "mini"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds, models, clock = (2, 6, time.perf_counter) if options.quick else (4, PROBES, time.perf_counter)
    if options.processor:
        options.threads, clock = 1, time.process_time
    report: dict[str, Any] = {"benchmark": "planner", "costs": {}, "here": {}, "published": {}}
    if options.json and options.json.exists():
        report = json.loads(options.json.read_text())
    if options.presets and "machine" not in report:
        report["machine"] = describe_machine(options.threads)
    torch.set_num_threads(options.threads)

    def save() -> None:
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))

    small = compose(["model=small"])
    like = small.model, small.attention
    print(f"{'here':<30}{'plan ms':>10}{'ms':>10}{'ratio':>8}{'slower':>8}")
    for weights in MODE if options.presets else ():
        names = {f"{preset} {MODE[weights]}": preset for preset in options.presets}
        if not names.keys() <= report["here"].keys():
            turns = [{name: measured(preset, weights, rounds, clock) for name, preset in names.items()}]
            _, fits = fitted(like, weights, torch.float32, models, clock=clock)
            turns.append({name: measured(preset, weights, rounds, clock) for name, preset in names.items()})
            report["costs"][weights] = {kind: dict(each.costs) for kind, each in fits.items()}
            for name, preset in names.items():
                times = {part: min(turn[name][part] for turn in turns) for part in turns[0][name]}
                plans = planned(preset, weights, fits)
                ratios = {part: plans[part] / took for part, took in times.items()}
                slower = {part: max(turn[name][part] for turn in turns) / took for part, took in times.items()}
                report["here"][name] = {"measured": times, "planned": plans, "ratios": ratios, "slower": slower}
            save()
        for name in names:
            row = report["here"][name]
            for part, took in row["measured"].items():
                mine, ratio = row["planned"][part], row["ratios"][part]
                slower = row["slower"][part]
                print(f"{name + ', ' + part:<30}{1e3 * mine:>10.2f}{1e3 * took:>10.2f}{ratio:>8.2f}{slower:>8.2f}")
    print(f"{'published':<66}{'planned':>10}{'published':>10}{'ratio':>8}  source")
    published(report, save)


if __name__ == "__main__":
    main()
