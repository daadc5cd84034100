"""The cost of a judge to a run: verdicts that are cached, and verdicts that are slow and fail.

    python benchmarks/judge_cost.py [--only cached busy] [--out FOLDER] [--steps 4] [--latency 5] [--errors 0.1]
                                    [--json FILE]

The demo's model solves expressions by IcePop, rewarded by a scripted judge (``_scripted_judge.py``) on a server beside
it.

- `cached`: 32 groups of 8, both orders of seven pairs of each group. The second of two equal runs finds all verdicts in
  the cache of the first; its time for rewards is compared with that of all else in its steps.
- `busy`: `collection=async`, 64 groups of 8, single replies. The engine's busy share with the environment's own reward,
  with a judge that answers immediately, and with one that takes `--latency` seconds and fails with HTTP 500 for a share
  `--errors`. Rollouts that wait for a verdict are in flight, so `collection.concurrency` has room for them.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from _machine import describe_machine

RUBRIC = '[[criterion]]\nname = "thorough"\ndescription = "Is the reply thorough?"\nchoices = ["no", "partly", "yes"]\n'
REWARD = """[[reward]]
weights = {{ thorough = 1.0 }}

[component.thorough]
kind = "grm"
reward = "grm"
options = {options}
"""
TASK = (
    "init=demo", "environment=math", "environment.kinds=[expressions]", "rollout.thinking=on",
    "rollout.max_new_tokens=80", "rollout.refills=0", "evaluation.tasks=0", "optimizer.lr=1e-4",
)  # fmt: skip


@contextmanager
def judge(latency: float, errors: float) -> Iterator[str]:
    """Runs a judge's server and gives its address."""
    command = [sys.executable, str(Path(__file__).with_name("_scripted_judge.py")), str(latency), str(errors)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def reward_file(folder: Path, **options: Any) -> Path:
    """Empties a part's folder and writes there a reward of the judge's verdicts, and its rubric."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "rubric.toml").write_text(RUBRIC)
    given = {"rubric": str(folder / "rubric.toml"), "uncalibrated": True, **options}
    said = ", ".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
    (folder / "reward.toml").write_text(REWARD.format(options=f"{{ {said} }}"))
    return folder / "reward.toml"


def metrics(folder: Path, *overrides: str) -> list[dict[str, float]]:
    """Trains, and returns the metrics of all steps but the first, which compiles and fills caches."""
    command = [sys.executable, "-m", "arcforge_core", "rl", *TASK, f"folder={folder}", *overrides]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:])
    with (folder / "metrics.csv").open() as lines:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(lines)]
    return rows[1:]


def total(rows: Sequence[dict[str, float]], name: str) -> float:
    """Returns the sum of a figure over steps; steps without it count as 0."""
    return sum(row.get(name, 0.0) for row in rows)


def cached(out: Path, steps: int) -> dict[str, float]:
    """Runs the part: the share that cached verdicts add to a step."""
    path = reward_file(out, mode="pairwise", cache=str(out / "verdicts.sqlite"))
    sizes = ("rollout.groups=32", "rollout.group_size=8", "rollout.drop_equal=false", f"trainer.max_steps={steps}")
    with judge(0.0, 0.0) as url:
        runs = [
            metrics(out / name, f"rewards={path}", f"+agents.judge.url={url}", *sizes) for name in ("first", "second")
        ]
    first, second = runs
    whole = sum(total(second, f"seconds_{phase}") for phase in ("sampling", "streams", "training", "handover"))
    scoring = total(second, "seconds_scoring")
    return {
        "requests_first": total(first, "reward_thorough_requests"),
        "requests_second": total(second, "reward_thorough_requests"),
        "seconds_scoring": scoring, "seconds_else": whole, "added": scoring / whole,
    }  # fmt: skip


def busy(out: Path, steps: int, latency: float, errors: float) -> dict[str, dict[str, float]]:
    """Runs the part: the engine's busy share by row."""
    path = reward_file(out, concurrency=1024)
    sizes = (
        "collection=async", "collection.concurrency=1024", "rollout.groups=64", "rollout.group_size=8",
        f"trainer.max_steps={steps}",
    )  # fmt: skip
    found = {"no judge": _busy(metrics(out / "none", *sizes))}
    for name, of in (("immediate", (0.0, 0.0)), ("slow and failing", (latency, errors))):
        with judge(*of) as url:
            agent = (f"+agents.judge.url={url}", "+agents.judge.seconds=60")
            rows = metrics(out / name.split()[0], f"rewards={path}", *agent, *sizes)
        found[name] = _busy(rows) | {"failures": total(rows, "reward_thorough_failures")}
    return found


def _busy(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {
        "busy": 1 - total(rows, "engine_idle") / len(rows),
        "trained": total(rows, "sampled_tokens"),
        "seconds": rows[-1]["seconds"] - rows[0]["seconds"],
    }


def main() -> None:
    """Runs the parts and prints their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["cached", "busy"], choices=("cached", "busy"))
    parser.add_argument("--out", type=Path, default=Path("outputs/judge_cost"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--latency", type=float, default=5.0, help="seconds")
    parser.add_argument("--errors", type=float, default=0.1, help="share")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.steps < 3:
        parser.error(f"--steps {options.steps}: must be at least 3: the first does not count")
    out = options.out.resolve()
    found: dict[str, Any] = {"machine": describe_machine(torch.get_num_threads())}
    if "cached" in options.only:
        found["cached"] = of = cached(out / "cached", options.steps)
        print(f"cached verdicts add {of['added']:.1%}: {of['seconds_scoring']:.2f} s to {of['seconds_else']:.2f} s; "
              f"{of['requests_first']:.0f} requests at first, then {of['requests_second']:.0f}")  # fmt: skip
    if "busy" in options.only:
        found["busy"] = busy(out / "busy", options.steps, options.latency, options.errors)
        for name, row in found["busy"].items():
            failed = f", {row['failures']:.0f} rollouts failed" if "failures" in row else ""
            print(f"{name}: engine busy {row['busy']:.1%}, {row['seconds']:.0f} s{failed}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
