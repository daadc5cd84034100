"""Failing tests that are planted beside Python's, with the assertions that those use."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_rl.swe.languages.signed import Wrong

NUMPY = {
    "assert_allclose": "{made}, {wanted}",
    "assert_almost_equal": "{a}, {b}",
    "assert_array_almost_equal": "{made}, {wanted}",
    "assert_array_equal": "{made}, {wanted}",
}
MOCK = {"assert_called": "", "assert_called_once": "", "assert_called_once_with": "{b}", "assert_called_with": "{b}"}
PLAIN = {
    "assert": "found = {made}\n{indent}assert found == {wanted}",
    "raises": "with pytest.raises(ValueError):\n{indent}    list({made})",
    "warns": "with pytest.warns(UserWarning):\n{indent}    list({made})",
    "approx": "assert {a} == pytest.approx({b})",
    **{name: f"import numpy.testing\n{{indent}}numpy.testing.{name}({given})" for name, given in NUMPY.items()},
    **{name: f"unittest.mock.Mock(name={{made}}).{name}({given})" for name, given in MOCK.items()},
}
"""Assertion -> body of a function that fails; the name is a word of every test that uses it."""
METHODS = {
    "assertAlmostEqual": "{a}, {b}",
    "assertAlmostEquals": "{a}, {b}",
    "assertCountEqual": "{made}, {wanted}",
    "assertDictEqual": "{{1: {made}}}, {{1: {wanted}}}",
    "assertEqual": "{made}, {wanted}",
    "assertEquals": "{made}, {wanted}",
    "assertFalse": "{a} < {b}",
    "assertGreater": "{a}, {b}",
    "assertGreaterEqual": "{a}, {b}",
    "assertIn": "{b}, {made}[-1:]",
    "assertIs": "{made}, {wanted}",
    "assertIsInstance": "{made}, dict",
    "assertIsNone": "{made}",
    "assertIsNot": "None, None",
    "assertIsNotNone": "None",
    "assertLess": "{b}, {a}",
    "assertLessEqual": "{b}, {a}",
    "assertListEqual": "{made}, {wanted}",
    "assertMultiLineEqual": "'{made}', '{wanted}'",
    "assertNotEqual": "{made}, {made}",
    "assertNotEquals": "{made}, {made}",
    "assertNotIn": "{a}, {made}",
    "assertNotIsInstance": "{made}, list",
    "assertRaises": "ValueError, list, {made}",
    "assertRaisesRegex": "ValueError, 'x', list, {made}",
    "assertRegex": "'{a}', '^{b}$'",
    "assertSequenceEqual": "{made}, {wanted}",
    "assertSetEqual": "{{{a}}}, {{{b}}}",
    "assertTrue": "{a} > {b}",
    "assertTupleEqual": "({a},), ({b},)",
    "assertWarns": "UserWarning, list, {made}",
}
"""Method of `unittest.TestCase` -> arguments with which it fails."""
KINDS = (*PLAIN, *METHODS)
MODULES = ("pytest", "unittest", "unittest.mock")


def canary(words: Sequence[str], tests: Sequence[Wrong]) -> str:
    """Returns a file of tests that fail."""
    parts = []
    for one in tests:
        if one.kind in PLAIN:
            body = one.fill(PLAIN[one.kind], indent="    ")
            parts.append(f"def test_{'_'.join(one.words)}():\n    {body}\n")
    methods = [one for one in tests if one.kind in METHODS]
    if methods:
        lines = [f"class Test{''.join(word.title() for word in words)}(unittest.TestCase):"]
        for one in methods:
            call = f"self.{one.kind}({one.fill(METHODS[one.kind])})"
            lines.append(f"    def test_{'_'.join(one.words)}(self):\n        {call}\n")
        parts.append("\n".join(lines))
    text = "\n\n".join(parts)
    needed = [name for name in MODULES if f"{name}." in text]
    return "".join(f"import {name}\n" for name in needed) + "\n\n" + text
