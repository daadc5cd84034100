"""Verdicts on tests: signed reports of a run, and the lists of tests that a repair must turn and keep."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
BROKEN = ""
"""Key in `TestRun.texts` of the last words of a runner that gave up."""


@dataclass(frozen=True)
class TestRun:
    """The tests of one run.

    Attributes:
        outcomes: test -> ``passed``, ``failed`` or ``skipped``; a test without a report is absent.
        texts: test or file -> its failure, as pytest shows it.
        uncollected: files that could not be collected.
        whole: whether the run ended by itself and every line of its report was signed and in order.
        reason: why not.
        late: whether the time limit ended it, so that its verdict may be the machine's doing.
        endless: tests that a time limit of their own ended, and which count as failed.
    """

    __test__ = False

    outcomes: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    uncollected: tuple[str, ...] = ()
    whole: bool = False
    reason: str = ""
    late: bool = False
    endless: frozenset[str] = frozenset()

    def passed(self, test: str) -> bool:
        """Returns whether a test was reported as passed; one without a report was not."""
        return self.outcomes.get(test) == PASSED


def read_run(output: bytes, key: str) -> TestRun:
    """Reads the reports of ``inside.py``.

    A test with two reports of its call has failed, and so has one with a failed set-up or teardown. Lines that are not
    signed, or not in order, make the run no whole one.
    """
    outcomes: dict[str, str] = {}
    texts: dict[str, str] = {}
    uncollected: list[str] = []
    endless: set[str] = set()
    ended, reason = False, ""
    for number, line in enumerate(output.split(b"\n")[:-1]):
        signature, _, text = line.partition(b" ")
        wanted = hmac.new(key.encode(), text, hashlib.sha256).hexdigest().encode()
        if not hmac.compare_digest(signature, wanted):
            reason = reason or f"line {number} of the report is not signed"
            continue
        event = json.loads(text)
        if event["number"] != number or ended:
            reason = reason or f"line {number} of the report is out of order"
        if "test" in event:
            test = event["test"]
            outcomes[test] = event["outcome"] if test not in outcomes else FAILED
            if event["text"]:
                texts[test] = event["text"]
            if event.get("slow"):
                endless.add(test)
        elif "uncollected" in event:
            uncollected.append(event["uncollected"])
            texts[event["uncollected"]] = event["text"]
        elif "broke" in event:
            texts[BROKEN] = event["broke"]
            lines = [line for line in event["broke"].splitlines() if not line.startswith(" ")]
            reason = reason or f"the run broke: {lines[-1][:200] if lines else event['broke'].strip()[:200]}"
        elif "end" in event:
            ended = True
    if not ended:
        reason = reason or "the run did not end by itself"
    return TestRun(outcomes, texts, tuple(uncollected), ended and not reason, reason, endless=frozenset(endless))


def stable(runs: Sequence[TestRun]) -> dict[str, str]:
    """Returns the outcomes of the tests that are equal in all runs; others are flaky and left out."""
    names = set.intersection(*[set(run.outcomes) for run in runs]) if runs else set()
    return {name: runs[0].outcomes[name] for name in sorted(names) if len({run.outcomes[name] for run in runs}) == 1}


def turned(before: Sequence[TestRun], after: Sequence[TestRun]) -> tuple[list[str], list[str]]:
    """Returns the tests that fail before and pass after, and those that pass in both, without flaky ones.

    A test that is not reported before the repair, as its file cannot be collected, has failed there.
    """
    good = [name for name, outcome in stable(after).items() if outcome == PASSED]
    reported = {name for run in before for name in run.outcomes}
    old = stable(before)
    fixed = [name for name in good if old.get(name) == FAILED or name not in reported]
    return fixed, [name for name in good if old.get(name) == PASSED]
