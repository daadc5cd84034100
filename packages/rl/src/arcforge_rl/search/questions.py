"""Questions with their answers, as ``arcforge-env search`` keeps them in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arcforge_core.contracts.environment import Reply, Score
from arcforge_core.data.sources.readers import NotJson, json_lines
from arcforge_core.errors import DataError
from arcforge_rl.search.graph import GraphCorrection
from arcforge_rl.search.pages import Page, digest_of, read_pages, rows_of
from arcforge_rl.search.query import QueryPart, as_data, part_of

PAGES, QUESTIONS, REPORT, CORRECTIONS = "pages.jsonl", "questions.jsonl", "report.json", "corrections.jsonl"
"""Files of a folder."""
QUOTES = "`\"'\u201c\u201d\u2018\u2019*"


@dataclass(frozen=True)
class SearchQuestion:
    """A question.

    Attributes:
        text: that the solver reads.
        part: the tree that it describes; the root's entity is the answer.
        answers: names that count as the answer, its title first.
        folded: those that count in any case, case-folded: no other entity has such a name.
        others: titles that fit a part of what it says; wrong answers.
        group: of the answer, which decides the side of the split.
    """

    text: str
    part: QueryPart
    answers: tuple[str, ...]
    folded: tuple[str, ...]
    others: tuple[str, ...]
    group: str

    @property
    def key(self) -> str:
        """Identifies it in its corpus."""
        return f"search/{self.group}/{self.part.entity}"

    def as_row(self) -> dict[str, Any]:
        """Returns it as plain data."""
        lists = {"answers": [*self.answers], "folded": [*self.folded], "others": [*self.others]}
        return {"text": self.text, **lists, "group": self.group, "part": as_data(self.part)}


def stated(reply: Reply) -> tuple[str, str]:
    """Returns the answer of a reply and why it has none: that of the only ``Answer:`` line, else the last line."""
    if reply.finish_reason != "stop":
        return "", f"the reply was cut off ({reply.finish_reason})"
    lines = [line.strip().strip(QUOTES).strip() for line in reply.text.split("\n") if line.strip()]
    if not lines:
        return "", "no answer"
    labelled = {line[7:].strip().strip(QUOTES).strip() for line in lines if line[:7].casefold() == "answer:"}
    if len(labelled) > 1:
        return "", "several answers"
    last = lines[-1]
    if labelled and last[:7].casefold() != "answer:":
        return "", "the answer is not on the last line"
    return (labelled.pop() if labelled else last).removesuffix(".").strip().strip(QUOTES), ""


def verdict(question: SearchQuestion, reply: Reply) -> Score:
    """Returns 1 if the reply's answer is one of the names of the entity, and nothing else."""
    said, why = stated(reply)
    right = said in question.answers or said.casefold() in question.folded
    return Score(float(bool(said) and right), why or f"said {said[:80]!r}")


def write_folder(
    folder: Path,
    pages: Sequence[Page],
    questions: Sequence[SearchQuestion],
    corrections: Sequence[GraphCorrection],
    report: Mapping[str, Any],
) -> None:
    """Writes pages, questions, corrections of the graph and report, each file whole or not at all.

    Raises:
        OSError: a file cannot be written.
    """
    report = {"digest": digest_of(pages), **report}
    texts = {
        PAGES: "".join(rows_of(pages)),
        QUESTIONS: "".join(json.dumps(one.as_row()) + "\n" for one in questions),
        CORRECTIONS: "".join(json.dumps(asdict(one)) + "\n" for one in corrections),
        REPORT: json.dumps(report, indent=1) + "\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        partial = folder / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)


def read_report(folder: Path) -> dict[str, Any]:
    """Returns the report of a folder.

    Raises:
        DataError: it is missing or malformed.
    """
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / REPORT} cannot be read: {error}") from error
    if not isinstance(report, dict) or not {"digest", "filters", "reasons"} <= report.keys():
        raise DataError(f"{folder / REPORT} cannot be read: it is no report of arcforge-env search")
    return report


def corpus_of(folder: Path) -> list[str]:
    """Returns the sources of a folder's pages, as ``--corpus`` named them.

    Raises:
        DataError: its report is missing or malformed.
    """
    return [str(one) for one in read_report(folder).get("corpus", ())]


def read_folder(folder: Path) -> tuple[list[Page], list[SearchQuestion]]:
    """Returns the pages and the questions of a folder.

    Raises:
        DataError: a file is missing or malformed, or the pages are not those of the questions.
    """
    if not (folder / QUESTIONS).is_file():
        raise DataError(f"{folder} has no {QUESTIONS}: arcforge-env search build --to {folder} makes them")
    pages = read_pages(folder / PAGES)
    if read_report(folder).get("digest") != digest_of(pages):
        raise DataError(f"{folder / PAGES} has changed since the questions were made")
    titles = {page.title for page in pages}
    found: list[SearchQuestion] = []
    for number, row in json_lines(folder / QUESTIONS):
        where = f"{folder / QUESTIONS}:{number}"
        if isinstance(row, NotJson):
            raise DataError(f"{where}: not JSON: {row.reason}")
        try:
            answers, folded, others = (tuple(row[name]) for name in ("answers", "folded", "others"))
            one = SearchQuestion(row["text"], part_of(row["part"]), answers, folded, others, row["group"])
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{where}: is no question: {type(error).__name__}: {error}") from error
        if one.answers[:1] != (one.part.entity,) or one.part.entity not in titles:
            raise DataError(f"{where}: the answer is no page")
        found.append(one)
    if not found:
        raise DataError(f"{folder / QUESTIONS} has no question")
    return pages, found
