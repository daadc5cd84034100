"""The conformance suite of checkers, the components of kind ``reward`` that records name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.conversation import Checker
from arcforge_core.testing.cheats import CheatSuite, Grader

LONG = 200_000


class CheckerSuite(CheatSuite):
    """Conformance of a `Checker`; no cheat of any family passes (`CheatSuite`).

    A subclass provides the fixtures ``checker``, and ``right`` and ``wrong``, answers that it accepts and refuses.
    """

    @pytest.fixture
    def graders(self, checker: Checker, right: Sequence[str]) -> Sequence[Grader]:
        """Returns the checker with its first right answer."""
        return [Grader("", right[0], lambda answers: [float(checker.check(answer)) for answer in answers])]

    def test_right_answers_pass_and_wrong_ones_fail(
        self, checker: Checker, right: Sequence[str], wrong: Sequence[str]
    ) -> None:
        """The verdicts are True and False, in any order of the answers."""
        assert right and wrong
        for _ in range(2):
            assert [answer for answer in right if checker.check(answer) is not True] == []
            assert [answer for answer in wrong if checker.check(answer) is not False] == []

    @pytest.mark.parametrize("junk", ["", " ", "\n", "zzz", "None", "0.25", "\ud800", "\0", "True", "[]", "{}"])
    def test_junk_fails(self, checker: Checker, junk: str) -> None:
        """Short texts that are no answer are refused."""
        assert checker.check(junk) is False

    def test_any_text_gets_a_verdict(self, checker: Checker) -> None:
        """A checker never raises, lone surrogates included."""

        @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.nested_given])
        @given(st.text(alphabet=st.characters(), max_size=100))
        def judge(answer: str) -> None:
            assert checker.check(answer) in (True, False)

        judge()

    @pytest.mark.parametrize("unit", ["9", "(", " ", "\n", "\u0663"])
    def test_long_text_neither_raises_nor_passes(self, checker: Checker, unit: str) -> None:
        """Nor does a text of 200,000 characters."""
        assert checker.check(unit * LONG) is False
