"""Judgements of people: blind orders, a file that survives a kill, agreement, and its readers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from arcforge_core.config.reward import PairsConfig
from arcforge_core.errors import DataError
from arcforge_core.train.reward.pairs import Pair, read_pairs
from arcforge_rl.rewards.judge.labels import (
    FIRST,
    SECOND,
    TIE,
    Labels,
    anchors_of,
    judged_pair,
    judged_reply,
    order_of,
    read_items,
)
from arcforge_rl.rewards.judge.rubric import rubric_of
from arcforge_rl.rollouts.calibration import read_labels

RUBRIC = rubric_of({"criterion": [{"name": "kind", "choices": ["no", "yes"]}]})


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(folder: Path, count: int = 40) -> Path:
    rows = [
        {"prompt": f"p{n}", "chosen": f"good {n}", "rejected": f"bad {n}", "author_chosen": "h", "author_rejected": "m"}
        for n in range(count)
    ]
    return write(folder / "pairs.jsonl", list(rows))


def test_orders_are_blind_steady_and_a_labellers_own(tmp_path: Path) -> None:
    items = read_items(pairs(tmp_path), None)
    ann, bob = (order_of(items, name, 0) for name in ("ann", "bob"))
    assert ann == order_of(items[::-1], "ann", 0) != bob
    assert {item.key for item in ann} == {item.key for item in items}
    first = sum(item.replies[0].startswith("good") for item in ann)
    assert 8 < first < 32, "which reply comes first says nothing"
    assert all(item.authors == (("h", "m") if item.replies[0].startswith("good") else ("m", "h")) for item in ann)


def test_judged_pairs_feed_reward_training_and_calibration(tmp_path: Path) -> None:
    items = order_of(read_items(pairs(tmp_path, 3), None), "ann", 0)
    labels = Labels(tmp_path / "labels.jsonl", None)
    for item, answer in zip(items, (FIRST, SECOND, TIE), strict=True):
        labels.add(item, "ann", judged_pair(item, answer))
    known = read_labels(tmp_path / "labels.jsonl")
    assert [one.chosen for one in known[:2]] == [items[0].replies[0], items[1].replies[1]] and known[2].tie
    assert known[0].author_chosen == items[0].authors[0]
    found = [pair for _, pair in read_pairs(PairsConfig(files=[str(tmp_path / "labels.jsonl")]))]
    assert [one.chosen[0].content for one in found if isinstance(one, Pair)] == [one.chosen for one in known[:2]]
    assert found[2] == "neither reply is better"


def test_a_line_that_a_kill_cut_off_is_asked_again(tmp_path: Path) -> None:
    items = order_of(read_items(pairs(tmp_path, 3), None), "ann", 0)
    path = tmp_path / "labels.jsonl"
    labels = Labels(path, None)
    for item in items[:2]:
        labels.add(item, "ann", judged_pair(item, FIRST))
    path.write_bytes(path.read_bytes()[:-7])
    again = Labels(path, None)
    assert again.of("ann") == {items[0].key} and again.of("bob") == set()
    again.add(items[1], "ann", judged_pair(items[1], SECOND))
    assert Labels(path, None).of("ann") == {items[0].key, items[1].key}


def test_agreement_is_of_the_texts_and_not_of_the_places(tmp_path: Path) -> None:
    items = read_items(pairs(tmp_path, 8), None)
    labels = Labels(tmp_path / "labels.jsonl", None)
    for name in ("ann", "bob"):
        for item in order_of(items, name, 0):
            best = FIRST if item.replies[0].startswith("good") else SECOND
            wrong = name == "bob" and item.prompt == "p0"
            labels.add(item, name, judged_pair(item, TIE if wrong else best))
    figures = labels.figures()
    assert figures["labellers"] == 2 and figures["shared"] == 8 and figures["agreement"] == 7 / 8
    assert 0.5 < figures["kappa"] < 1.0


def test_criteria_agree_one_by_one_and_become_anchors(tmp_path: Path) -> None:
    rows = [{"prompt": f'p"{n}\n', "reply": f"r\\{n}\x7f"} for n in range(4)]
    items = read_items(write(tmp_path / "items.jsonl", list(rows)), RUBRIC)
    labels = Labels(tmp_path / "labels.jsonl", RUBRIC)
    for name in ("ann", "bob"):
        for number, item in enumerate(items):
            labels.add(item, name, judged_reply(item, {"kind": "yes" if number % 2 else "no"}))
    assert labels.figures()["kappa"] == 1.0
    content = tomllib.loads('[[criterion]]\nname = "kind"\nchoices = ["no", "yes"]\n' + anchors_of(labels.records))
    anchors = rubric_of(content).anchors
    assert [one.reply for one in anchors[:4]] == [row["reply"] for row in rows] and anchors[1].verdict["kind"] == "yes"


@pytest.mark.parametrize(
    ("record", "refused"),
    [
        ({"chosen": "a", "rejected": "b"}, r"prompt=None must be a text"),
        ({"prompt": "p", "chosen": "a"}, r"chosen and rejected must be two texts"),
        ({"prompt": "p", "chosen": "a", "rejected": "a"}, r"the replies are equal"),
        ({"prompt": "p", "replies": ["a", "b", "c"]}, r"replies must be two texts"),
        ({"prompt": "p", "replies": ["a", "b"], "authors": "me"}, r"authors must be two texts"),
    ],
)
def test_bad_items_are_named(tmp_path: Path, record: dict[str, object], refused: str) -> None:
    path = write(tmp_path / "items.jsonl", [{"prompt": "p", "chosen": "one", "rejected": "two"}, record])
    with pytest.raises(DataError, match=rf"items\.jsonl:2: {refused}"):
        read_items(path, None)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^items=.*gone\.jsonl: no such file"):
        read_items(tmp_path / "gone.jsonl", None)
    with pytest.raises(DataError, match="has no item"):
        read_items(write(tmp_path / "empty.jsonl", []), None)
    twice = write(
        tmp_path / "twice.jsonl", [{"prompt": "p", "replies": ["a", "b"]}, {"prompt": "p", "replies": ["b", "a"]}]
    )
    with pytest.raises(DataError, match=r":2: is in the file already"):
        read_items(twice, None)
    with pytest.raises(DataError, match=r"output=.*twice\.jsonl:1: is no judgement of pairs"):
        Labels(twice, None)
    with pytest.raises(DataError, match=r"is no judgement of replies by this rubric"):
        Labels(twice, RUBRIC)
