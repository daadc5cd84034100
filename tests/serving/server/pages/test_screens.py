"""Chat, completion, settings, API and dashboard on narrow and wide screens, light and dark; and a base model's page."""

import pytest

from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.server.shared.starters import Starters
from support.browsing import ask, opened
from support.page_checks import looked_at
from support.servers import listening, scripted_state


def wait(page):
    page.locator("#model-length:not(:empty)").wait_for(state="attached")


def chat(page):
    wait(page)
    ask(page, "Hi")


def settings(page):
    wait(page)
    page.click("#settings-button")
    page.wait_for_timeout(300)  # what slides is through


def completion(page):
    wait(page)
    page.click("#mode-playground")


def figures(page):
    page.locator("#cards output", has_text="0").first.wait_for()


def routes(page):
    page.locator(".route").first.wait_for()


@pytest.mark.slow(reason="opens a page twice and runs axe-core")
@pytest.mark.parametrize(
    ("path", "prepare"),
    [("/", chat), ("/", settings), ("/", completion), ("/dashboard", figures), ("/docs", routes)],
    ids=["chat", "settings", "completion", "dashboard", "docs"],
)
def test_it_fits_every_screen_and_is_accessible(browser, screens, served, path, prepare):
    served[0].script = lambda prompt: "</think>Yes, **certainly**: `x = 1`.<|user|>"
    looked_at(browser, served[1] + path, screens, prepare)


def test_the_dashboard_has_axes_a_range_and_links(context, served):
    page = context.new_page()
    page.goto(f"{served[1]}/dashboard")
    figures(page)
    cards = page.locator("#cards section")
    assert cards.locator("canvas").count() == cards.count() >= 16
    assert page.locator("#range option").all_inner_texts() == ["5 minutes", "30 minutes", "2 hours"]
    page.select_option("#range", "1800")
    links = page.get_by_role("navigation").get_by_role("link")
    targets = {link.inner_text(): link.get_attribute("href") for link in links.all()}
    assert targets == {"Chat": "./", "API": "docs", "/metrics": "metrics"}
    assert "/page/" not in page.locator("#answers").inner_text()
    page.close()


@pytest.mark.parametrize(("path", "said"), [("/", "/v1/chat/completions"), ("/dashboard", "/metrics")])
def test_without_scripts_a_page_says_what_works(browser, served, path, said):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(served[1] + path)
    assert said in page.inner_text("noscript")
    for link in page.locator("noscript a").all():
        reply = context.request.get(f"{served[1]}/{link.get_attribute('href')}")
        assert reply.status == 200, link
    context.close()


def test_a_base_model_opens_on_completion_with_beginnings_and_without_thinking(context, faults):
    state = scripted_state(small_tokenizer(), lambda prompt: "a, b):<|endoftext|>")
    state.starters = Starters(base=True)
    with listening(state) as (_, address):
        page = opened(context, address, faults)
        assert page.locator("#playground").is_visible() and page.locator("#chat").is_hidden()
        assert "is a base model" in page.locator("#why").inner_text()
        page.get_by_role("button", name="def add(").click()
        page.locator(".toolbar .stats:not(:empty)").wait_for()
        assert page.locator("#text").input_value() == "def add(a, b):"
        page.click("#mode-chat")
        assert page.locator("#thinking").input_value() == "off"
        page.close()
