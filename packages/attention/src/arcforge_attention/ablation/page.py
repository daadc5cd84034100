"""The one page of the ablation, from the final figures of a sweep's jobs; written anew after each of them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

from arcforge_attention.ablation.verdicts import Results, verdicts
from arcforge_attention.configs import AblationConfig
from arcforge_core.config.sweep import Job

PAGE = "ablation.html"
Format = Callable[[float], str]


def percent(value: float) -> str:
    """Returns a share as a percentage."""
    return f"{100 * value:.1f}%"


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, the figure it shows, and how."""

    heading: str
    figure: str
    form: Format


def columns(procedure: AblationConfig) -> list[Column]:
    """Returns the columns."""
    found = [Column("held-out loss", "heldout_loss", lambda x: f"{x:.3f}")]
    for length in procedure.lengths:
        for task in procedure.tasks:
            found.append(Column(f"{task} {length}", f"{task}@{length}", percent))
    found += [Column(f"untrained {length}", f"converted retrieval@{length}", percent) for length in procedure.lengths]
    longest = max(procedure.lengths)
    found.append(Column(f"cache bytes/token at {longest}", "cache_bytes_per_token", lambda x: f"{x:,.0f}"))
    return [*found, Column("tokens/s", "tokens_per_s", lambda x: f"{x:,.0f}")]


def results_of(jobs: Sequence[Job]) -> Results:
    """Returns the figures of finished jobs by variant and seed."""
    found: Results = {}
    for job in jobs:
        if job.result and job.result.metrics.get("status") == "finished":
            name, seed = job.overrides.get("attention", ""), job.overrides.get("seed", "0")
            found.setdefault(name, {})[seed] = dict(job.result.metrics)
    return found


def write_page(folder: Path, jobs: Sequence[Job], procedure: AblationConfig) -> Path:
    """Writes and returns ``ablation.html`` in a sweep's folder."""
    results = results_of(jobs)
    path = folder / PAGE
    failures = [
        f"{job.overrides.get('attention')} seed {job.overrides.get('seed')}: {job.outcome}" for job in jobs if job.error
    ]
    path.write_text(render(results, procedure, failures, folder, jobs), encoding="utf-8")
    return path


def render(
    results: Results, procedure: AblationConfig, failures: Sequence[str], folder: Path, jobs: Sequence[Job]
) -> str:
    """Returns the page."""
    failed = "".join(f"<p class=bad>Failed: {escape(text)}</p>" for text in failures)
    claims = "".join(
        f"<tr><td class={'good' if claim.holds else 'bad'}>{'holds' if claim.holds else 'does not hold'}</td>"
        f"<td>{escape(claim.text)}</td><td>{escape(claim.figures)}</td></tr>"
        for claim in verdicts(results, procedure)
    )
    share = procedure.further_steps / (procedure.base_steps + procedure.further_steps)
    shown = columns(procedure)
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in shown)
    rows = "".join(_row(name, seeds, shown) for name, seeds in results.items())
    links = ", ".join(_link(folder, job) for job in jobs if job.result)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>attention ablation</title>
<style>body{{font:15px system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem}}
table{{border-collapse:collapse;display:block;overflow-x:auto}}
td,th{{padding:.3rem .7rem;border-bottom:1px solid #8884;text-align:left;font-variant-numeric:tabular-nums}}
small{{opacity:.7}}.good{{color:#080}}.bad{{color:#b00}}svg{{max-width:100%;height:auto}}</style></head><body>
<h1>Attention at equal budgets</h1>
<p>Each variant starts from a dense base of its seed ({procedure.base_steps} steps) and is trained
{procedure.further_steps} steps further on the same tokens, {share:.1%} of all. &ldquo;untrained&rdquo; is the converted
base before these steps. Numbers are means over seeds, with the lowest and the highest.</p>
{failed}<h2>What reproduces</h2><table>{claims}</table>
<h2>Figures</h2>
<table><thead><tr><th>variant</th><th>seeds</th>{head}</tr></thead><tbody>{rows}</tbody></table>
<h2>Retrieval by length</h2>
{_plot(results, procedure)}
<p>Runs: {links or "none yet"}. <a href="index.html">All figures of all jobs</a>.</p>
</body></html>
"""


def _row(name: str, seeds: Mapping[str, Mapping[str, Any]], shown: Sequence[Column]) -> str:
    patterns = sorted({str(figures["pattern"]) for figures in seeds.values() if figures.get("pattern")})
    label = f"{escape(name)} <small>{escape(', '.join(patterns))}</small>"
    cells = "".join(
        f"<td>{_spread([f.get(column.figure) for f in seeds.values()], column.form)}</td>" for column in shown
    )
    return f"<tr><td>{label}</td><td>{len(seeds)}</td>{cells}</tr>"


def _spread(values: Sequence[Any], form: Format) -> str:
    numbers = [float(value) for value in values if value is not None]
    if not numbers:
        return "missing"
    text = form(mean(numbers))
    return f"{text} <small>{form(min(numbers))} to {form(max(numbers))}</small>" if len(numbers) > 1 else text


def _link(folder: Path, job: Job) -> str:
    assert job.result is not None
    target = os.path.relpath(job.result.dir / "report.html", folder)
    label = f"{job.overrides.get('attention')} seed {job.overrides.get('seed', 0)}"
    return f'<a href="{escape(target)}">{escape(label)}</a>'


def _plot(results: Results, procedure: AblationConfig) -> str:
    """Draws the scores before and after further training, with the seeds' range."""
    from matplotlib.figure import Figure  # seconds to import

    if not results:
        return "<p>No job has finished.</p>"
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, prefix, title in zip(
        panels, ("converted ", ""), ("converted, untrained", "trained further"), strict=True
    ):
        for name, seeds in results.items():
            points = [[100 * f[f"{prefix}retrieval@{n}"] for f in seeds.values()] for n in procedure.lengths]
            (line,) = axes.plot(procedure.lengths, [mean(p) for p in points], marker="o", label=name)
            axes.fill_between(
                procedure.lengths,
                [min(p) for p in points],
                [max(p) for p in points],
                color=line.get_color(),
                alpha=0.15,
            )
        axes.set(title=title, xlabel="tokens", xticks=procedure.lengths, ylim=(-3, 103))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("answers found, %")
    panels[1].legend()
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]
