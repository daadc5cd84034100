"""Times how long commands take to answer, beside a bare interpreter and beside Hydra's own import.

    python benchmarks/startup.py [--quick] [--threads N] [--json FILE]

Aims: ``arcforge-train --help`` under 2 s, ``arcforge-plugins`` under 0.5 s, and ``arcforge-train experiment=smoke``
with core alone under 10 s, in processor seconds: other programs lengthen those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _machine import describe_machine

BIN = Path(sys.executable).parent
COMMANDS = {
    "python": ([sys.executable, "-c", "print('ok')"], "ok"),
    "import hydra": ([sys.executable, "-c", "import hydra; print('ok')"], "ok"),
    "arcforge-plugins": ([str(BIN / "arcforge-plugins")], "arcforge-core"),
    "arcforge-train --help": ([str(BIN / "arcforge-train"), "--help"], "hardware"),
    "arcforge-train --cfg job": ([str(BIN / "arcforge-train"), "--cfg", "job"], "trainer:"),
}
"""Label -> command and a word of its correct answer."""

LIMITS = {"arcforge-plugins": 0.5, "arcforge-train --help": 2.0}
SMOKE, SMOKE_LIMIT, SMOKE_ROUNDS = "experiment=smoke", 10.0, 3
SIBLINGS = [f"arcforge-{name}" for name in ("attention", "optim", "rl", "serving", "hw")]
RATIOS = {
    "plugins_over_python": ("arcforge-plugins", "python"),
    "train_help_over_import_hydra": ("arcforge-train --help", "import hydra"),
    "train_config_over_import_hydra": ("arcforge-train --cfg job", "import hydra"),
}


def run(label: str, threads: int) -> float:
    """Runs a command, checks its answer and returns the seconds it took."""
    command, expected = COMMANDS[label]
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - start
    if result.returncode or expected not in result.stdout:
        raise SystemExit(f"{label}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return seconds


def smoke(threads: int) -> float:
    """Trains the smoke recipe with core alone in an empty folder and returns the processor seconds it took."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "ARCFORGE_BLOCK_PLUGINS": ",".join(SIBLINGS)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(BIN / "arcforge-train"), SMOKE, f"trainer.threads={threads}"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
        if result.returncode or not Path(folder, "outputs/latest/report.html").is_file():
            raise SystemExit(f"{SMOKE}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Times the commands in turns, so that a change of load meets all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 20")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds = 5 if options.quick else 20
    report: dict[str, Any] = {"benchmark": "startup", "rounds": rounds, "machine": describe_machine(options.threads)}
    seconds: dict[str, list[float]] = {label: [] for label in COMMANDS}
    for label in COMMANDS:
        run(label, options.threads)  # fills the file cache and writes bytecode
    for _ in range(rounds):
        for label, times in seconds.items():
            times.append(run(label, options.threads))
        medians = {label: statistics.median(times) for label, times in seconds.items()}
        report["seconds"] = {
            label: {"median": medians[label], "best": min(t), "all": t} for label, t in seconds.items()
        }
        report["ratios"] = {name: medians[ours] / medians[peer] for name, (ours, peer) in RATIOS.items()}
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))
    print(f"{'command':<28}{'median s':>10}{'best s':>10}{'aim s':>8}")
    for label, times in seconds.items():
        aim = f"{LIMITS[label]:.1f}" if label in LIMITS else ""
        print(f"{label:<28}{medians[label]:>10.3f}{min(times):>10.3f}{aim:>8}")
    smoke(options.threads)  # writes the shards
    processor = [smoke(options.threads) for _ in range(SMOKE_ROUNDS)]
    report["smoke_processor_seconds"] = {"median": statistics.median(processor), "all": processor}
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    label, median = f"{SMOKE}, processor", statistics.median(processor)
    print(f"{label:<28}{median:>10.2f}{min(processor):>10.2f}{SMOKE_LIMIT:>8.1f}")
    for name, ratio in report["ratios"].items():
        print(f"{name:<38}{ratio:>8.2f}x")


if __name__ == "__main__":
    main()
