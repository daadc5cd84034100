"""Rejection sampling: defective pages are masked, other decks are rejected with a reason."""

import io
import json

import pytest
from PIL import Image

pytest.importorskip("tinycss2")
pytest.importorskip("selectolax")

from arcforge_core.contracts.conversation import OFF
from arcforge_core.data.conversations.parse import parse
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.cli import main
from arcforge_rl.configs.slides import SlidesConfig
from arcforge_rl.slides.brief import brief_of, prompt_of
from arcforge_rl.slides.environment import Slides
from arcforge_rl.slides.gallery import gallery
from arcforge_rl.slides.rendering.browser import Rendered
from arcforge_rl.slides.select import candidates, read_rollouts, select
from arcforge_rl.slides.spans import masked, page_spans


@pytest.fixture(scope="module")
def task():
    return Slides(SlidesConfig(fewest=4, most=4)).task(0)


def chosen(task, *replies, least=0.5, per_task=1):
    return select(candidates([(task.key, task.prompt, reply) for reply in replies]), least, per_task)


def defective(task, *pages):
    deck = task.answer
    for page in pages:
        deck = deck.replace(task.brief.pages[page].points[0].text, "Nothing to be said here")
    return deck


def test_prompts_hold_their_brief():
    environment = Slides(SlidesConfig(most=7, points=5))
    briefs = [environment.task(n).brief for n in range(100)]
    assert all(brief_of(prompt_of(brief, rules)) == brief for brief in briefs for rules in (True, False))
    short = Slides(SlidesConfig(most=7, points=5, rules=False)).task(0)
    assert short.brief == briefs[0] and "Rules:" not in short.prompt and "Rules:" in environment.task(0).prompt
    with pytest.raises(DataError, match="no prompt of environment=slides"):
        brief_of("Page 1. Title: Plans\n  - Wages rose to 9")


def test_pages_are_found_in_a_reply(task):
    spans = page_spans(task.answer)
    assert len(spans) == 4
    assert all(task.answer[start:end].startswith("<section") for start, end in spans)
    assert all(task.answer[start:end].endswith("</section>") for start, end in spans)
    assert page_spans("a\n\n<section\nid='1'>é\r\n<section></section></section >b") == [(3, 52)]


def test_defective_pages_are_not_trained_on(task):
    selected = chosen(task, defective(task, 2))
    [record] = selected.records
    assert selected.masked == 1
    conversation = parse(record, "auto", OFF, mask_errors=False)
    [parts] = conversation.parts.values()
    assert "".join(text for text, _ in parts) == defective(task, 2) == conversation.messages[1].content
    [left_out] = [text for text, trained in parts if not trained]
    assert left_out.startswith("<section") and "Nothing to be said here" in left_out
    assert "Nothing to be said here" not in "".join(text for text, trained in parts if trained)


def test_parts_at_the_edges():
    text = "<section>a</section><section>b</section>"
    assert masked(text, (True, True)) == [{"text": text}]
    assert masked(text, (False, False)) == [
        {"text": text[:20], "train": False},
        {"text": text[20:], "train": False},
    ]
    assert masked(text, (True,)) is None


def test_the_best_of_a_task_is_kept(task):
    selected = chosen(task, defective(task, 2), task.answer)
    assert selected.records[0]["messages"][1]["content"] == task.answer and not selected.masked
    assert selected.rejected == {"equals a kept deck": 1}
    other = task.answer.replace("left: 80px; top: 72px", "left: 80px; top: 64px")
    assert chosen(task, task.answer, other).rejected == {"is good, but others were preferred": 1}
    assert len(chosen(task, task.answer, other, per_task=2).records) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda task: "no deck", "is no HTML document"),
        (lambda task: task.answer.replace("</style>", "p { zoom: 2 }</style>"), "breaks zoom"),
        (lambda task: defective(task, 1, 2, 3), "has too few good pages"),
        (lambda task: task.answer.replace("px; height: 720px", "px; height: 721px"), "has no good page: not_16_9"),
        (lambda task: task.answer.replace("<section", "<div", 1).replace("</section", "</div", 1),
         "breaks text_outside"),
        (lambda task: task.answer[: task.answer.rindex("<section")] + "</body>\n</html>\n```",
         "has another number of pages"),
    ],
)  # fmt: skip
def test_reasons(change, reason, task):
    selected = chosen(task, change(task))
    assert selected.records == [] and selected.rejected == {reason: 1}


def test_the_command(task, tmp_path, monkeypatch, capsys):
    def row(reply, **further):
        messages = [{"role": "user", "content": task.prompt}, {"role": "assistant", "content": reply}]
        found = {"domain": "slides", "task": task.key, "messages": messages, "finish_reason": "stop", "failure": None}
        return json.dumps({**found, **further}) + "\n"

    file = tmp_path / "rollouts.jsonl"
    file.write_text(row(task.answer) + row(task.answer, finish_reason="length") + row("", failure={"kind": "engine"}))
    assert [reply for _, _, reply in read_rollouts([str(file)])] == [task.answer, ""]
    monkeypatch.setattr("sys.argv", ["arcforge-env", "slides", "select", str(file), "--to", str(tmp_path / "to")])
    assert main() == 0
    assert "1 of 2 decks, 0 of 4 pages masked" in capsys.readouterr().out
    assert len((tmp_path / "to/kept/slides.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["select", "{}/empty.jsonl"], "no rollout of environment=slides is in them"),
        (["select", "{}/none.jsonl"], "no such file"),
        (["select", "{}/empty.jsonl", "--least", "0"], "--least must be above 0"),
        (["pdf", "{}/none.html"], "takes one HTML document"),
    ],
)
def test_one_line_for_bad_input(words, said, tmp_path):
    from arcforge_rl.slides.command import main as command

    (tmp_path / "empty.jsonl").write_text('{"domain": "math"}\n')
    with pytest.raises(ArcforgeError, match=said) as raised:
        command([word.format(tmp_path) for word in words])
    assert "\n" not in str(raised.value)


def test_the_gallery_shows_pictures_and_no_markup_of_decks(task):
    [deck] = candidates([(task.key, task.prompt, defective(task, 1).replace("Nothing to", "&lt;b&gt; Nothing to"))])
    file = io.BytesIO()
    Image.new("RGB", (1280, 720), "white").save(file, "PNG")
    html = gallery([(deck, Rendered(pictures=(file.getvalue(),) * 4))], "Decks").render()
    assert html.count("data:image/png;base64,") == 4 and "missing_point" in html
    assert '<section class="slide' not in html and "<b> Nothing" not in html
