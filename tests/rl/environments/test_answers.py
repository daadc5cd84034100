"""What counts as a reply's answer, and what is equal to what."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.environment import Reply
from arcforge_rl.environments.answers import NoAnswer, equivalent, final_answer, judge_number, rational


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("12*3 = 36\n36 + 6 = 42", "42"),
        ("The answer is 42.", "42"),
        ("**Answer:** -1,234.5", "-1,234.5"),
        ("x = -7", "-7"),
        ("so \u2212 7 it is: \u22127", None),
        ("it is \u22127", "-7"),
        ("#### 42", "42"),
        ("It costs $42", "42"),
        ("first 5\nthen 42\n\n", "42"),
        ("x = $\\frac{1}{2}$", "\\frac{1}{2}"),
        ("thus \\(x^2\\) it is", "x^2"),
        ("\\boxed{42} is it, not 43", "42"),
        ("\\boxed{42} and again \\boxed{42}", "42"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("3/4", "3/4"),
        ("41 or 42", None),
        ("\\boxed{41} or \\boxed{42}", None),
        ("$41$ or $42$", None),
        ("12+30", None),
        ("-12-30", None),
        ("3*14", None),
        ("42x", None),
        ("x42", None),
        ("42 \u0664", None),
        ("4\u06612", None),
        ("1/2/3", None),
        ("1.2.3", None),
        ("2^5", None),
        ("nothing", None),
        ("", None),
        (" \n ", None),
        ("\\boxed{", None),
        ("\\boxed{}", None),
        ("\\boxed{42", None),
        ("\\boxed{1}" * 11, None),
        ("9" * 2000, None),
        ("word " * 300 + "42", None),
        ("\\boxed{" + "9" * 400 + "}", None),
    ],
)
def test_final_answer(text, answer):
    if answer is None:
        with pytest.raises(NoAnswer):
            final_answer(Reply(text))
    else:
        assert final_answer(Reply(text)) == answer


@pytest.mark.parametrize(("text", "reason"), [("41 or 42", "has 2 numbers"), ("nothing", "has no numbers")])
def test_the_reason_says_how_many_there_are(text, reason):
    assert reason in judge_number(Fraction(42), Reply(text)).reason


def test_what_was_cut_off_has_no_answer():
    with pytest.raises(NoAnswer, match="cut off"):
        final_answer(Reply("42", finish_reason="length"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("+5", 5),
        ("1,234,567", 1234567),
        ("12,34", None),
        ("0.50", Fraction(1, 2)),
        ("-3/4", Fraction(-3, 4)),
        ("\\dfrac{3}{4}", Fraction(3, 4)),
        ("6/8", None),
        ("4/1", None),
        ("1/0", None),
        ("1e5", None),
        ("inf", None),
        ("nan", None),
        ("50\\%", 50),
        ("\\frac37", Fraction(3, 7)),
        ("12{,}34", None),
        ("9**9**9", None),
        ("1_000", None),
        ("\u0664", None),
        ("5\u00b2", None),
        ("9" * 5000, None),  # more digits than Python turns into a number
    ],
)
def test_rational(text, value):
    assert rational(text) == value


@given(st.text(alphabet=st.characters() | st.sampled_from("0123456789.,-=\\boxed{}$\n"), max_size=300))
def test_any_text_has_a_score_and_a_reason(text):
    score = judge_number(Fraction(7), Reply(text))
    assert score.value in (0.0, 1.0) and score.reason


@given(st.integers(-(10**12), 10**12))
def test_a_number_is_found_behind_words_and_work(number):
    for text in (f"{number}", f"x = {number}", f"1+1 = 2\nIt is {number:,}.", f"\\boxed{{{number}}}"):
        assert judge_number(Fraction(number), Reply(text)).value == 1.0
        assert judge_number(Fraction(number + 1), Reply(text)).value == 0.0


@pytest.mark.parametrize(
    ("reference", "answer", "same"),
    [
        ("2, 3", "3, 2", True),
        ("2, 3", "\\{2,3\\}", True),
        ("2, 3", "x = 2, x = 3", True),
        ("2, 3", "2", False),
        ("2, 3", "2, 3, 4", False),
        ("\\frac{\\sqrt{3}}{2}", "\\sqrt{3}/2", True),
        ("6\\sqrt{2}", "\\sqrt{72}", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("x^2+2x+1", "(x+2)^2", False),
        ("(0, 1]", "(0,1]", True),
        ("(0, 1]", "[0,1]", False),
        ("\\pi", "3.14", False),
        ("(1,\\infty)", "\\{1,\\infty\\}", False),
        ("\\{1,2,3\\}", "(3,2,1)", False),
        ("\\{1,2,3\\}", "[1,2,3]", False),
        ("(1,2)", "1,2", False),
        ("1,2", "(2,1)", False),
        ("(1,\\infty)", "(1,\\infty]", False),
        ("\\mathbb{R}", "(-\\infty,\\infty]", False),
        ("\\{1,\\{2\\}\\}", "\\{1,2\\}", False),
        ("\\{1\\}", "1", False),
        ("1<x<2", "\\{1,2\\}", False),
        ("1, 1, 2", "1, 2, 2", False),
        ("\\{1,2\\}", "\\{1,1,2\\}", False),
        ("1<x<2", "(1,2)", True),
        ("x\\in\\{1,\\frac{1}{2}\\}", "\\left\\{0.5,1\\right\\}", True),
        ("(-\\infty,-1)\\cup(1,\\infty)", "(1,+\\infty) \\cup (-\\infty,-1)", True),
        ("(-\\infty,-1)\\cup(1,\\infty)", "(-\\infty,-1]\\cup(1,\\infty)", False),
        ("(\\sqrt{4}, 3)", "(2, \\frac{6}{2})", True),
        ("\\mathbb{R}", "(-\\infty,\\infty)", True),
        ("[2,5)", "2\\leq x<5", True),
        ("[2,5)", "2<x\\leq 5", False),
        ("(-\\infty,3]", "x\\leq 3", True),
        ("(0,1)", "1>x>0", True),
        ("(3,\\infty)", "x-1>2", False),
        ("(3,\\infty)", "x>3+0x", False),
        ("x<2\\text{ or }x>5", "(-\\infty,2)\\cup(5,\\infty)", True),
        ("x<2\\text{ or }x>5", "x>5\\text{ or }x<2", True),
        ("x<2\\text{ or }x>5", "x<2\\text{ and }x>5", False),
        ("x>2, x<5", "x<5\\text{ and }x>2", True),
        ("(1,2),(3,4)", "(1,2)\\cup(3,4)", False),
        ("\\emptyset", "\\varnothing", True),
        ("\\frac{3x}{7}", "\\frac37x", True),
        ("\\frac{\\sqrt2}{2}", "\\frac{1}{\\sqrt{2}}", True),
        ("1000x", "1{,}000x", True),
        ("120_{5}", "120_{6}", False),
        ("120_5", "120_{5}", True),
        ("x+y=1", "1", False),
        ("x+y=1", "y+x=1", True),
        ("y=2x+1", "2x+1", True),
        ("x=1, y=2", "2, 1", False),
        ("x=1, y=2", "1, 2", True),
        ("x=1, y=2", "y=2, x=1", True),
        ("x=1, x=2", "2, 1", True),
        ("(x,y)=(1,2)", "(1,2)", True),
        ("(x,y)=(1,2)", "(2,1)", False),
        ("(x,y)=(1,2)", "(y,x)=(1,2)", False),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}", False),
    ],
)
def test_equivalence(reference, answer, same):
    assert equivalent(reference, answer) == same


@pytest.mark.parametrize("answer", ["{" * 100, "(" * 60 + ")" * 60, "x" * 200])
def test_what_is_no_answer_of_its_own_is_refused(answer):
    with pytest.raises(NoAnswer):
        equivalent("x", answer)
