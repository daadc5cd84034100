"""Writes ``report.html`` of a run of ``arcforge-rl``: a self-contained page from the run's files only.

Absent values are shown as missing. Text from files is escaped, or is data for the page's only script; the content
security policy allows no other script.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from arcforge_core.report.charts import Chart, chart_cards
from arcforge_core.report.html import card, count, duration, missing, table
from arcforge_core.report.page import Page, Section, run_page
from arcforge_rl.rollouts.clock import PHASES
from arcforge_rl.trainer.callbacks import ROLLOUTS_FILE
from arcforge_rl.trainer.figures import ALL
from arcforge_rl.trainer.report.charts import ASYNCHRONOUS, CHARTS
from arcforge_rl.trainer.report.data import FILES, Rate, RlRun, read_run
from arcforge_rl.trainer.report.rollouts import Shown, as_json, read_rollouts

VIEWER = Path(__file__).with_name("viewer.js")
STYLE = Path(__file__).with_name("viewer.css")
FEW = 5
"""Number of steps whose mean is shown as the start and the end of a curve."""


def write_report(run_dir: Path) -> Path:
    """Writes and returns ``run_dir/report.html``; any file of the run may be missing or damaged."""
    page = page_of(read_run(run_dir), read_rollouts(run_dir / ROLLOUTS_FILE))
    return page.write(run_dir / "report.html")


def page_of(run: RlRun, shown: Shown) -> Page:
    """Returns the page of a run."""
    problems = run.problems | ({ROLLOUTS_FILE: shown.problem} if shown.problem else {})
    return run_page(
        run,
        "reinforcement learning run",
        _subtitle(run),
        [
            Section("", f"{_gain(run)}\n{_learning(run)}\n{_time(run)}", headline=True),
            *([Section("", _warnings(run))] if run.warnings else []),
            Section("Curves", chart_cards(charts_of(run), run)),
            Section("Held-out tasks", _heldout(run)),
            *([Section("Held-out tasks by category and kind", _labelled(run))] if run.labels else []),
            Section("Rollouts", _rollouts(shown)),
        ],
        FILES,
        problems,
        footer="Every figure on this page was read from the files above.",
        style=STYLE.read_text(encoding="utf-8"),
        script="" if shown.problem else VIEWER.read_text(encoding="utf-8"),
    )


def charts_of(run: RlRun) -> Sequence[Chart[RlRun]]:
    """Returns the charts of a run: further ones if it sampled while it trained."""
    return (*CHARTS, *ASYNCHRONOUS) if run.has("step", "staleness_take_mean") else CHARTS


# ---- numbers -------------------------------------------------------------------------------------------------------


def share(value: float) -> str:
    """Formats a share, e.g. 12.3%."""
    return f"{100 * value:.1f}%"


def interval(rate: Rate, signed: bool = False) -> str:
    """Formats a share, or a difference of shares in percentage points, with its interval."""
    if signed:
        return f"{100 * rate.value:+.1f} points ({100 * rate.low:+.1f} to {100 * rate.high:+.1f})"
    return f"{share(rate.value)} ({share(rate.low)} to {share(rate.high)})"


def _steps(run: RlRun) -> float | None:
    return run.number("steps") if run.number("steps") is not None else run.last("step")


def _shown(value: float | None, form: str = "") -> str:
    if value is None:
        return missing()
    return {"count": count, "duration": duration}[form](value) if form else f"{value:.3g}"


# ---- sections ------------------------------------------------------------------------------------------------------


def _subtitle(run: RlRun) -> str:
    tokens, seconds = run.number("tokens"), run.number("seconds")
    steps = _shown(_steps(run), "count")
    return f"{steps} steps · trained on {_shown(tokens, 'count')} tokens in {_shown(seconds, 'duration')}"


def _gain(run: RlRun) -> str:
    evaluated = run.evaluated
    if not evaluated:
        return card("Held-out tasks", f"<p>{missing('heldout.csv')}</p>")
    bars, head = [], ""
    for series, (when, step) in enumerate({"before": evaluated[0], "after": evaluated[-1]}.items()):
        rate = run.share(step)
        if rate is not None and (series == 0 or len(evaluated) > 1):
            style = f"width:{100 * rate.value:.1f}%;background:var(--series-{5 if series == 0 else 0})"
            bars.append(
                f"<span>{when}, step {step:,}</span>"
                f'<span class="track"><span class="bar" style="{style}"></span></span><span>{interval(rate)}</span>'
            )
            head = f"{head} → {share(rate.value)}" if head else share(rate.value)
    gain = run.gain()
    said = f'<p class="value">{head} <small>pass@1</small></p><div class="bars">{"".join(bars)}</div>'
    if gain is not None:
        said += f"<p>{interval(gain, signed=True)}</p>"
    of_tasks = run.tasks[evaluated[-1]][ALL].size
    tried = "once" if run.tries == 1 else f"{run.tries} times"
    note = (
        f"{of_tasks:,} tasks, tried {tried} each. 95% intervals: Wilson's for the shares, with the effective "
        "number of rollouts per task; Agresti and Min's of the paired differences for the gain."
    )
    return card("Held-out tasks", f'{said}<p class="note">{note}</p>')


def _learning(run: RlRun) -> str:
    def both_ends(name: str) -> str:
        if not run.has(name):
            return missing()
        column = run.metrics[name][np.isfinite(run.metrics[name])]
        return f"{column[:FEW].mean():.3g} → {column[-FEW:].mean():.3g}"

    rows = {
        "entropy": both_ends("entropy"),
        "length": both_ends("length"),
        "log-prob gap, largest": _shown(float(np.nanmax(run.metrics["logprob_gap_max"])))
        if run.has("logprob_gap_max")
        else missing(),
        "groups trained on": _shown(run.total("groups"), "count"),
        "groups dropped": _shown(_left_out(run), "count"),
        "warnings": f"{len(run.warnings):,}",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows.items())
    note = f"means of the first and the last {FEW} steps"
    head = f'<p class="value">{both_ends("reward")} <small>reward</small></p>'
    if run.number("tokens") == 0:
        head += (
            "<p>Nothing was trained: in no step had a group different rewards. The weights are the initial ones.</p>"
        )
    return card("Training", f'{head}<dl>{listed}</dl><p class="note">{note}</p>')


def _left_out(run: RlRun) -> float | None:
    found = [run.total(name) for name in ("all_right", "all_wrong", "all_equal")]
    return sum(value for value in found if value is not None) if run.has("all_right") else None


def _time(run: RlRun) -> str:
    seconds = {phase: run.total(f"seconds_{phase}") for phase in PHASES}
    known = {phase: value for phase, value in seconds.items() if value is not None}
    whole = sum(known.values())
    rates = {}
    tokens = run.number("tokens")
    for name, made, phase in (("sampled", run.total("sampled_tokens"), "sampling"), ("trained", tokens, "training")):
        spent = known.get(phase)
        rates[f"tokens/s {name}"] = f"{made / spent:,.0f}" if made is not None and spent else missing()
    if not whole:
        return card("Time", f"<p>{missing('seconds_sampling in metrics.csv')}</p>")
    bar = "".join(
        f'<span style="width:{100 * value / whole:.2f}%;background:var(--series-{n})"></span>'
        for n, value in enumerate(known.values())
    )
    rows = {phase.replace("handover", "hand-over"): f"{share(v / whole)}, {duration(v)}" for phase, v in known.items()}
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in (rows | rates).items())
    head = f'<p class="value">{duration(whole)} <small>in steps</small></p><div class="stacked">{bar}</div>'
    return card("Time", f"{head}<dl>{listed}</dl>")


def _warnings(run: RlRun) -> str:
    listed = "".join(f"<li>step {step:,}: {escape(message)}</li>" for step, _, message in run.warnings[:20])
    more = f'<p class="note">and {len(run.warnings) - 20:,} more</p>' if len(run.warnings) > 20 else ""
    return f'<div class="card warnings"><h3>Warnings</h3><ul>{listed}</ul>{more}</div>'


def _heldout(run: RlRun) -> str:
    """Returns the first and last evaluation by domain, and the gain of pass@1."""
    if not run.domains:
        return card("", f"<p>{missing('evaluations.csv')}</p>")
    names = [name for name in run.evaluations[run.domains[-1]] if "@" in name]
    rows = []
    for domain in run.domains:
        figures = run.evaluations[domain]
        gain = run.gain(domain)
        for when in sorted({0, len(figures["step"]) - 1}):
            cells = [share(figures[name][when]) if name in figures else missing() for name in names]
            told = interval(gain, signed=True) if gain is not None and when else ""
            rows.append(
                [escape(domain), f"{figures['step'][when]:,.0f}", f"{figures['tasks'][when]:,.0f}", *cells, told]
            )
    return card("", table(["domain", "step", "tasks", *(escape(name) for name in names), "pass@1 gained"], rows))


def _labelled(run: RlRun) -> str:
    """Returns the figures of each domain, category and kind, at the first and the last evaluation."""
    rows = []
    for label, figures in run.labels.items():
        tasks = figures["tasks"][1]
        others = [name for name in figures if name not in ("tasks", "pass@1", "reward")]
        said = ", ".join(f"{escape(name)} {figures[name][0]:.2f} → {figures[name][1]:.2f}" for name in others)
        rows.append([escape(label), f"{tasks:,.0f}", *(share(value) for value in figures["pass@1"]), said])
    return card("", table(["label", "tasks", "pass@1 first", "last", "means of rewards and metrics"], rows))


def _rollouts(shown: Shown) -> str:
    if shown.problem:
        return card("", f"<p>{missing(f'{ROLLOUTS_FILE}: {shown.problem}')}</p>")
    left_out = f" Here are {escape(shown.left_out)}." if shown.left_out else ""
    note = (
        'Tokens: <span class="swatch positive">advantage above 0</span> <span class="swatch negative">below 0</span>, '
        'stronger for larger values in the group; <span class="swatch masked">masked</span> (factor 0); tokens of '
        f"the prompt are muted. Hover over a token for its log-prob, advantage and factor.{left_out}"
    )
    controls = (
        '<div class="controls"><button id="back" type="button">&lsaquo;</button>'
        '<select id="step" aria-label="step"></select><button id="on" type="button">&rsaquo;</button>'
        '<select id="group" aria-label="group"></select></div>'
    )
    data = f'<script type="application/json" id="rollouts-data">{as_json(shown.steps)}</script>'
    blank = "<noscript><p>The viewer needs JavaScript.</p></noscript>"
    return card("", f'<p class="note">{note}</p>{controls}<div id="shown-rollouts"></div>{blank}{data}')
