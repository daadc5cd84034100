"""The job ``bench``: connects, warms up, sends the workload, and writes the figures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.episodes.loops import run_to_end
from arcforge_core.errors import ArcforgeError, ConfigError, DataError
from arcforge_core.files.rundir import dated_folder
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.bench.client import Client
from arcforge_serving.bench.configs import BenchConfig, RandomWorkloadConfig
from arcforge_serving.bench.figures import LATENCIES, row, summarise
from arcforge_serving.bench.load import LoadGenerator, Record
from arcforge_serving.bench.plot import plot
from arcforge_serving.bench.workloads import Session, Texts, random_workload

CONCURRENCY = 16
OTHER = 2**32
"""Added to the seed of the warm-up, which must not put measured prompts into the server's cache."""


def measure(config: BenchConfig) -> Result:
    """Measures, writes ``bench.json`` and ``bench.png``, prints a table and returns the figures with their folder.

    Raises:
        ConfigError: the URL, model or tokenizer cannot be used.
        DataError: the workload's file cannot be used.
        ArcforgeError: the server cannot be reached or refuses, no request succeeded, or nothing can be written.
    """
    texts = Texts(config.seed, _tokenizer(config.tokenizer))
    sessions: list[Session] = registry().get("workload", config.workload.name).load()(config.workload, texts)
    model, folder, records = run_to_end(_measure(config, sessions))
    figures = summarise(records, config.slo)
    report = {
        "benchmark": "arcforge-bench",
        "model": model,
        "settings": asdict(config),
        "figures": figures,
        "requests": [row(record) for record in records],
    }
    try:
        (folder / "bench.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        plot(records, f"{model}, workload {config.workload.name}", folder / "bench.png")
    except OSError as error:
        raise ArcforgeError(f"cannot write {error.filename}: {error.strerror}") from error
    for kind, found in figures["errors"].items():
        say(f"{found['count']} failed: {kind}: {found['first']}")
    if figures["failed"] == len(records):
        raise ArcforgeError(f"none of {len(records)} requests succeeded; {folder / 'bench.json'} has them all")
    shown = Result(folder, flat(figures))
    shown.show(f"{model}, workload {config.workload.name}; tokens counted by {figures['tokens_counted_by']}")
    Console(markup=False, highlight=False).print(latency_table(figures))
    print(folder / "bench.json")
    return shown


async def _measure(config: BenchConfig, sessions: Sequence[Session]) -> tuple[str, Path, list[Record]]:
    """Returns the model's name, the folder for the results and a record of each request."""
    key, extra = os.environ.get("ARCFORGE_API_KEY"), {"temperature": config.temperature, **config.extra}
    concurrency = CONCURRENCY if config.rate is None and config.concurrency is None else config.concurrency
    async with Client(config.url, config.api, key, config.timeout, extra) as client:
        await client.connect(config.model_name)
        folder = create_folder(Path(config.output_dir))
        if not client.counts:
            say("the server does not take stream_options: tokens are counted as chunks")
        if config.warmup:
            short = RandomWorkloadConfig(requests=config.warmup, input_tokens=[64, 64], output_tokens=[16, 16])
            warmup = random_workload(short, Texts(config.seed + OTHER))
            await LoadGenerator(client, None, concurrency).run(warmup, "warming up")
        records = await LoadGenerator(client, config.rate, concurrency, config.seed).run(sessions, "measuring")
        return str(client.model), folder, records


def _tokenizer(folder: str | None) -> Tokenizer | None:
    if folder is None:
        return None
    try:
        return Tokenizer.load(folder)
    except DataError as error:
        raise ConfigError("tokenizer", folder, str(error)) from error


def create_folder(root: Path) -> Path:
    """Creates the folder of the results."""
    folder = dated_folder(root, "bench")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError("output_dir", str(root), f"cannot be written: {error.strerror}") from error
    return folder


def flat(figures: dict[str, Any]) -> dict[str, float]:
    """Returns the figures that are one number, for a table and for comparisons of sweeps."""
    found = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    found |= {
        f"{name} {point}": figures[name][point] for name in LATENCIES for point in ("p50", "p99") if figures[name]
    }
    found |= {f"goodput {name}": value for name, value in figures.get("goodput", {}).items()}
    return found


def latency_table(figures: dict[str, Any]) -> Table:
    """Returns the latencies with all percentiles."""
    table = Table("milliseconds", *next(iter(figures[name] for name in LATENCIES if figures[name])))
    for name in LATENCIES:
        table.add_row(name.removesuffix("_ms").upper(), *(f"{value:,.1f}" for value in figures[name].values()))
    return table
