"""Judgements of people: the items, the file that keeps every judgement, and how much people agree."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.data.conversations.records import read_rows
from arcforge_core.errors import DataError
from arcforge_rl.rewards.judge.agreement import CHOSEN, REJECTED, TIED, LabelledPair, kappa, oriented
from arcforge_rl.rewards.judge.rubric import ABSTAIN, Rubric

FIRST, SECOND, TIE = "1", "2", "="
"""Answers about a pair: the first reply is better, the second, or neither."""


@dataclass(frozen=True)
class Item:
    """A prompt with one reply or two, for a person to judge.

    Attributes:
        prompt: the question, as text.
        replies: one that is judged by criteria, or two that are compared.
        authors: of the replies; empty where unknown. Never shown.
    """

    prompt: str
    replies: tuple[str, ...]
    authors: tuple[str, ...]

    @property
    def key(self) -> str:
        """Identifies prompt and replies, in whichever order the file has them."""
        content = json.dumps([self.prompt, sorted(self.replies)])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_items(path: Path, rubric: Rubric | None) -> list[Item]:
    """Returns the items of a file: single replies with a rubric, else pairs.

    Raises:
        DataError: it cannot be read, is empty, has an item twice, or a record is no item.
    """
    if not path.exists():
        raise DataError(f"items={path}: no such file")
    found: dict[str, Item] = {}
    for row in read_rows(path):
        where = f"items={row.file}:{row.line}"
        if row.record is None:
            raise DataError(f"{where}: {row.reason}")
        item = _item(row.record, where, rubric is not None)
        if item.key in found:
            raise DataError(f"{where}: is in the file already")
        found[item.key] = item
    if not found:
        raise DataError(f"items={path}: has no item")
    return list(found.values())


def _item(record: Mapping[str, Any], where: str, single: bool) -> Item:
    names: list[str]
    replies: Any
    authors: Any
    if single:
        replies, authors, names = [record.get("reply")], [record.get("author", "")], ["reply"]
    elif "replies" in record:
        replies, authors, names = record["replies"], record.get("authors", ["", ""]), ["replies"]
    else:
        names = ["chosen", "rejected"]
        replies, authors = ([record.get(f"{front}{name}", back) for name in names] for front, back in FIELDS)
    if not isinstance(record.get("prompt"), str):
        raise DataError(f"{where}: prompt={record.get('prompt')!r} must be a text")
    for what, values in ((" and ".join(names), replies), ("authors", authors)):
        if not isinstance(values, list) or len(values) != 2 - single or not all(isinstance(one, str) for one in values):
            raise DataError(f"{where}: {what} must be {'a text' if single else 'two texts'}, not {values!r:.100}")
    if not single and replies[0] == replies[1]:
        raise DataError(f"{where}: the replies are equal")
    return Item(record["prompt"], tuple(replies), tuple(authors))


FIELDS: tuple[tuple[str, Any], ...] = (("", None), ("author_", ""))
"""Prefixes of the names of replies, and the value where the record has none."""


def order_of(items: Sequence[Item], labeller: str, seed: int) -> list[Item]:
    """Returns the items in the order of a labeller, each with its replies in an order of its own."""
    shuffled = sorted(items, key=lambda item: item.key)
    random.Random(f"{seed}/{labeller}").shuffle(shuffled)
    found = []
    for item in shuffled:
        turned = random.Random(f"{seed}/{labeller}/{item.key}").random() < 0.5
        step = -1 if (turned != (list(item.replies) != sorted(item.replies))) else 1
        found.append(Item(item.prompt, item.replies[::step], item.authors[::step]))
    return found


def judged_pair(item: Item, answer: str) -> dict[str, Any]:
    """Returns the record of a comparison: a pair as reward training and ``calibrate`` read it.

    Args:
        item: as it was shown.
        answer: `FIRST`, `SECOND` or `TIE`.
    """
    step = -1 if answer == SECOND else 1
    (chosen, rejected), authors = item.replies[::step], item.authors[::step]
    record: dict[str, Any] = {"prompt": item.prompt, "chosen": chosen, "rejected": rejected, "tie": answer == TIE}
    return record | {f"author_{side}": name for side, name in zip((CHOSEN, REJECTED), authors, strict=True) if name}


def judged_reply(item: Item, verdict: Mapping[str, str]) -> dict[str, Any]:
    """Returns the record of a reply that was judged by criteria."""
    return {"prompt": item.prompt, "reply": item.replies[0], "verdict": dict(verdict)}


class Labels:
    """The file of judgements. Each is on disk before the next question; a line that a kill cut off is dropped.

    Args:
        path: jsonl, of one kind of judgements.
        rubric: of the criteria; None for pairs.

    Raises:
        DataError: it cannot be read, or has other records.
    """

    def __init__(self, path: Path, rubric: Rubric | None) -> None:
        self.path, self.rubric = path, rubric
        self.records: list[dict[str, Any]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked("a+b") as file:
                file.seek(0)
                content = file.read()
                whole = content.rfind(b"\n") + 1
                if whole < len(content):
                    file.truncate(whole)
        except OSError as error:
            raise DataError(f"output={path}: cannot be used: {error.strerror}") from error
        for number, line in enumerate(content[:whole].splitlines(), 1):
            self.records.append(self._known(line, f"output={path}:{number}"))

    def _known(self, line: bytes, where: str) -> dict[str, Any]:
        needed = ("prompt", "item", "labeller", *(("chosen", "rejected") if self.rubric is None else ("reply",)))
        try:
            record = json.loads(line)
            usable = isinstance(record, dict) and all(isinstance(record.get(name), str) for name in needed)
        except ValueError:
            usable = False
        if usable and self.rubric is not None:
            verdict = record.get("verdict")
            usable = isinstance(verdict, dict) and all(one.name in verdict for one in self.rubric.criteria)
        if not usable:
            kind = "pairs" if self.rubric is None else "replies by this rubric"
            raise DataError(f"{where}: is no judgement of {kind}; name another output")
        found: dict[str, Any] = record
        return found

    def of(self, labeller: str) -> set[str]:
        """Returns the keys of the items that someone has judged."""
        return {str(record["item"]) for record in self.records if record["labeller"] == labeller}

    def add(self, item: Item, labeller: str, judgement: Mapping[str, Any]) -> None:
        """Writes a judgement, and returns when it is on disk."""
        record = {**judgement, "item": item.key, "labeller": labeller}
        with self._locked("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)

    @contextmanager
    def _locked(self, mode: str) -> Iterator[Any]:
        """Opens the file for one writer at a time."""
        with self.path.open(mode) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def figures(self) -> dict[str, float]:
        """Returns how far the people agree: items that two or more judged (``shared``), over all pairs of people the
        share of equal judgements (``agreement``) and the mean of Cohen's kappa (``kappa``, with a rubric the mean over
        its criteria)."""
        by_person: dict[str, dict[str, dict[str, str]]] = {}
        for record in self.records:
            by_person.setdefault(record["labeller"], {})[record["item"]] = self._verdicts(record)
        found = {"judgements": float(len(self.records)), "labellers": float(len(by_person))}
        kappas, equal, shared_items = list[float](), list[bool](), set[str]()
        for one, other in itertools.combinations(by_person.values(), 2):
            shared = sorted(one.keys() & other.keys())
            shared_items |= set(shared)
            for name in one[shared[0]] if shared else ():
                sides = [[person[item][name] for item in shared] for person in (one, other)]
                kappas.append(kappa(*sides))
                equal += [a == b for a, b in zip(*sides, strict=True)]
        if equal:
            found |= {"shared": float(len(shared_items)), "agreement": sum(equal) / len(equal)}
            found["kappa"] = sum(kappas) / len(kappas)
        return found

    def _verdicts(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Returns a judgement by question, independent of the order that was shown."""
        if self.rubric is not None:
            return {one.name: str(record["verdict"][one.name]) for one in self.rubric.criteria}
        pair = LabelledPair(record["prompt"], record["chosen"], record["rejected"], bool(record.get("tie")))
        return {"better": oriented(pair, TIED if pair.tie else CHOSEN)}


@dataclass
class Labelling:
    """The items that one person still judges.

    Attributes:
        labeller: the person.
        items: all, in their order, as they are shown.
        labels: the file.
        rubric: criteria; None for pairs.
    """

    labeller: str
    items: list[Item]
    labels: Labels
    rubric: Rubric | None

    def __post_init__(self) -> None:
        done = self.labels.of(self.labeller)
        self.left = [item for item in self.items if item.key not in done]

    @property
    def done(self) -> int:
        """Judged items of this file."""
        return len(self.items) - len(self.left)

    def questions(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Returns the questions about an item by name, with the accepted answers."""
        if self.rubric is None:
            return {"better": ("Which reply is better?", (FIRST, SECOND, TIE))}
        return {one.name: (one.description or one.name, (*one.choices, ABSTAIN)) for one in self.rubric.criteria}

    def judge(self, item: Item, answers: Mapping[str, str]) -> None:
        """Keeps the answers about an item.

        Args:
            item: of `left`.
            answers: an accepted answer by question.
        """
        judgement = judged_pair(item, answers["better"]) if self.rubric is None else judged_reply(item, answers)
        self.labels.add(item, self.labeller, judgement)
        self.left.remove(item)


def anchors_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns judged replies as ``[[anchor]]`` tables of a rubric."""
    tables = []
    for record in records:
        verdict = ", ".join(f"{name} = {_quoted(str(choice))}" for name, choice in record["verdict"].items())
        texts = "".join(f"{name} = {_quoted(record[name])}\n" for name in ("prompt", "reply"))
        tables.append(f"[[anchor]]\n{texts}verdict = {{ {verdict} }}\n")
    return "\n".join(tables)


def _quoted(text: str) -> str:
    """A basic string of TOML: JSON's, whose escapes it shares except of DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
