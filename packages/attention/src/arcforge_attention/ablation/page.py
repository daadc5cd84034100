"""The page of the ablation, from the final figures of a sweep's jobs; rewritten after each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes

from arcforge_attention.ablation.verdicts import Results, verdicts
from arcforge_attention.configs import AblationOptions
from arcforge_core.config.sweep import SweepJob
from arcforge_core.report.charts import SERIES, chart_svg, legend_above
from arcforge_core.report.html import card, missing, table
from arcforge_core.report.page import Page, Section

PAGE = "ablation.html"
Format = Callable[[float], str]


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, the figure it shows, and the number format."""

    heading: str
    figure: str
    form: Format


def columns(options: AblationOptions) -> list[Column]:
    """Returns the columns."""
    found = [Column("held-out loss", "heldout_loss", lambda x: f"{x:.3f}")]
    for length in options.lengths:
        for task in options.tasks:
            found.append(Column(f"{task} {length}", f"{task}@{length}", percent))
    found += [Column(f"untrained {length}", f"converted retrieval@{length}", percent) for length in options.lengths]
    longest = max(options.lengths)
    found.append(Column(f"cache bytes/token at {longest}", "cache_bytes_per_token", lambda x: f"{x:,.0f}"))
    return [*found, Column("tokens/s", "tokens_per_s", lambda x: f"{x:,.0f}")]


def results_of(jobs: Sequence[SweepJob]) -> Results:
    """Returns the figures of finished jobs by variant and seed."""
    found: Results = {}
    for job in jobs:
        if job.result and job.result.figures.get("status") == "finished":
            name, seed = job.overrides.get("attention", ""), job.overrides.get("seed", "0")
            found.setdefault(name, {})[seed] = dict(job.result.figures)
    return found


def write_page(folder: Path, jobs: Sequence[SweepJob], options: AblationOptions) -> Path:
    """Writes and returns ``ablation.html`` in a sweep's folder."""
    results = results_of(jobs)
    share = options.further_steps / (options.base_steps + options.further_steps)
    links = ", ".join(_link(folder, job) for job in jobs if job.result)
    page = Page(
        kind="ablation",
        title="Attention at equal budgets",
        subtitle=f"Each variant starts from the dense base of its seed ({options.base_steps} steps) and is trained for "
        f"{options.further_steps} more steps on the same tokens, {share:.1%} of the total. &ldquo;untrained&rdquo; is "
        "the converted base before these steps. Numbers are means over seeds, with the lowest and the highest.",
        sections=[
            *([Section("Failed", card("", _failures(jobs)))] if any(job.error for job in jobs) else []),
            Section("Claims of the paper", card("", _claims(results, options))),
            Section("Figures", card("", _figures(results, columns(options)))),
            Section("Retrieval by length", _plots(results, options)),
        ],
        footer=f'Runs: {links or "none yet"}. <a href="index.html">All figures of all jobs</a>.',
        style="small { color: var(--muted); } td { overflow-wrap: normal; }",
    )
    return page.write(folder / PAGE)


def _failures(jobs: Sequence[SweepJob]) -> str:
    texts = (f"{_label(job)}: {job.outcome}" for job in jobs if job.error)
    return "".join(f'<p class="failed">{escape(text)}</p>' for text in texts)


def _claims(results: Results, options: AblationOptions) -> str:
    marks = {True: '<span class="ok">holds</span>', False: '<span class="failed">does not hold</span>'}
    claims = verdicts(results, options)
    rows = [[marks[claim.holds], escape(claim.text), escape(claim.figures)] for claim in claims]
    return table(["verdict", "claim", "figures"], rows)


def _figures(results: Results, shown: Sequence[Column]) -> str:
    rows = []
    for name, seeds in results.items():
        patterns = sorted({str(figures["pattern"]) for figures in seeds.values() if figures.get("pattern")})
        label = f"{escape(name)} <small>{escape(', '.join(patterns))}</small>"
        spreads = (_spread([f.get(column.figure) for f in seeds.values()], column.form) for column in shown)
        rows.append([label, str(len(seeds)), *spreads])
    return table(["variant", "seeds", *(escape(column.heading) for column in shown)], rows)


def _spread(values: Sequence[Any], form: Format) -> str:
    numbers = [float(value) for value in values if value is not None]
    if not numbers:
        return missing()
    text = form(mean(numbers))
    return f"{text} <small>{form(min(numbers))} to {form(max(numbers))}</small>" if len(numbers) > 1 else text


def _label(job: SweepJob) -> str:
    return f"{job.overrides.get('attention')} seed {job.overrides.get('seed', 0)}"


def _link(folder: Path, job: SweepJob) -> str:
    assert job.result is not None
    target = os.path.relpath(job.result.dir / "report.html", folder)
    return f'<a href="{escape(target)}">{escape(_label(job))}</a>'


def _plots(results: Results, options: AblationOptions) -> str:
    """Draws the scores before and after further training: means over seeds, whose range the table has."""
    if not results:
        return card("", "<p>No job has finished.</p>")

    def panel(prefix: str) -> Callable[[Axes], None]:
        def draw(axes: Axes) -> None:
            for number, (name, seeds) in enumerate(results.items()):
                points = [mean(100 * f[f"{prefix}retrieval@{n}"] for f in seeds.values()) for n in options.lengths]
                axes.plot(options.lengths, points, color=SERIES[number % len(SERIES)], marker="o", label=name)
            axes.set(xlabel="tokens", ylabel="answers found, %", xticks=options.lengths, ylim=(0, 103))
            legend_above(axes)

        return draw

    panels = {"Converted, untrained": "converted ", "Trained further": ""}
    charts = (
        card(title, chart_svg(f"retrieval-{prefix.strip() or 'trained'}", title, panel(prefix)))
        for title, prefix in panels.items()
    )
    return f'<div class="grid">{"".join(charts)}</div>'
