"""Classes of changes, and texts that describe them without files, lines, trailers, hashes, links and versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.messages import LONGEST, class_by_tests, class_of, text_of
from arcforge_rl.swe.patches import diff
from arcforge_rl.swe.statements import SHORT, forbidden, modules_of, statement_of

OLD = (
    "def digits(number):\n    total = 1\n    while number > 0:\n        total = total + number % 10\n    return total\n"
)
PATCH = diff({"src/toy/parser.py": OLD}, {"src/toy/parser.py": OLD.replace("total = 1", "total = 0")})
SECRET = forbidden(PATCH, SHORT) | modules_of(PATCH)


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("fix: the sum of digits", "fix"),
        ("feat(parser)!: negative numbers", "feature"),
        ("[bugfix] sums", "fix"),
        ("perf: sum by tables", "refactor"),
        ("chore: fix the sums", "other"),
        ("Merge pull request #3 from a/fix-sums\n\nAdd sums of digits", "feature"),
        ("Issue #12: Handle negative numbers", "fix"),
        ("Add support for fixing sums", "feature"),
        ("Fix adding of digits", "fix"),
        ("Rename digits and add nothing", "refactor"),
        ('Revert "Fix digits"', "other"),
        ("Fix a few typos", "other"),
        ("Version 1.2.0", "other"),
        ("1.2.0", "other"),
        ("Release of 1.2", "other"),
        ("Add more tests for sums", ""),
        ("Sums of digits", ""),
        ("Merge branch 'fix-sums'", ""),
        ("", ""),
    ],
)
def test_classes(message, wanted):
    assert class_of(message) == wanted


def test_classes_by_effect():
    """Tests of before that fail with new expectations are a fix; names that are needed, without such, a feature."""
    assert class_by_tests(["t::a"], ["new"]) == class_by_tests(["t::a"], []) == class_by_tests([], []) == "fix"
    assert class_by_tests([], ["new"]) == "feature"


@pytest.mark.parametrize(
    "message",
    [
        "wip", "fix", "fix bug", "Fix tests.", "Update code (#12)", "Merge branch 'fix-the-sum-of-digits' into main",
        "Merge pull request #12 from someone/sum-of-digits", "Version 1.2.0", "Bump toy to 1.2", "Fixes #12", "1.2.3",
        "", "Merge remote-tracking branch 'origin/sum-of-digits'", "\n\n", "Fix parser.py", "fix: see https://a.example/sum",
    ],
)  # fmt: skip
def test_messages_that_describe_nothing(message):
    assert text_of(message, SECRET) == ""


def test_the_describing_part_of_a_message():
    message = """fix(parser): the sum of digits is one too high (#12)

The sum of 123 was 7. The cause is in src/toy/parser.py, where
we began with one. A user saw it in 0.5 of the cases.

- Zero has the sum zero, see https://example.org/7
- Negative numbers have none.
- Set total = 0 first
- Set total (#3) = 0, too
- toy.parser.digits is right now
- It happened on line 2.
* Since 0b1c2d3e4f the loop ends.

Fixes #12, #13
See also: a/b#4
Change-Id: I0123456789
Co-authored-by: A Person <person@example.org>
(cherry picked from commit 0123456789abcdef0123456789abcdef01234567)
Signed-off-by: A Person <person@example.org>
"""
    assert text_of(message, SECRET) == (
        "the sum of digits is one too high\n\nThe sum of 123 was 7. A user saw it in 0.5 of the cases.\n\n"
        "- Negative numbers have none."
    )
    assert text_of("Issue 9: Sums of utf-8 digits[1:2] (closes a/b#9)\n\nx@y.org wrote this", ()) == (
        "Sums of utf-8 digits[1:2]"
    )
    assert text_of("Add digits()", ()) == "Add digits()"  # one word, which is a name
    long = text_of("Many words here.\n\n" * 2000, ())
    assert LONGEST - 20 < len(long) < LONGEST and long.endswith("\n\nMany words here.")


@given(st.text(), st.lists(st.sampled_from(sorted(SECRET)), min_size=1), st.sampled_from(["", "Fix ", "\n\n", "- "]))
def test_texts_never_hold_the_repair(words, parts, before):
    text = text_of("\n".join([f"Sum of digits {words}", *(before + part + words for part in parts), words]), SECRET)
    assert not any(" ".join(part.split()) in text for part in SECRET) and len(text) < 5000


def test_names_of_the_repair():
    assert modules_of(PATCH) == {"toy/parser", "toy.parser", "toy::parser"}
    assert forbidden(PATCH) == {"src/toy/parser.py", "parser.py"}  # its lines are too short to tell anything else
    assert forbidden(PATCH, SHORT) == {"src/toy/parser.py", "parser.py", "total = 1", "total = 0"}


def test_statements_of_changes():
    texts = {"t.py::test_x[1]": "E  assert 1 == 2\nE  in toy.py\nunrelated\n"}
    plain = statement_of(language_of("python"), "toy", ["t.py::test_x[1]"], texts, {"toy.py"}, ["new_name"])
    assert plain.startswith("Something in toy does not behave") and "required: new_name" in plain
    said = statement_of(language_of("python"), "toy", ["t.py::test_x[1]"], texts, {"toy.py"}, ["new_name"], "Sums.")
    assert said.startswith("This change is wanted in toy:\n\nSums.\n\nThis was observed:\n- x: assert 1 == 2\n\nThese")
    assert "toy.py" not in plain + said
