"""What reinforcement learning adds to a fine-tuned model, beside fine-tuning and expert iteration in the same time.

    python benchmarks/reasoning_rl.py --init RUN --data FOLDER [--quick] [--minutes 4] [--seeds 5] [--dsa RUN]
        [--noise 4] [--topk-bits 3] [--processes 1] [--only METHOD ...] [--out FOLDER] [--json FILE]

Two-step expressions with products of numbers of two digits, thinking on. Each method begins with the checkpoint RUN and
has the same minutes of training, in as many processes of a thread each; FOLDER has the conversations that RUN was tuned
on, of the sources `expressions` and `terse_expressions` (docs/rl.md has the commands). Then every checkpoint tries the
same held-out tasks once, at temperature 1.

- ``icepop``: `arcforge-rl algorithm=icepop`, a run for each seed;
- ``sft``: `arcforge-train stage=sft` with the conversations;
- ``expert``: `pipeline=expert_iteration` with their problems;
- ``grpo``: plain, its ratio to what the engine recorded, nothing corrected;
- ``noisy_icepop``, ``noisy_grpo``: the log-probs that the engine records are off by `--noise` nats;
  these three at twice the rate, which a right engine bears;
- ``dsa``: icepop from another checkpoint, whose attention is sparse (docs/rl.md says how it is made);
- ``unstable_topk``: the same with an engine whose indexer selects otherwise from call to call: the negative control.

FOLDER/page.html shows it. What is finished is not run again: the same command continues, other options want another
FOLDER. `ratios` are held-out shares over that of the beginning.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _machine import describe_machine
from _reasoning_page import write_page

TASK = ("environment=math", "environment.kinds=[expressions]")
SAMPLING = (
    "rollout.thinking=on", "rollout.max_new_tokens=80", "rollout.groups=16", "rollout.group_size=8",
    "rollout.refills=0",
)  # fmt: skip
RL_WITH_FAULTS = str(Path(__file__).parent / "_faulty_rl.py")
"""``arcforge-rl`` that has ``engine=faulty``."""
RIGHT = ("engine.max_running=512",)
FAULTY = ("engine=faulty", "engine.of=paged", "+engine.options.max_running=512", "trainer.max_gap=100")
LEARNING = ("optimizer.lr=2e-4", "schedule=cosine", "schedule.warmup=0.1", "schedule.final=0.1")
TOLD = (
    "Two-step expressions with products of numbers of two digits, thinking on; {minutes:g} minutes of training in "
    "{processes} process(es) of one thread, {tasks} held-out tasks tried once at temperature 1. Noise of the engine's "
    "log-probabilities: {noise:g} nats; bits that its unstable selection compares: {topk_bits}."
)
STEEP = ("optimizer.lr=4e-4",)
PLAIN = ("algorithm=grpo", "algorithm.old=engine")


@dataclass(frozen=True)
class Method:
    """A way to spend the minutes: the command of a seed, without the folder that it writes to."""

    name: str
    init: str
    script: str
    arguments: tuple[str, ...]
    seeds: int
    processes: int = 1
    threads: int = 1

    def folder(self, out: Path, seed: int) -> Path:
        """Returns where the run of a seed goes."""
        return out / f"{self.name}-{seed}"


def methods(options: argparse.Namespace) -> list[Method]:
    """Returns what is compared."""
    minutes, fewer, count = f"trainer.minutes={options.minutes}", min(options.seeds, 3), options.processes
    both = (*TASK, *SAMPLING, *LEARNING, minutes, "trainer.max_steps=null", "evaluation.tasks=200",
            "evaluation.samples=1", "trainer.eval_every=25")  # fmt: skip
    rl, faulty = (*both, *RIGHT), (*both, *FAULTY)
    train = f"{options.data}/train/reasoning"
    problems = f"{train}/expressions.jsonl"
    sft = ("stage=sft", "data=conversations", f"data.reasoning=[{train}]", "data.max_tokens=513", "optimizer.lr=1e-3",
           "schedule=cosine", "schedule.warmup=0.05", "schedule.final=0.1", "trainer.sequence_length=512",
           "trainer.micro_batch_tokens=2048", "trainer.samples=0")  # fmt: skip
    rounds = 2
    expert = ("pipeline=expert_iteration", *sft, f"stages.tries.files=[{problems}]", "stages.tries.limit=250",
              "stages.tries.samples=4", f"stages.rounds.repeat={rounds}")  # fmt: skip
    share = f"trainer.minutes={0.7 * options.minutes / rounds}"  # the rest is sampling
    noisy = (*faulty, f"engine.logprob_noise={options.noise}", *STEEP)
    found = [
        Method("icepop", options.init, "arcforge-rl", rl, options.seeds, count),
        Method("sft", options.init, "arcforge-train", (*sft, minutes), 1, count),
        Method("expert", options.init, "arcforge-pipeline", (*expert, share), 1, 1, count),
        Method("noisy_icepop", options.init, RL_WITH_FAULTS, noisy, fewer, count),
        Method("noisy_grpo", options.init, RL_WITH_FAULTS, (*noisy, *PLAIN), fewer, count),
        Method("grpo", options.init, "arcforge-rl", (*rl, *STEEP, *PLAIN), 1, count),
    ]
    if options.dsa:
        unstable = (*faulty, f"engine.topk_bits={options.topk_bits}")
        found.append(Method("dsa", options.dsa, "arcforge-rl", rl, 1, count))
        found.append(Method("unstable_topk", options.dsa, RL_WITH_FAULTS, unstable, 1, count))
    return [method for method in found if not options.only or method.name in options.only]


def command(script: str, *arguments: str, processes: int = 1) -> None:
    """Runs one of our commands, or a Python file; ends the benchmark with its output where it fails."""
    path = str(Path(sys.executable).parent / script)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    done = subprocess.run([sys.executable, *launcher, path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script} {' '.join(arguments)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def learn(method: Method, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a method for a seed unless that is done; returns the seconds and where the checkpoint is."""
    folder = method.folder(options.out, seed)
    note = folder / "done.json"
    if not note.exists():
        start = time.perf_counter()
        place = f"trainer.threads={method.threads}", f"output_dir={folder}", f"seed={seed}"
        command(method.script, f"init={method.init}", *place, *method.arguments, processes=method.processes)
        last = folder / "latest"
        if method.script == "arcforge-pipeline":
            last /= "latest"  # the last stage's run
        note.write_text(json.dumps({"seconds": time.perf_counter() - start, "checkpoint": str(last.resolve())}))
    found: dict[str, Any] = json.loads(note.read_text())
    evaluations = Path(found["checkpoint"]) / "evaluations.csv"
    if evaluations.exists():
        with evaluations.open() as file:
            rows = [row for row in csv.DictReader(file) if row["domain"] == "all"]
        curve = [float(row["pass@1"]) for row in rows]
        found |= {
            "curve": curve,
            "seconds_at": [float(row["seconds"]) for row in rows],
            "below_best": max(curve) - curve[-1],
        }
    return found


def held_out(checkpoint: str, options: argparse.Namespace, folder: Path) -> float:
    """Returns the share of the held-out tasks that a checkpoint gets right, measured once."""
    note = folder / "heldout.json"
    if not note.exists():
        command(
            "arcforge-env", "run", f"checkpoint={checkpoint}", *TASK, "environment.split=heldout", "thinking=on",
            "engine=paged", "max_new_tokens=80", f"episodes={options.tasks}", f"output_dir={folder / 'heldout'}",
        )  # fmt: skip
        (rows,) = folder.glob("heldout/*/*/rollouts.jsonl")
        rewards = [json.loads(line)["rewards"]["reward"] for line in rows.read_text().splitlines()]
        note.write_text(json.dumps(statistics.mean(rewards)))
    found: float = json.loads(note.read_text())
    return found


def main() -> None:
    """Learns, tries, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--dsa")
    parser.add_argument("--quick", action="store_true", help="one seed, two minutes, 100 tasks")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--noise", type=float, default=4.0)
    parser.add_argument("--topk-bits", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("outputs/reasoning_rl"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.quick:
        options.minutes, options.seeds, options.tasks = 2.0, 1, 100
    options.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"benchmark": "reasoning_rl", "machine": describe_machine(options.processes), "runs": {}}
    before: dict[str, float] = {}
    for method in methods(options):
        if method.init not in before:
            folder = options.out / ("before-dsa" if method.init == options.dsa else "before")
            folder.mkdir(exist_ok=True)
            before[method.init] = held_out(method.init, options, folder)
            print(f"{method.init}: {before[method.init]:.1%}", flush=True)
        for seed in range(method.seeds):
            found = learn(method, seed, options)
            found["heldout"] = held_out(found["checkpoint"], options, method.folder(options.out, seed))
            found["before"] = before[method.init]
            report["runs"].setdefault(method.name, []).append(found)
            below = f", {found['below_best']:.1%} under its best" if "below_best" in found else ""
            print(f"{method.name:<14}{seed}  {found['heldout']:.1%}{below}  {found['seconds']:,.0f} s", flush=True)
            write_page(options.out, report, TOLD.format(**vars(options)))
    report["ratios"] = {
        name: statistics.median(run["heldout"] for run in runs) / max(runs[0]["before"], 1e-9)
        for name, runs in report["runs"].items()
    }
    print(json.dumps(report["ratios"], indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
