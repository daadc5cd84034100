"""Decks in Chromium: measures confirm those computed from the markup, and catch hacks without its rules."""

import asyncio
import json

import pytest

pytest.importorskip("tinycss2")
pytest.importorskip("selectolax")

from arcforge_core.contracts.sandbox import CommandStatus, ExecResult, SandboxFault
from arcforge_core.episodes.scripted import play
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.slides import SlidesConfig
from arcforge_rl.layers.store import LayerStore
from arcforge_rl.slides.environment import Slides
from arcforge_rl.slides.hacks import HACKS
from arcforge_rl.slides.rendering import browser
from arcforge_rl.slides.rendering.measured import measured
from arcforge_rl.slides.rendering.pixels import seen

ALONE = {
    "text is cut by overflow: hidden", "text is cut by a maximum height", "the page is zoomed",
    "boxes are scaled by a transform", "boxes are moved by translate", "boxes lie beside the page",
    "boxes lie above the page", "text has no size", "a box of text has no width",
    "text has the colour of what it lies on", "text is almost transparent", "boxes are transparent",
    "text is not displayed", "text is invisible", "text has the attribute hidden", "text is in closed details",
    "a box covers the text", "text is put under the page", "lines lie on each other", "margins are negative",
    "text is indented out of sight", "texts lie on each other", "text is longer than its box", "text is tiny",
    "the page grows with its text", "a style sheet is loaded", "an image is made up",
    "letters are filled with nothing", "a filter fades the text",
}  # fmt: skip
"""Hacks that measures and pictures catch without the rules of the markup."""


@pytest.fixture
def chromium():
    try:
        browser.browser_layers()
    except ConfigError as error:
        pytest.skip(str(error))


def rendered(document, **what):
    return asyncio.run(browser.render(document, **what))


@pytest.mark.slow(reason="starts a browser in a sandbox")
def test_measures_equal_those_of_the_markup(chromium, deck, found):
    verdict = found(deck)
    shown = rendered(deck, pictures=True, pdf=True)
    assert [*measured(shown, verdict.layouts)] == [] == [*seen(shown)]
    computed = [paragraph for layout in verdict.layouts for paragraph in layout.paragraphs]
    assert len(computed) == len(shown.texts)
    for paragraph, text in zip(computed, shown.texts, strict=True):
        line = text.lines[0].rect
        assert len(text.lines) == 1 and line.left == pytest.approx(paragraph.rect.left, abs=0.5)
        assert line.width == pytest.approx(paragraph.rect.width, rel=0.02)
        assert paragraph.rect.top <= line.top + 1 and line.bottom <= paragraph.rect.bottom + 1
    assert len(shown.pictures) == 4 and shown.pictures[0][:4] == b"\x89PNG" and shown.pdf[:5] == b"%PDF-"


@pytest.mark.slow(reason="starts a browser in a sandbox")
def test_a_level_in_the_environment(chromium):
    environment = Slides(SlidesConfig(level=3))
    task = environment.task(0)
    outcome = asyncio.run(play(environment, task, environment.oracle(task)))[1]
    assert outcome.failure is None, outcome.failure
    assert outcome.reward == 1.0 and outcome.rewards["strict_16_9"] == 1.0


@pytest.mark.nightly(reason="starts a browser for each hack")
@pytest.mark.parametrize("hack", [hack for hack in HACKS if hack.name in ALONE], ids=lambda hack: hack.name)
def test_measures_alone_catch_hacks(hack, chromium, brief, deck, found):
    changed = hack.make(deck, brief)
    shown = rendered(changed, pictures=True)
    broken = {*measured(shown, found(changed).layouts), *seen(shown)}
    assert broken, hack.name


@pytest.mark.nightly(reason="starts a browser several times")
def test_nothing_of_a_page_runs_or_loads(chromium, deck):
    script = "<script>document.body.innerHTML = ''; for (;;) alert(1)</script>"
    shown = rendered(
        deck.replace(
            "<body>", f"<body>{script}<img src='http://127.0.0.1:1/a'><iframe src='file:///etc/passwd'></iframe>"
        )
    )
    assert len(shown.pages) == 4 and len(shown.texts) >= 10 and shown.refused == 2


def result(outcome=CommandStatus.EXIT, stdout=b""):
    return ExecResult(outcome, 0, stdout, b"", 1.0)


def test_what_is_the_documents_fault_and_what_is_not():
    assert "output_limit" in browser.read(result(CommandStatus.OUTPUT_LIMIT)).flaw
    for broken in (result(), result(CommandStatus.TIMEOUT), result(stdout=b"{}"), result(stdout=b'{"pages": [[1]]}')):
        with pytest.raises(SandboxFault, match="Chromium gave no measures"):
            browser.read(broken)
    with pytest.raises(SandboxFault, match="Chromium failed: the browser ended"):
        browser.read(result(stdout=json.dumps({"error": "the browser ended", "log": ""}).encode()))


def test_places_are_on_their_page():
    box = {"page": 0, "node": 4, "parent": 2, "rect": [10, 120, 50, 20]}
    page = {"page": 0, "node": 2, "parent": 1, "rect": [0, 100, 1280, 720]}
    line = {"rect": [12, 122, 9, 9], "text": "a"}
    found = {"pages": [[0, 100, 1280, 720]], "boxes": [page, box], "hidden": [], "refused": 0, "version": "9",
             "texts": [{"page": 0, "node": 5, "parent": 4, "lines": [line]}]}  # fmt: skip
    shown = browser.read(result(stdout=json.dumps(found).encode()))
    assert shown.texts[0].lines[0].rect == browser.Rect(12, 22, 9, 9)
    assert shown.texts[0].around == (browser.Rect(10, 20, 50, 20),) and shown.pages == ((1280, 720),)


def test_a_level_without_its_layer_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(browser, "LayerStore", lambda: LayerStore(tmp_path))
    browser.browser_layers.cache_clear()
    with pytest.raises(
        ConfigError, match=r"environment\.level=.*fetch it with arcforge-env layers fetch chromium-headless"
    ):
        Slides(SlidesConfig(level=2))
    browser.browser_layers.cache_clear()
