"""The section of a run's report about played conversations."""

from __future__ import annotations

from html import escape
from typing import Any

from arcforge_core.eval.conversations.figures import ALL, COLUMNS, RIGHT, cell
from arcforge_core.report.html import card, table


def generation_section(evaluations: list[dict[str, Any]]) -> str:
    """Returns the first and last evaluation by source, all evaluations over all sources, and transcripts."""
    first, last = evaluations[0], evaluations[-1]
    sides = [(_step(first), first), (_step(last), last)] if len(evaluations) > 1 else [(_step(last), last)]
    rows = [
        [escape(source), when, *(escape(cell(one["figures"][source], name)) for name in COLUMNS)]
        for source in last["figures"]
        for when, one in sides
        if source in one["figures"]
    ]
    parts = [card("", table(["source", "at", *COLUMNS.values()], rows))]
    if len(evaluations) > 2:
        steps = [[_step(one), *(escape(cell(one["figures"][ALL], name)) for name in COLUMNS)] for one in evaluations]
        parts.append(card("All sources, step by step", table(["at", *COLUMNS.values()], steps)))
    for when, one in reversed(sides):
        if one["samples"]:
            shown = "".join(_transcript(row) for row in one["samples"])
            parts.append(card(when, f'<div class="functions">{shown}</div>'))
    note = (
        "Held-out conversations, played by generation: exact answers with their 95% interval (Wilson), the share of "
        "valid calls, and of messages that follow their thinking mode. Text not written by the model is muted."
    )
    rejected = f" {last['rejected']:,} records could not be played." if last["rejected"] else ""
    return f'<p class="note">{escape(note + rejected)}</p><div class="stack">{"".join(parts)}</div>'


def _step(evaluation: dict[str, Any]) -> str:
    step = int(evaluation["step"])
    return f"step {step:,}" if step else "before training"


def _transcript(row: dict[str, Any]) -> str:
    verdict = str(row["verdict"])
    sign = '<span class="ok">✓</span>' if verdict == RIGHT else '<span class="failed">✗</span>'
    question = str(row["messages"][0]["content"])[:60]
    expected = " · ".join(str(answer["expected"]) for answer in row["answers"])
    head = f"{sign} {escape(verdict)} <code>{escape(question)}</code>"
    note = (
        f'<p class="note">{escape(row["source"])}, thinking {escape(row["thinking"])}; expected {escape(expected)}</p>'
    )
    lines = "\n".join(_message(message) for message in row["messages"])
    return f"<details><summary>{head}</summary>{note}<pre>{lines}</pre></details>"


def _message(message: dict[str, Any]) -> str:
    """Formats a message; older runs stored messages in the format of chat templates, with calls as functions."""
    role, content = str(message["role"]), escape(str(message["content"]))
    if role != "assistant":
        return f'<span class="given">{escape(role)}: {content}</span>'
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    parts = [f"({escape(str(reasoning))})"] if reasoning else []
    for call in message.get("tool_calls", ()):
        function = call.get("function", call)
        arguments = ", ".join(f"{name}={value!r}" for name, value in function["arguments"].items())
        parts.append(f"→ {escape(function['name'])}({escape(arguments)})")
    return "assistant: " + " ".join([*parts, content] if content else parts)
