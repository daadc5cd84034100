"""The paged engine at saturation: cancellations, preemptions, pauses, weight updates, every answer checked.

    python benchmarks/serving_soak.py [--http] [--minutes 30] [--threads N] [--json FILE] [--plot FILE]

A small deterministic model answers random requests, many of which begin alike, while three sets of weights take turns.
Each answer must be that of the simple engine bit for bit, except where weights changed under a running request; a
request that fails or never ends stops the run. RSS and pages are written down every second: RSS at the end over RSS
after the first tenth is the ratio `rss_growth`. With ``--http`` a server of its own process is asked, `_soak_http.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch

import _path  # noqa: F401
import _soak_http
from _machine import describe_machine
from arcforge_attention.configs import DsaConfig
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.small_models import small_config
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from support.serving_load import RandomLoad, make_cases

LONGEST = 64
STUCK = 60.0
"""Seconds after which open requests count as lost."""


def build(seed: int) -> CausalLM:
    """Returns the model."""
    torch.manual_seed(seed)
    return build_model(small_config(), DsaConfig(), Ops(select_hardware("torch_cpu"), deterministic=True)).eval()


def resident() -> float:
    """Returns this process's resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def drain(engine: PagedEngine, load: RandomLoad) -> None:
    """Waits until all requests are answered."""
    end = time.monotonic() + STUCK
    while load.open:
        if time.monotonic() > end:
            raise SystemExit(f"{len(load.open)} requests never ended: {engine.stats()}")
        time.sleep(0.01)
        load.collect()


def plot(samples: list[dict[str, float]], path: Path) -> None:
    """Draws memory and pages over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (memory, pages) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6))
    minutes = [sample["seconds"] / 60 for sample in samples]
    memory.plot(minutes, [sample["rss_mib"] for sample in samples])
    memory.set_ylabel("RSS, MiB")
    memory.set_ylim(bottom=0)
    for name in ("free_pages", "cached_pages"):
        pages.plot(minutes, [sample[name] for sample in samples], label=name.replace("_", " "))
    pages.set_ylabel("pages")
    pages.set_xlabel("minutes")
    pages.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs for the given minutes and prints what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--http", action="store_true", help="drive the server instead of the engine")
    parser.add_argument("--update-seconds", type=float, default=30.0, help="with --http, between updates of weights")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "serving_soak", "minutes": options.minutes, "http": options.http}
    report["machine"] = describe_machine(options.threads)
    report |= over_http(options) if options.http else in_process(options)
    samples = report["samples"]
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    if options.plot:
        plot(samples, options.plot)
    print(f"{report['done']}, {report['preemptions']} preemptions, weights of version {report['weight_version']}")
    early = samples[len(samples) // 10]["rss_mib"]
    print(f"RSS {early:.0f} MiB after a tenth of the time, {samples[-1]['rss_mib']:.0f} MiB at the end")


def over_http(options: argparse.Namespace) -> dict[str, Any]:
    """Soaks a server."""
    return _soak_http.run(options.minutes, options.threads, options.update_seconds)


def in_process(options: argparse.Namespace) -> dict[str, Any]:
    """Soaks an engine."""
    model = build(0)
    states = [{name: tensor.clone() for name, tensor in build(seed).state_dict().items()} for seed in range(3)]
    cases = make_cases(model, states, 60, LONGEST)
    config = PagedEngineConfig(page_size=4, cache_tokens=640, max_running=16, max_batch_tokens=128, tier_mb=4)
    engine = PagedEngine(config, model)
    engine.start()
    load = RandomLoad(engine, cases, states, random.Random(0), limit=64)
    start = time.monotonic()
    samples: list[dict[str, float]] = []
    while (seconds := time.monotonic() - start) < 60 * options.minutes:
        load.act()
        time.sleep(0.002)
        if len(samples) <= seconds:
            stats = engine.stats()
            figures = {"free_pages": stats.free_pages, "cached_pages": stats.cached_pages, "running": stats.running}
            samples.append({"seconds": seconds, "rss_mib": resident(), **figures})
    drain(engine, load)
    engine.check(checksums=True)
    engine.flush()
    stats = engine.stats()
    if stats.free_pages != stats.pages:
        raise SystemExit(f"pages were lost: {stats}")
    early = samples[len(samples) // 10]["rss_mib"]
    engine.close()
    return {
        "done": dict(load.done), "weight_version": stats.weight_version, "preemptions": stats.preemptions,
        "samples": samples, "ratios": {"rss_growth": samples[-1]["rss_mib"] / early},
    }  # fmt: skip


if __name__ == "__main__":
    main()
