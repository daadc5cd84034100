"""Schedules of rollouts and training under a virtual clock: seconds of a step, idle devices, staleness.

    python benchmarks/async_simulation.py [--steps 200] [--seeds 3] [--concurrency 128] [--engines 2000] [--json FILE]

The scheduler is the one of ``collection=async``; engines, tools and trainer are models of a small one on two cores:
rollouts of four turns with 20 to 60 tokens each, and between them a tool whose latency is log-normal (median 1 s, sigma
1.0, at most 30 s). A step trains 8 groups of 8.

Synchronous schedules use both cores for either phase: two engines, and an update in half the time. The others give one
core to the engine and one to the trainer. ``over-sampled`` admits half as many groups again and aborts what has not
ended when the batch is complete. Rows with failures lose a tenth of their attempts in the last turn.

Then one run with many engines shows what the simulation itself costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path

from _machine import describe_machine
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.simulation import Machine, Simulated, Simulation, Workload

BOTH = Machine(engines=2, train_seconds=2.0, shares=True)
APART = Machine(engines=1, train_seconds=4.0)
WORK = Workload()
FAILING = replace(WORK, failing=0.1)
UNBOUNDED = 1 << 20


def schedules(concurrency: int) -> dict[str, tuple[Rules, Machine, Workload]]:
    """Returns the schedules by name, the baseline first."""
    sync = Rules(8, 8, eta=0.0, max_staleness=0, concurrency=UNBOUNDED)
    found = {
        "barrier": (sync, BOTH, WORK),
        "over-sampled 1.5, abort": (replace(sync, oversample=1.5), BOTH, WORK),
        "one step off": (replace(sync, eta=1.0, max_staleness=8, whole_batches=True), APART, WORK),
    }
    for eta in (0.0, 1.0, 2.0, 4.0):
        found[f"async, eta {eta:g}"] = (Rules(8, 8, eta, 8, concurrency=concurrency), APART, WORK)
    found["async, eta 4, bound 4"] = (Rules(8, 8, 4.0, 4, concurrency=concurrency), APART, WORK)
    found["async, eta 2, failures"] = (Rules(8, 8, 2.0, 8, concurrency=concurrency), APART, FAILING)
    found["barrier, failures"] = (sync, BOTH, FAILING)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--engines", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(describe_machine(1))
    print("| schedule | s/step | speed | trainer idle | engines idle | staleness mean | most | p50 | p99 | trained |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found: dict[str, list[Simulated]] = {}
    for name, (rules, machine, work) in schedules(options.concurrency).items():
        runs = found[name] = [
            Simulation(rules, work, machine, seed).run(options.steps) for seed in range(options.seeds)
        ]
        base = statistics.median(run.step_seconds for run in found["barrier"])
        mean = {
            field: statistics.median(getattr(run, field) for run in runs)
            for field in asdict(runs[0])
            if field != "counts"
        }
        print(
            f"| {name} | {mean['step_seconds']:.2f} | {base / mean['step_seconds']:.2f}x "
            f"| {1 - mean['trainer_busy']:.0%} | {1 - mean['engines_busy']:.0%} "
            f"| {mean['staleness']:.2f} | {max(run.most_staleness for run in runs)} "
            f"| {mean['rollout_median']:.1f} s | {mean['rollout_p99']:.1f} s | {mean['trained_share']:.0%} |",
            flush=True,
        )
    groups = options.engines // 8
    rules, machine = Rules(groups, 8, 2.0, 8, concurrency=4 * options.engines), replace(APART, engines=options.engines)
    start = time.process_time()
    run = Simulation(rules, WORK, machine).run(20)
    print(
        f"\n{options.engines:,} engines, steps of {groups:,} groups, eta 2: {run.step_seconds:.2f} s a step, "
        f"staleness {run.staleness:.2f}; 20 steps took {time.process_time() - start:.1f} s of processor time"
    )
    if options.json:
        options.json.write_text(json.dumps({name: [asdict(run) for run in runs] for name, runs in found.items()}))


if __name__ == "__main__":
    main()
