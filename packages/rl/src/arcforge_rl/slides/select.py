"""Rejection sampling of decks: by page, by deck and best of N; defective pages of kept decks are masked."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.data.conversations.records import find_files, read_rows
from arcforge_core.errors import DataError
from arcforge_rl.slides.brief import Brief, brief_of
from arcforge_rl.slides.judge import Verdict, document_of, judge
from arcforge_rl.slides.rules import Cost
from arcforge_rl.slides.spans import masked

LIKE = 0.8
"""Share of common words from which two pages count as alike."""


@dataclass(frozen=True)
class Candidate:
    """A reply that is a deck.

    Attributes:
        task: key of its task.
        prompt: the question.
        reply: the whole reply.
        document: its HTML.
        verdict: of the rules.
    """

    task: str
    prompt: str
    reply: str
    document: str
    verdict: Verdict

    @property
    def pages(self) -> tuple[bool, ...]:
        """Returns whether each page is without defects."""
        return tuple(score > 0 for score in self.verdict.pages)


@dataclass(frozen=True)
class Selected:
    """A selection.

    Attributes:
        records: of kept decks, for fine-tuning.
        kept: the decks.
        rejected: number of replies by reason.
        masked: number of pages that are not trained on.
    """

    records: list[dict[str, Any]]
    kept: list[Candidate]
    rejected: Counter[str]
    masked: int


def read_rollouts(files: Sequence[str]) -> list[tuple[str, str, str]]:
    """Returns task, prompt and reply of the rollouts of ``environment=slides`` in files.

    Raises:
        DataError: a file cannot be read, or has none.
    """
    found = []
    for path in find_files(files, "rollouts"):
        for row in read_rows(path):
            record = row.record or {}
            if record.get("domain") != "slides" or record.get("failure"):
                continue
            messages: list[Mapping[str, Any]] = record.get("messages") or []
            ended = record.get("finish_reason") == "stop" and len(messages) == 2
            found.append((str(record.get("task")), str(messages[0]["content"]) if messages else "",
                          str(messages[1]["content"]) if ended else ""))  # fmt: skip
    if not found:
        raise DataError(f"rollouts={list(files)}: no rollout of environment=slides is in them")
    return found


def candidates(rollouts: Iterable[tuple[str, str, str]]) -> Iterable[Candidate]:
    """Yields rollouts with their verdicts; replies without a document have one without pages."""
    for task, prompt, reply in rollouts:
        brief: Brief = brief_of(prompt)
        document = document_of(reply)
        yield Candidate(task, prompt, reply, document, judge(document, brief))


def select(found: Iterable[Candidate], least: float, per_task: int) -> Selected:
    """Selects decks.

    Args:
        found: all replies.
        least: share of pages without defects that a kept deck has.
        per_task: maximum number of decks of a task, the best first.
    """
    tasks: dict[str, list[Candidate]] = {}
    rejected: Counter[str] = Counter()
    for one in found:
        if reason := flaw(one, least):
            rejected[reason] += 1
        else:
            tasks.setdefault(one.task, []).append(one)
    kept: list[Candidate] = []
    records, count = [], 0
    for several in tasks.values():
        best = sorted(several, key=lambda one: (-one.verdict.score, len(one.document)))
        seen: set[str] = set()
        left = per_task
        for one in best:
            parts = masked(one.reply, one.pages)
            head, _, body = one.document.partition("<body")
            skeleton = head + re.sub(r">[^<]+<", "><", body)
            if reason := (
                "its pages cannot be told apart" if parts is None
                else "equals a kept deck" if skeleton in seen
                else "is good, but others were preferred" if not left
                else ""
            ):  # fmt: skip
                rejected[reason] += 1
                continue
            seen.add(skeleton)
            left -= 1
            kept.append(one)
            count += one.pages.count(False)
            content = one.reply if all(one.pages) else parts
            messages = [{"role": "user", "content": one.prompt}, {"role": "assistant", "content": content}]
            records.append({"source": "slides", "thinking": "off", "task": one.task, "messages": messages})
    return Selected(records, kept, rejected, count)


def flaw(one: Candidate, least: float) -> str:
    """Returns why a deck is not kept, or an empty text: page by page, then as a whole."""
    if not one.document:
        return "is no HTML document"
    if tricks := one.verdict.broken(Cost.DECK):
        return f"breaks {tricks[0]}"
    if len(one.verdict.layouts) != len(one.pages):
        return "has another number of pages"
    if not any(one.pages):
        return f"has no good page: {one.verdict.broken(Cost.PAGE)[0]}"
    if sum(one.pages) < least * len(one.pages):
        return "has too few good pages"
    texts = [{word for part in page.paragraphs for word in part.text.lower().split()} for page in one.verdict.layouts]
    for n, first in enumerate(texts):
        for second in texts[n + 1 :]:
            if first and len(first & second) >= LIKE * len(first | second):
                return "says the same on two pages"
    return ""


def write(selected: Selected, folder: Path) -> Path:
    """Writes ``kept/slides.jsonl`` below a folder and returns it."""
    path = folder / "kept" / "slides.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(record, ensure_ascii=False) for record in selected.records)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
