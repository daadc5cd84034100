"""Wrappers of Rust's integration tests: two for each, one that proves that it passed and one that must fail."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

from arcforge_rl.swe.languages.processes import Wrapper, twins

TEST = re.compile(
    r"^(?P<before>(?:#\[[^\n]*\]\n)*)#\[test\]\n(?P<after>(?:#\[[^\n]*\]\n)*)"
    r"(?:pub )?fn (?P<name>\w+)\(\)\s*(?P<result>->[^{]+)?\{",
    re.MULTILINE,
)
EXPECTED = re.compile(r'expected\s*=\s*("(?:\\.|[^"\\])*")')
WRAPPER = """
#[test]
#[allow(non_snake_case)]
fn {name}() {{
    {call}
    {planted}::std::println!("\\n{proof}");
}}
"""
PANICS = """match ::std::panic::catch_unwind(|| {{ let _ = {test}(); }}) {{
        Ok(_) => ::std::panic!("the test did not panic as expected"),
        Err(said) => {{
            let text = said.downcast_ref::<&str>().map(|one| one.to_string());
            let text = text.or_else(|| said.downcast_ref::<String>().cloned()).unwrap_or_default();
            if !text.contains({expected}) {{
                ::std::panic!("the test panicked with other words: {{}}", text);
            }}
        }}
    }}"""
PLANTED = (
    "let (made, wanted) = ({made}, {wanted});\n    assert_eq!(made, wanted);\n    ",
    "let (made, wanted) = ({made}, {wanted});\n    assert!(made == wanted);\n    ",
)


@dataclass(frozen=True)
class Found:
    """A test function.

    Attributes:
        name: of it.
        call: statement that runs it and panics if it fails.
        ignored: whether it is not to be run.
    """

    name: str
    call: str
    ignored: bool


def functions_of(text: str) -> list[Found]:
    """Returns the test functions at the top of a file."""
    found = []
    for match in TEST.finditer(text):
        attributes, name = match["before"] + match["after"], match["name"]
        call = f"{name}().unwrap();" if match["result"] and match["result"].strip() != "-> ()" else f"{name}();"
        if "#[should_panic" in attributes:
            expected = EXPECTED.search(attributes)
            call = PANICS.format(test=name, expected=expected[1] if expected else json.dumps(""))
        found.append(Found(name, call, "#[ignore" in attributes))
    return found


def wrap(text: str) -> tuple[str, list[Wrapper]]:
    """Returns a test file with two wrappers for each test, in an order drawn at random, and the wrappers."""
    tests = {one.name: one for one in functions_of(text) if not one.ignored}
    wrappers = twins(list(tests))
    parts = []
    for one in wrappers:
        planted = secrets.choice(PLANTED).format(made=one.made, wanted=one.wanted) if one.planted else ""
        parts.append(WRAPPER.format(name=one.name, call=tests[one.test].call, planted=planted, proof=one.proof))
    return text + "".join(parts), wrappers
