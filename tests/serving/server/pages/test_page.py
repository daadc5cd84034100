"""The page around conversations: errors, keys, keyboard, narrow and dark screens, drafts, the playground."""

import re

import pytest

from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.auth import USER_KEYS
from arcforge_serving.server.gate.guard import Guard
from support.browsing import answer, ask, opened
from support.servers import listening, scripted_state

END = "<|user|>"
CHAT = "**/v1/chat/completions"
BEGIN = (
    'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Well"}, "finish_reason": null}]}\n\n'
)
NAMES = """() => [...document.querySelectorAll("button, input, select, textarea, a, nav, aside, [role=group]")]
  .filter((each) => each.checkVisibility())
  .filter((each) => !(each.ariaLabel || each.labels?.length || each.innerText?.trim()))
  .map((each) => each.outerHTML)"""
CONTRASTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (colour) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = channels(colour).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (each) => {
    for (; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
  };
  const texts = [...document.querySelectorAll("body *")].filter((each) =>
    each.checkVisibility({ opacityProperty: true })
    && !each.closest("svg, :disabled, .visually-hidden, .under, .skip")
    && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return texts.map((each) => {
    const [a, b] = [light(getComputedStyle(each).color), light(ground(each))].sort();
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.className + " " + each.textContent.slice(0, 30)];
  });
}"""


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ({"status": 503, "json": {"error": {"message": "too many requests wait"}}}, "too many requests wait"),
        ({"status": 400, "json": {"error": {"message": "", "code": "context_length_exceeded"}}}, "a new conversation"),
        ({"status": 502, "body": "<html>Bad gateway"}, "status 502"),
        ({"body": BEGIN + 'data: {"error": {"message": "not finite"}}\n\ndata: [DONE]\n\n'}, "not finite"),
        ({"body": BEGIN}, "ended before the answer did"),
        ({"body": BEGIN + "data: nonsense\n\n"}, "connection to the server was lost"),
        (None, "cannot be reached"),
    ],
)  # fmt: skip
def test_errors_are_told_and_can_be_tried_again(page, engine, reply, shown):
    page.route(CHAT, lambda route: route.abort() if reply is None else route.fulfill(**reply), times=1)
    last = ask(page, "Hi")
    assert shown in last.locator(".error").inner_text()
    assert ("Well" in last.inner_text()) == (reply is not None and "body" in reply and reply["body"].startswith(BEGIN))
    engine.script = lambda prompt: f"</think>Better.{END}"
    last.get_by_role("button", name="Try again").click()
    page.locator(".message.assistant", has_text="Better.").wait_for()
    assert page.locator(".message").count() == 2


def test_keys_are_asked_for_and_not_kept(context, browser, faults):
    state = scripted_state(small_tokenizer(), lambda prompt: f"</think>Yes.{END}")
    state.guard = Guard.of(ServeConfig(PagedEngineConfig()), {USER_KEYS: "users-key"})
    with listening(state) as (_, address):
        page = opened(context, address, faults)
        assert "needs an API key" in page.locator("#banner").inner_text()
        page.locator("#banner").get_by_role("button", name="Enter a key").click()
        page.fill("#key", "ключ")
        page.press("#key", "Tab")
        assert "ASCII" in page.locator("#key-note").inner_text()
        page.fill("#key", "wrong-key")
        page.press("#key", "Tab")
        page.locator("#banner", has_text="needs an API key").wait_for()
        page.fill("#key", "users-key")
        page.press("#key", "Tab")
        page.locator("#model-name", has_text="small").wait_for()
        assert page.locator("#banner").is_hidden()
        page.keyboard.press("Escape")
        page.route(CHAT, lambda route: route.fulfill(status=401, body="{}"), times=1)
        last = ask(page, "Hi")
        assert "does not know this API key" in last.inner_text()
        last.get_by_role("button", name="Enter a key").click()
        assert page.evaluate("document.activeElement.id") == "key"
        page.keyboard.press("Escape")
        assert ask(page, "Hi again").locator(".markdown").last.inner_text() == "Yes."
        page.reload()
        page.locator("#model-name", has_text="small").wait_for()
        assert "users-key" not in page.evaluate("JSON.stringify(localStorage)")
        page.close()


def test_the_server_may_come_back(page):
    page.route("**/page/model.json", lambda route: route.abort(), times=1)
    page.reload()
    assert "cannot be reached" in page.locator("#banner").inner_text()
    page.locator("#banner").get_by_role("button", name="Try again").click()
    page.locator("#model-name", has_text="small").wait_for()
    assert page.locator("#banner").is_hidden()


def test_keys_of_the_keyboard(page, engine):
    page.fill("#input", "one")
    page.press("#input", "Shift+Enter")
    page.locator("#input").press_sequentially("two")
    page.evaluate(
        "document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true }))"
    )
    assert page.locator(".message").count() == 0  # the Enter of an input method chooses a word
    assert ask(page, page.locator("#input").input_value()) and page.locator(".bubble").inner_text() == "one\ntwo"
    page.locator("#scroll").focus()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "input" and page.locator("#input").input_value() == ""
    page.keyboard.press("Control+Shift+S")
    assert page.locator("#settings").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#settings").is_hidden()
    assert page.evaluate("document.activeElement.id") == "settings-button"
    page.keyboard.press("Control+Shift+E")
    assert page.locator(".message").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_can_be_read(page, engine, scheme):
    page.emulate_media(color_scheme=scheme)
    engine.script = lambda prompt: (
        f"Hm.</think>See `x` and [y](https://z.org).\n\n> q\n\n```python\nif 1: 'a' # b\n```{END}"
    )
    ask(page, "Hi").locator("summary").click()
    for settings_open in (False, True):
        if settings_open:
            page.click("#settings-button")
        assert page.evaluate(NAMES) == []
        assert [entry for entry in page.evaluate(CONTRASTS) if entry[0] < 4.5] == []
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(252, 252, 250)") == (scheme == "light")
    page.select_option("#theme", "light" if scheme == "dark" else "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper


def test_narrow_screens(page, engine):
    page.set_viewport_size({"width": 360, "height": 640})
    engine.script = lambda prompt: (
        f"</think>{'long' * 40}\n\n```\n{'x' * 80}\n```\n\n| a | b |\n|-|-|\n| {'y' * 60} | z |{END}"
    )
    ask(page, "Hi")
    assert page.evaluate("[document.documentElement.scrollWidth, document.querySelector('#scroll').scrollWidth]") == [
        360,
        360,
    ]
    assert page.locator("#sidebar").is_hidden()
    page.get_by_role("button", name="Conversations").click()
    page.locator("#sidebar .title").click()
    page.locator("#sidebar").wait_for(state="hidden")
    box = page.locator("#send").bounding_box()
    assert box["x"] > 0 and box["x"] + box["width"] < 360 and box["y"] + box["height"] < 640


def test_reading_is_not_disturbed_by_what_comes(page, engine):
    engine.seconds = 0.01
    engine.script = lambda prompt: "</think>" + "a\n\n" * 60 + END
    page.fill("#input", "Hi")
    page.press("#input", "Enter")
    scroll = page.locator("#scroll")
    page.wait_for_selector(".message.assistant p:nth-child(25)")
    assert scroll.evaluate("each => each.scrollHeight - each.scrollTop - each.clientHeight") < 60
    scroll.hover()
    page.mouse.wheel(0, -300)
    page.locator("#jump").wait_for()
    where = scroll.evaluate("each => each.scrollTop")
    answer(page)
    assert scroll.evaluate("each => each.scrollTop") == where
    page.click("#jump")
    assert scroll.evaluate("each => each.scrollHeight - each.scrollTop - each.clientHeight") < 2


def test_a_full_store_is_told(page):
    page.evaluate("void (Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') })")
    assert ask(page, "Hi").locator(".markdown").last.inner_text() != ""
    assert "no more room" in page.locator("#toast").inner_text()


def test_a_tab_that_was_closed_on_the_way_leaves_what_had_come(page, engine):
    engine.seconds = 0.05
    engine.script = lambda prompt: f"</think>{'word ' * 400}{END}"
    page.fill("#input", "Hi")
    page.press("#input", "Enter")
    page.locator(".message.assistant", has_text="word").wait_for()
    page.reload()
    assert "Stopped." in answer(page).inner_text()
    assert "word" in page.locator(".message.assistant").inner_text()


def test_accepted_drafts_are_counted(context, faults):
    drafting = {"draft_tokens": 1, "drafting": "always"}
    state = scripted_state(small_tokenizer(), lambda prompt: f"</think>one two three one two three{END}", **drafting)
    with listening(state) as (_, address):
        page = opened(context, address, faults)
        stats = ask(page, "Hi").locator(".stats")
        assert re.search(r"accepted length 1\.[0-9]+$", stats.inner_text())
        taken, drafted = map(int, re.search(r"(\d+) of (\d+) drafted", stats.get_attribute("title")).groups())
        assert 0 < taken <= drafted
        assert taken == sum(state.engine.stats().accepted_by_position)
        page.close()


# ---- completion ------------------------------------------------------------------------------------------------------


def test_texts_go_on_and_are_taken_back(page, engine):
    engine.script = lambda prompt: "there was a king" + "<|endoftext|>"
    page.click("#mode-playground")
    page.fill("#text", "Once ")
    page.check("#likely")
    page.get_by_role("button", name="Continue").click()
    page.locator(".toolbar .stats:not(:empty)").wait_for()
    assert page.locator("#text").input_value() == "Once there was a king"
    assert page.locator(".under mark").inner_text() == "there was a king"
    chips = page.locator(".token")
    assert "".join(chips.all_inner_texts()).startswith("there was a king")
    assert re.fullmatch(r'"t", [\d.]+%', chips.first.get_attribute("aria-label"))
    assert 3 <= len(chips.first.get_attribute("title").splitlines()) <= 5  # tokens that are no text look the same
    page.get_by_role("button", name="Another continuation").click()
    page.locator(".toolbar .stats:not(:empty)").wait_for()
    assert len(engine.prompts) == 2 and all(prompt.endswith("Once ") for prompt in engine.prompts)
    page.get_by_role("button", name="Take the continuation back").click()
    assert page.locator("#text").input_value() == "Once "


def test_models_that_say_nothing_are_told(page, engine):
    engine.script = lambda prompt: "<|endoftext|>"
    assert "The model has said nothing." in ask(page, "Hi").inner_text()
    page.click("#mode-playground")
    page.get_by_role("button", name="Continue").click()
    page.locator(".toolbar .stats", has_text="The model ends the text here.").wait_for()


def test_a_model_without_a_template_completes_only(context, faults):
    state = scripted_state(small_tokenizer(), lambda prompt: "x" * 500)
    state.template, state.no_template = None, "it has none"
    state.engine.seconds = 0.02
    with listening(state) as (_, address):
        page = opened(context, address, faults)
        assert page.locator("#modes").is_hidden() and page.locator("#chat").is_hidden()
        assert page.locator("#why").inner_text() == "small has no chat template (it has none), so it continues texts."
        page.click("#settings-button")
        page.fill("#text-max_tokens", "300")
        assert page.locator("#system").count() == 0
        page.keyboard.press("Escape")
        page.fill("#text", "A")
        with page.expect_request("**/v1/completions") as request:
            page.press("#text", "Control+Enter")
        assert request.value.post_data_json["max_tokens"] == 300
        page.locator(".under mark", has_text="xxx").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Continue").wait_for()
        assert 1 < len(page.locator("#text").input_value()) < 300
        page.route("**/v1/completions", lambda route: route.fulfill(status=400, json={"error": {"message": "no"}}))
        page.get_by_role("button", name="Continue").click()
        page.locator("#playground .error", has_text="no").wait_for()
        page.close()
