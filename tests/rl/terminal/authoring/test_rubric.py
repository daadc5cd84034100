"""Rules that a draft must keep before it is played."""

import dataclasses
import random

import pytest

from arcforge_rl.terminal.authoring.rubric import complaints_about
from arcforge_rl.terminal.drafts import Draft, rule
from arcforge_rl.terminal.table import FAMILIES

GOOD = Draft(
    "Count the lines of every text in `/app/texts`, and write their sum as one number to `/app/sum.txt`, in decimals.",
    {"texts/one.txt": "one\ntwo\n", "texts/two.txt": "three\n"},
    [rule("lines", "sum.txt", lines=["3"])],
    "cat texts/* | wc -l > sum.txt",
    ["echo 2 > sum.txt", ": > sum.txt"],
)
LONG = "the wanted line of the result"


def changed(**fields):
    return dataclasses.replace(GOOD, **fields)


@pytest.mark.parametrize("family", FAMILIES)
def test_template_families_keep_the_rules(family):
    assert complaints_about(FAMILIES[family](random.Random(5))) == []


def test_a_good_draft_has_no_complaint():
    assert complaints_about(GOOD) == []
    assert complaints_about(changed(rules=[], check="raise SystemExit(0)", results=["/app/sum.txt"])) == []
    assert complaints_about(changed(collect=["x"], rules=[rule("lines", "/logs/artifacts/o", lines=["3"])])) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"instruction": "Do it."}, "must have 80 to 8000"),
        ({"rules": []}, "either by rules or by a program"),
        ({"check": "x", "results": ["/app/sum.txt"]}, "either by rules or by a program"),
        ({"solve": " \n"}, "no solution"),
        ({"cheats": ["x", "x"]}, "1 cheats; must be at least 2"),
        ({"files": {"../out": "x"}}, "'../out': must be a relative path"),
        ({"files": {"/etc/passwd": "x"}}, "'/etc/passwd': must be a relative path"),
        ({"files": {"large": b"0" * (5 << 20)}}, "more than 4 MiB"),
        ({"packages": ["curl; rm -rf /"]}, "must be the name of a Debian package"),
        ({"packages": ["--install"]}, "must be the name of a Debian package"),
        ({"rules": [rule("lines", "total.txt", lines=["3"])]}, "/app/total.txt is judged, and"),
        ({"rules": [], "check": "x", "results": ["sum.txt"]}, "must be an absolute path"),
        ({"rules": [], "check": "x", "results": ["/app/../sum.txt"]}, "must be an absolute path"),
        ({"rules": [rule("sums", "sum.txt")]}, "rule 'sums' is none of"),
        ({"rules": [rule("lines", "sum.txt", lines=[LONG])], "instruction": GOOD.instruction + LONG}, "tells a part"),
        ({"rules": [rule("lines", "sum.txt", lines=[LONG])], "solve": f"echo '{LONG}' > sum.txt"}, "recites a part"),
    ],
)  # fmt: skip
def test_drafts_that_are_refused(fields, reason):
    assert any(reason in complaint for complaint in complaints_about(changed(**fields)))


def test_values_that_the_world_has_may_be_said():
    files = {"texts/one.txt": f"{LONG}\n"}
    draft = changed(
        files=files, rules=[rule("lines", "sum.txt", lines=[LONG])], solve=f"grep '{LONG}' texts/* > sum.txt"
    )
    assert complaints_about(draft) == []
