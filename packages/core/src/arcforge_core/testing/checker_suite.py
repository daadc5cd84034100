"""What every checker must hold: subclass it with the fixture `case`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.checker import Checker

LONG = 200_000


@dataclass(frozen=True)
class CheckerCase:
    """A checker with answers to its question: at least one that is right, and ways to look right without being it."""

    checker: Checker
    right: Sequence[str]
    wrong: Sequence[str]


class CheckerSuite:
    """Conformance of a `Checker`. A subclass gives the fixture ``case``, a `CheckerCase`."""

    examples = 25
    """Random texts that are judged; fewer for checkers that run programs."""

    @pytest.fixture
    def case(self) -> CheckerCase:
        """The checker and its answers; a subclass returns it."""
        raise NotImplementedError("give the fixture `case` in your subclass")

    def test_right_answers_pass(self, case: CheckerCase) -> None:
        """All of them, and again."""
        assert case.right
        assert [answer for answer in [*case.right, *case.right] if case.checker.check(answer) is not True] == []

    def test_wrong_answers_fail(self, case: CheckerCase) -> None:
        """All of them, before and after a right one."""
        assert case.wrong
        for _ in range(2):
            assert [answer for answer in case.wrong if case.checker.check(answer) is not False] == []
            case.checker.check(case.right[0])

    @pytest.mark.parametrize("junk", ["", " ", "\n", "zzz", "None", "0.25", "\ud800", "\0", "True", "[]", "{}"])
    def test_junk_fails(self, case: CheckerCase, junk: str) -> None:
        """Nothing, and what verifiers have been known to take."""
        assert case.checker.check(junk) is False

    def test_checker_is_total(self, case: CheckerCase) -> None:
        """Any text, lone surrogates included, gets a judgement."""

        @settings(max_examples=self.examples, deadline=None, suppress_health_check=[HealthCheck.nested_given])
        @given(st.text(alphabet=st.characters(), max_size=100))
        def judge(answer: str) -> None:
            assert case.checker.check(answer) in (True, False)

        judge()

    @pytest.mark.parametrize("unit", ["9", "(", " ", "\n", "\u0663"])
    def test_checker_bears_long_text(self, case: CheckerCase, unit: str) -> None:
        """Much of one character neither raises nor passes."""
        assert case.checker.check(unit * LONG) is False
