"""Brackets decide: two answers are the same where they have the same structure, in any nesting and spelling."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.environments.brackets import Bracketed, grouped, same_answer

SPELLINGS = {
    "set": [("\\{", "\\}"), ("\\left\\{", "\\right\\}"), ("\\lbrace ", "\\rbrace")],
    "()": [("(", ")"), ("\\left(", "\\right)"), ("\\bigl( ", " \\bigr)")],
    "[)": [("[", ")"), ("\\left[", "\\right)")],
    "(]": [("(", "]")],
    "[]": [("[", "]")],
    "<>": [("\\langle ", "\\rangle")],
}
NUMBERS = st.integers(-3, 3).map(str) | st.sampled_from(["\\infty", "\\frac{1,000}{3}", "f(x)", "x_{1,2}"])
ANSWERS = st.recursive(
    NUMBERS,
    lambda inner: st.tuples(st.sampled_from(list(SPELLINGS)), st.lists(inner, min_size=2, max_size=3)),
    max_leaves=6,
)


def canonical(answer):
    if isinstance(answer, str):
        return answer
    kind, parts = answer
    parts = [canonical(part) for part in parts]
    return kind, frozenset(Counter(parts).items()) if kind == "set" else tuple(parts)


@st.composite
def written(draw, answer):
    if isinstance(answer, str):
        return answer
    kind, parts = answer
    opening, closing = draw(st.sampled_from(SPELLINGS[kind]))
    parts = draw(st.permutations(parts)) if kind == "set" else parts
    comma = draw(st.sampled_from([",", ", ", " ,\\ "]))
    return opening + comma.join(draw(written(part)) for part in parts) + closing


@given(st.data(), ANSWERS, ANSWERS)
def test_structures_are_equal_where_their_brackets_and_parts_are(data, left, right):
    texts = [data.draw(written(answer)) for answer in (left, left, right)]
    assert same_answer(texts[0], texts[1], str.__eq__)
    assert same_answer(texts[0], texts[2], str.__eq__) == (canonical(left) == canonical(right))
    assert same_answer(texts[2], texts[0], str.__eq__) == (canonical(left) == canonical(right))


@given(st.text(alphabet="()[]{}\\,1x ;|:.", max_size=30), st.text(alphabet="()[]{}\\,1x ;|:.", max_size=30))
def test_any_texts_can_be_compared(left, right):
    assert same_answer(left, right, str.__eq__) in (True, False)
    assert same_answer(left, left, str.__eq__) is True


@given(st.lists(st.integers(-5, 5).map(str), min_size=2, max_size=5), st.data())
def test_lists_are_matched_element_by_element(numbers, data):
    shuffled = data.draw(st.permutations(numbers))
    changed = [*shuffled[1:], data.draw(st.sampled_from(numbers))]
    for text in (", ".join(shuffled), " \\text{ and } ".join(shuffled), f"\\{{{','.join(shuffled)}\\}}"):
        assert same_answer(",".join(numbers), text, str.__eq__)
    for text in (f"({','.join(numbers)})", f"[{','.join(numbers)}]", ",".join([*numbers, numbers[0]]), numbers[0]):
        assert not same_answer(",".join(numbers), text, str.__eq__)
    assert same_answer(",".join(numbers), ",".join(changed), str.__eq__) == (Counter(numbers) == Counter(changed))


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("1", None),
        ("(1)", None),
        ("((1, 2))", ("(", ")", "1", "2")),
        ("(x+1)(x+2)", None),
        ("1,234", None),
        ("1,234, 5", ("", "", "1", "234", "5")),
        ("\\{x | x > 1, x < 3\\}", None),
        ("\\{\\}", None),
        ("\\{5\\}", ("\\{", "\\}", "5")),
        ("[5]", ("[", "]", "5")),
        ("\\begin{pmatrix} 1, 2 \\end{pmatrix}", None),
        ("A = (1, 2)", ("(", ")", "1", "2")),
        ("x \\in [1, 2)", ("[", ")", "1", "2")),
        ("(1,2) \\cup [3,4]", ("\\cup", "\\cup", "(1,2)", "[3,4]")),
        ("x=1 \\text{ or } x=2.", ("", "", "x=1", "x=2")),
        ("f(1,2)", None),
    ],
)
def test_groups(text, group):
    found = grouped(text)
    assert found == (group and Bracketed(group[:2], group[2:]))
