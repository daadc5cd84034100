"""Solves pages of MiniWoB++ from what an agent sees. Plain Python without imports of ours: it runs in sandboxes.

A solver has a page with ``utterance``, ``elements()``, ``click(ref)`` and ``type(ref, text)``; elements have ``ref``,
``tag``, ``id``, ``text``, ``classes``.
"""

import re
from typing import Any

Json = dict[str, Any]


def _find(page: Any, text: str = "", tag: str = "", ident: str = "", kind: str = "") -> int:
    for one in page.elements():
        same = (not tag or one["tag"] == tag) and (not ident or one["id"] == ident) and kind in one["classes"]
        if same and (not text or one["text"] == text):
            return int(one["ref"])
    raise LookupError(f"no element {tag} {ident} {kind} {text!r}")


def _quoted(page: Any) -> list[str]:
    return re.findall('"([^"]*)"', page.utterance)


def _submit(page: Any, *fields: tuple[str, str]) -> None:
    for ident, text in fields:
        page.type(_find(page, ident=ident), text)
    page.click(_find(page, ident="subbtn"))


def _button(page: Any) -> None:
    page.click(_find(page, _quoted(page)[0], "BUTTON"))


def _sequence(page: Any) -> None:
    page.click(_find(page, ident="subbtn"))
    page.click(_find(page, ident="subbtn2"))


def _close(page: Any) -> None:
    page.click(_find(page, tag="BUTTON", kind="ui-dialog-titlebar-close"))


def _dialog(page: Any) -> None:
    wanted = _quoted(page)[0]
    if wanted == "x":
        _close(page)
    else:
        page.click(_find(page, wanted))


def _link(page: Any) -> None:
    page.click(_find(page, _quoted(page)[0], kind="alink"))


def _tab(page: Any) -> None:
    page.click(_find(page, re.findall(r"Tab #\d", page.utterance)[0], "A"))


def _select(page: Any) -> None:
    names = re.findall(r"Select (.*) and click", page.utterance)[0].split(", ")
    box = 0
    for one in page.elements():
        if one["tag"].startswith("INPUT"):
            box = one["ref"]
        elif one["tag"] == "t" and one["text"] in names:
            page.click(box)
    _submit(page)


def _collapsible(page: Any) -> None:
    page.click(_find(page, tag="H3"))
    _submit(page)


def _enter(page: Any) -> None:
    _submit(page, ("tt", _quoted(page)[0]))


def _enter_case(page: Any) -> None:
    text = _quoted(page)[0]
    _submit(page, ("tt", text.upper() if "upper case" in page.utterance else text.lower()))


def _password(page: Any) -> None:
    text = _quoted(page)[0]
    _submit(page, ("password", text), ("verify", text))


def _login(page: Any) -> None:
    user, password = _quoted(page)
    _submit(page, ("username", user), ("password", password))


def _word(page: Any) -> None:
    place = int(re.findall(r"the (\d+)", page.utterance)[0])
    text = " ".join(one["text"] for one in page.elements() if one["tag"] == "P")
    _submit(page, ("answer-input", re.sub("[^a-zA-Z]+", "", text.split()[place - 1])))


def _focus(page: Any) -> None:
    place = re.findall(r"the (\d)", page.utterance)
    page.click(_find(page, ident=f"tt{place[0]}" if place else "tt"))


def _parity(page: Any) -> None:
    odd = 0
    elements = page.elements()
    for place, one in enumerate(elements):
        if one["text"] == "Odd":
            odd = one["ref"]
        elif "display-number" in one["classes"]:
            even = next(other["ref"] for other in elements[place:] if other["text"] == "Even")
            page.click(odd if int(one["text"]) % 2 else even)
    page.click(_find(page, ident="submit"))


def _table(page: Any) -> None:
    key = re.findall(r"the value of (.*) into", page.utterance)[0]
    cells = [one["text"] for one in page.elements() if one["tag"] == "TD"]
    _submit(page, ("tt", cells[cells.index(key) + 1]))


def _problem(page: Any) -> list[str]:
    found: list[str] = next(one["text"] for one in page.elements() if one["id"] == "math-problem").split()
    return found


def _arithmetic(page: Any) -> None:
    first, sign, second = _problem(page)[:3]
    a, b = int(first), int(second)
    _submit(page, ("math-answer", str({"+": a + b, "-": a - b, "x": a * b}[sign])))


def _algebra(page: Any) -> None:
    first, sign, second, _, result = _problem(page)
    known, end = int(second if first == "x" else first), int(result)
    value = end - known if sign == "+" else end + known if first == "x" else known - end
    _submit(page, ("math-answer", str(value)))


SOLVERS: dict[str, Any] = {
    "click-button": _button, "click-button-sequence": _sequence, "click-checkboxes": _select,
    "click-collapsible": _collapsible, "click-dialog": _close, "click-dialog-2": _dialog, "click-link": _link,
    "click-option": _select, "click-tab": _tab, "click-test": _submit, "click-test-2": _submit,
    "enter-password": _password, "enter-text": _enter, "enter-text-2": _enter_case, "enter-text-dynamic": _enter,
    "find-word": _word, "focus-text": _focus, "focus-text-2": _focus, "login-user": _login, "odd-or-even": _parity,
    "read-table": _table, "simple-algebra": _algebra, "simple-arithmetic": _arithmetic, "unicode-test": _button,
}  # fmt: skip
"""Page -> what solves it."""
