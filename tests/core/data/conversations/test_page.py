"""``statistics.html``: what was counted, in words that stay words, in the style that reports share."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.conversation import OPTIONS, Conversation
from arcforge_core.contracts.data import Example
from arcforge_core.data.conversations.page import SHOWN, write_page
from arcforge_core.data.conversations.rejections import Rejection
from arcforge_core.data.conversations.statistics import Statistics
from arcforge_core.report.page import FOLDER

EVIL = "</style><script>alert(1)</script>"


def figures(sources: tuple[str, ...] = ("sums",), rejections: tuple[Rejection, ...] = ()) -> dict[str, Any]:
    """Figures of a conversation of four tokens, one of them trained, of each source in each thinking mode."""
    kept = len(sources) * len(OPTIONS)
    found = Statistics(Counter(chat=kept + len(rejections)))
    for source in sources:
        for options in OPTIONS.values():
            messages = (Message("user", "1+1"), Message("assistant", "2"))
            conversation = Conversation(messages, options=options, source=source)
            found.add_conversation("chat", conversation)
            found.add_example("chat", conversation, Example((1, 2, 3, 4), 1, trained=(False, False, False, True)))
    return found.figures(rejections)


def page(folder: Path, of: dict[str, Any], rejections: tuple[Rejection, ...] = ()) -> str:
    write_page(folder / "statistics.html", of, rejections)
    return (folder / "statistics.html").read_text(encoding="utf-8")


def test_the_page_has_the_reports_style_and_every_class_of_it_that_it_names(tmp_path: Path) -> None:
    """The style is a file of its own, which other pages take in too."""
    rejected = (Rejection("a.jsonl", 3, "chat", "length", "too long"),)
    text = page(tmp_path, figures(rejections=rejected), rejected)
    style, shown = text[text.index("<style>") : text.index("</style>")], text[text.index("</style>") :]
    shared = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("tokens.css", "style.css"))
    assert style.strip() == f"<style>\n{shared}".strip()
    everywhere = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", style)  # whatever the screen
    named = {name for names in re.findall(r'class="([^"]*)"', shown) for name in names.split()}
    assert {"card", "headline", "value", "note"} <= named
    assert not {name for name in named if not re.search(rf"\.{name}\b", everywhere)}
    colours = set(re.findall(r"var\(--([\w-]+)\)", shown))
    assert colours and not {name for name in colours if f"--{name}:" not in everywhere}
    assert not re.search(r"(?:src|href)=\"(?!#|statistics\.json|rejected\.jsonl)|@import|url\(http", text)


def test_every_thinking_mode_has_a_row(tmp_path: Path) -> None:
    text = page(tmp_path, figures(sources=("sums", "tools")))
    row = "".join(f'<td class="n">{number}</td>' for number in (2, 2, 8, 2)) + "<td>25.0%</td>"
    for mode in ("off", "interleaved", "preserved"):
        assert f"<tr><td>{mode}</td>{row}</tr>" in text
    assert '<p class="value">25.0%</p>' in text and "conversations of 6 records" in text


@pytest.mark.parametrize("count", [1, SHOWN + 1])
def test_what_was_left_out_is_listed_by_rule_and_the_rest_counted(tmp_path: Path, count: int) -> None:
    rejected = tuple(Rejection("a.jsonl", n, "chat", "length", f"reason {n}") for n in range(1, count + 1))
    text = page(tmp_path, figures(rejections=rejected), rejected)
    assert f"<summary>length: {count}</summary>" in text
    assert text.count("reason ") == min(count, SHOWN)


def test_words_of_records_stay_words(tmp_path: Path) -> None:
    rejected = (Rejection(EVIL, 3, "chat", EVIL, EVIL),)
    text = page(tmp_path, figures(sources=(EVIL,), rejections=rejected), rejected)
    assert "<script" not in text and text.count("</style>") == page(tmp_path, figures()).count("</style>")
    assert text.count("&lt;/style&gt;&lt;script&gt;") >= 4
