"""Pairs in the formats that people have, and records that are none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.config.reward import PairsConfig
from arcforge_core.contracts.chat import Message
from arcforge_core.errors import DataError
from arcforge_core.train.reward.pairs import Pairs, load_pairs, read_pairs

USER = {"role": "user", "content": "two and two?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("four", "five"))


def encode(messages: Sequence[Message]) -> list[int]:
    return [ord(letter) for message in messages for letter in message.role[0] + message.content]


def write(path: Path, records: list[Any]) -> str:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records))
    return str(path)


def load(path: str, most: int = 100, **options: Any) -> Pairs:
    return load_pairs(PairsConfig(files=[path], **{"heldout": 0.0, **options}), encode, most)


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        ({"prompt": "two and two?", "chosen": "four", "rejected": "five"}, {}),
        ({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}, {}),
        ({"chosen": [USER, GOOD], "rejected": [USER, BAD], "margin": 1}, {}),
        ({"q": "two and two?", "a": "four", "b": "five"}, {"prompt": "q", "chosen": "a", "rejected": "b"}),
    ],
)
def test_formats(tmp_path: Path, record: Any, fields: dict[str, str]) -> None:
    found = load(write(tmp_path / "p.jsonl", [record]), **fields)
    (pair,) = found.training
    assert bytes(pair.chosen) == b"utwo and two?afour" and bytes(pair.rejected) == b"utwo and two?afive"
    assert pair.margin == 1.0 and pair.longer == 0


def test_the_best_and_the_worst_rollout_of_a_group_are_a_pair(tmp_path: Path) -> None:
    rows = [
        {"group": "g", "rewards": {"reward": reward}, "messages": [USER, reply]}
        for reward, reply in ((0.25, BAD), (1.0, GOOD), (0.5, {"role": "assistant", "content": "perhaps"}))
    ]
    rows += [{"group": "h", "rewards": {"reward": 1.0}, "messages": [USER, GOOD]}, {"group": "i", "rewards": {}}]
    found = load(write(tmp_path / "rollouts.jsonl", rows))
    assert [(bytes(pair.chosen)[-4:], bytes(pair.rejected)[-4:], pair.margin) for pair in found.training] == [
        (b"four", b"five", 0.75)
    ]
    assert found.left_out == {"the rewards of the group are equal": 1}


BROKEN: list[tuple[Any, str]] = [
    ("{half", "not JSON"),
    ({"prompt": "p", "chosen": "c"}, "no field 'rejected'"),
    ({"prompt": "p", "chosen": 3, "rejected": "r"}, "neither a text nor a list"),
    ({"prompt": "p", "chosen": "same", "rejected": "same"}, "the replies are equal"),
    ({"prompt": "p", "chosen": [USER], "rejected": "r"}, "'chosen' does not end with an assistant"),
    ({"prompt": "p", "chosen": "c", "rejected": "r", "margin": "much"}, "'margin' must be a number"),
    ({"prompt": "p", "chosen": [{"role": "boss", "content": "x"}], "rejected": "r"}, "cannot be read"),
]


@pytest.mark.parametrize(("record", "reason"), BROKEN)
def test_records_that_are_no_pairs_are_counted_or_refused(tmp_path: Path, record: Any, reason: str) -> None:
    path = write(tmp_path / "p.jsonl", [record, {"prompt": "p", "chosen": "c", "rejected": "r"}])
    found = load(path)
    assert len(found.training) == 1
    ((left, count),) = found.left_out.items()
    assert reason in left and count == 1
    with pytest.raises(DataError, match=r"p\.jsonl:1: .*"):
        load(path, on_invalid="fail")


def test_replies_that_differ_only_in_what_is_cut_off_are_equal(tmp_path: Path) -> None:
    record = {"prompt": "p", "chosen": "a" + "x" * 50, "rejected": "b" + "x" * 50}
    with pytest.raises(DataError, match=r"no pair to train on \(1 left out: the replies are equal in the tokens"):
        load(write(tmp_path / "p.jsonl", [record]), most=10)


def test_a_prompt_is_on_one_side(tmp_path: Path) -> None:
    records = [{"prompt": f"p{n % 40}", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(200)]
    path = write(tmp_path / "p.jsonl", records)
    found = load(path, heldout=0.3)
    assert found.training and found.heldout and len(found.training) + len(found.heldout) == 200
    sides = [{bytes(pair.chosen).split(b"a")[0] for pair in side} for side in (found.training, found.heldout)]
    assert not sides[0] & sides[1]
    assert len(load(path, limit=7).training) == 7
    assert len(list(read_pairs(PairsConfig(files=[path])))) == 200
