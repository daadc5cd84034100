from typing import Any

import pytest

from arcforge_core.data.conversations.failures import is_failure
from arcforge_core.data.conversations.parse import parse


@pytest.mark.parametrize(
    "content",
    [
        "Traceback (most recent call last):\n  File x",
        "ValueError: no",
        "requests.exceptions.HTTPError: 404",
        "Error: no key 'a'",
        "error: x",
        "FAILED: x",
        "bash: foo: command not found",
        "cat: a.txt: No such file or directory",
        "exit code 1\n",
        "Exit status: 127",
        '{"error": "no"}',
        '{"success": false}',
        '{"ok": false, "data": []}',
        '{"status": "error"}',
        '{"exit_code": 2, "stdout": ""}',
    ],
)
def test_results_that_read_as_errors(content: str) -> None:
    assert is_failure(content, {})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "42",
        "Errors in the list: none",
        "The error was fixed.",
        "exit code 0",
        '{"error": null}',
        '{"error": "", "value": 1}',
        '{"exit_code": 0}',
        '{"status": "ok"}',
        "{not json",
        "errors.txt\nfailures.txt",
    ],
)
def test_results_that_do_not(content: str) -> None:
    assert not is_failure(content, {})


@pytest.mark.parametrize("mark", ["is_error", "isError", "error"])
def test_a_mark_decides_over_the_text(mark: str) -> None:
    assert is_failure("42", {mark: True})
    assert not is_failure("Error: x", {mark: False})
    assert is_failure("42", {"status": "failed"}) and not is_failure("Error: x", {"status": "ok"})


def call(*names: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": n, "arguments": {}}} for n in names],
    }


def result(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content}


MESSAGES = [
    {"role": "user", "content": "q"},
    call("a"),
    result("Error: x"),
    call("a", "b"),
    result("1"),
    result("Error: y"),
    call("a"),
    result("2"),
    {"role": "assistant", "content": "Error: is what I say"},
]


def test_the_turn_that_made_a_failed_call_is_masked_and_what_mends_it_is_not() -> None:
    found = parse({"messages": MESSAGES}, "auto", "interleaved", mask_errors=True)
    assert [n for n, m in enumerate(found.messages) if not m.trained] == [1, 3]
    found = parse({"messages": MESSAGES}, "auto", "interleaved", mask_errors=False)
    assert all(m.trained for m in found.messages)
