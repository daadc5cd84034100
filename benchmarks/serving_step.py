"""Cost of the paged engine's host work, and whether the model's work hides it.

    python benchmarks/serving_step.py [--quick] [--threads N] [--preset mini] [--attention dsa] [--json FILE]
                                      [--trace FILE]

16 prompts of 40 to 400 tokens are continued together, greedily, with and without `engine.overlap`, in turns; both
must give the same tokens. Of the steps that decode only: how long the host prepares one, the model computes it, a token
is drawn for each row and the results are handed out, and the gap from the end of a step's computation to the start of
the next one's. The ratio is of tokens per second, with over without. ``--trace`` writes the last run for Perfetto.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from _machine import describe_machine
from arcforge_core.config.compose import compose
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.engine.trace import Trace

PROMPTS = [40 + 24 * n for n in range(16)]
PARTS = ("prepare", "step", "forward", "sample", "hand out")


def build(preset: str, attention: str) -> CausalLM:
    """Returns the model with random weights."""
    config = compose([f"model={preset}", f"attention={attention}"])
    torch.manual_seed(0)
    return build_model(config.model, config.attention, Ops(select_hardware("cpu"))).eval()


def prompts(vocabulary: int) -> list[list[int]]:
    """Returns random ids."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in PROMPTS]


def run(model: CausalLM, overlap: bool, tokens: int) -> tuple[list[GenerationOutput], float, Trace]:
    """Returns the outputs, tokens per second, and the trace."""
    engine = PagedEngine(PagedEngineConfig(overlap=overlap), model)
    params = SamplingParams(max_new_tokens=tokens, temperature=0.0)
    start = time.perf_counter()
    outputs = engine.generate(prompts(model.config.vocab_size), params)
    seconds = time.perf_counter() - start
    engine.close()
    return outputs, len(PROMPTS) * tokens / seconds, engine.trace


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Returns median and 90th percentile."""
    ordered = sorted(1e3 * second for second in seconds)
    return {"p50": statistics.median(ordered), "p90": ordered[int(0.9 * (len(ordered) - 1))]}


def figures(trace: Trace) -> dict[str, dict[str, float]]:
    """Returns the times of the steps that decode only: all but the first ones."""
    prefills = sum(span.figures["tokens"] > len(PROMPTS) for span in trace.spans("step"))
    parts = {name: [span.end - span.start for span in trace.spans(name)][prefills:] for name in PARTS}
    return {name: milliseconds(times) for name, times in {**parts, "gap": trace.gaps()[prefills:]}.items()}


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 rounds of 32 tokens instead of 5 of 128")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--attention", default="dsa")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--trace", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds, tokens = (2, 32) if options.quick else (5, 128)
    machine = describe_machine(options.threads)
    model = build(options.preset, options.attention)
    wanted, _, _ = run(model, False, tokens)  # kernels are compiled
    rates: dict[bool, list[float]] = {False: [], True: []}
    report: dict[str, Any] = {
        "benchmark": "serving_step", "preset": options.preset, "attention": options.attention, "rounds": rounds,
        "tokens": tokens, "machine": machine, "milliseconds": {}, "tokens_per_second": {}, "ratios": {},
    }  # fmt: skip
    for _ in range(rounds):
        for overlap in (False, True):
            outputs, rate, trace = run(model, overlap, tokens)
            if [o.token_ids for o in outputs] != [o.token_ids for o in wanted]:
                raise SystemExit("overlap changes what is generated")
            rates[overlap].append(rate)
            name = "overlap" if overlap else "in turns"
            report["milliseconds"][name] = figures(trace)  # of the last round
            report["tokens_per_second"][name] = statistics.median(rates[overlap])
            if options.trace and overlap:
                trace.save(options.trace)
        report["ratios"]["overlap"] = statistics.median(rates[True]) / statistics.median(rates[False])
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))
    print(f"{'ms p50 / p90':<12}" + "".join(f"{name:>16}" for name in report["milliseconds"]))
    for part in (*PARTS, "gap"):
        times = [values[part] for values in report["milliseconds"].values()]
        print(f"{part:<12}" + "".join(f"{t['p50']:>8.2f} /{t['p90']:>6.2f}" for t in times))
    print(f"{'tokens/s':<12}" + "".join(f"{rate:>16.0f}" for rate in report["tokens_per_second"].values()))
    print(f"overlap is {report['ratios']['overlap']:.2f} times as fast")


if __name__ == "__main__":
    main()
