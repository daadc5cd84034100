"""Reports are believed only whole, signed and in order; a test without a report has failed."""

import hashlib
import hmac
import json

from arcforge_rl.swe.languages.python.planting import canary
from arcforge_rl.swe.languages.signed import planted, without_inserted, without_planted
from arcforge_rl.swe.results import FAILED, PASSED, TestRun, read_run, stable, turned
from arcforge_rl.swe.setup import LEAST, reason_of

KEY = "k"


def report(*events, key=KEY):
    lines = []
    for number, event in enumerate(events):
        text = json.dumps({"number": number, **event}).encode()
        lines.append(hmac.new(key.encode(), text, hashlib.sha256).hexdigest().encode() + b" " + text + b"\n")
    return b"".join(lines)


def ran(test, outcome):
    return {"test": test, "when": "call", "outcome": outcome, "text": "E  1" if outcome == "failed" else ""}


def test_a_whole_run():
    run = read_run(report(ran("t::a", "passed"), ran("t::b", "failed"), {"end": 1}), KEY)
    assert run.whole and run.passed("t::a") and not run.passed("t::b") and not run.passed("t::c")
    assert run.texts == {"t::b": "E  1"} and not run.endless
    slow = read_run(report({**ran("t::a", "failed"), "slow": True}, {**ran("t::b", "passed"), "slow": False}), KEY)
    assert slow.endless == {"t::a"}


def test_runs_that_are_not_whole():
    good = report(ran("t::a", "passed"), {"end": 0})
    first, second = good.splitlines(keepends=True)
    for output, reason in (
        (first, "did not end by itself"),
        (report(ran("t::a", "passed"), {"end": 0}, key="other"), "not signed"),
        (b"forged\n" + good, "line 0 of the report is not signed"),
        (second + first, "out of order"),
        (first + second + second, "out of order"),
        (b"", "did not end"),
    ):
        run = read_run(output, KEY)
        assert not run.whole and reason in run.reason


def test_a_test_that_is_reported_twice_has_failed():
    run = read_run(report(ran("t::a", "passed"), ran("t::a", "passed"), {"end": 0}), KEY)
    assert run.outcomes == {"t::a": "failed"}


def test_flaky_tests_are_left_out():
    runs = [TestRun({"a": "passed", "b": first, "c": "failed"}) for first in ("passed", "failed", "passed")]
    assert stable(runs) == {"a": "passed", "c": "failed"}
    after = [TestRun({"a": "passed", "b": "passed", "c": "passed", "new": "passed"})] * 3
    assert turned(runs, after) == (["c", "new"], ["a"])


def test_planted_tests_must_be_reported_as_failed():
    words, tests = planted(["assert"])
    path, count = f"tests/test_{'_'.join(words)}.py", len(tests)
    failing = {f"{path}::{n}": "failed" for n in range(count)}
    assert canary(words, tests).count("def test_") == count >= 1 and all(one.made != one.wanted for one in tests)
    good = without_planted(TestRun({**failing, "t::a": "passed"}, whole=True), {path: count})
    assert good.whole and good.outcomes == {"t::a": "passed"}
    for forged in ({**failing, f"{path}::0": "passed"}, {"t::a": "passed"}):
        assert not without_planted(TestRun(forged, whole=True), {path: count}).whole


def test_tests_planted_in_a_file_must_fail_if_the_file_is_reported():
    planted = {"t": {"order copy"}, "u": {"none"}}
    run = TestRun({"t::a": "passed", "t::order copy": "failed"}, whole=True)
    assert without_inserted(run, planted) == TestRun({"t::a": "passed"}, whole=True)
    assert not without_inserted(TestRun({**run.outcomes, "u::x": "passed"}, whole=True), planted).whole
    assert not without_inserted(TestRun({"t::a": "passed", "t::order copy": "passed"}, whole=True), planted).whole


def test_a_run_that_is_no_baseline_says_what_one_needs():
    run = TestRun({"a": PASSED, "b": FAILED}, {}, whole=True)
    needed = f"at least {LEAST} must pass, and half of all"
    assert reason_of(run, 1, ()) == f"1 tests pass, 1 fail, 0 files cannot be collected; {needed}"
    assert reason_of(run, 1, ("six",)) == "packages are missing: six"
