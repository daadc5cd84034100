"""Conversations on the page, as people have them."""

import json
import re
import threading

from arcforge_rl.problems.toolbox import calculator
from support.browsing import answer, ask
from support.waiting import wait_until

END = "<|user|>"


TOOL = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}


def say(engine, *texts):
    """Has the model say these one after the other, and the last one again and again."""
    left = list(texts)
    engine.script = lambda prompt: (left.pop(0) if len(left) > 1 else left[0]) + END


def test_an_answer_with_reasoning_comes_and_stays(page, engine):
    say(engine, "Add **both**.</think>It is *42*.")
    last = ask(page, "17 + 25?")
    assert last.locator(".markdown em").inner_text() == "42"
    assert not last.locator(".reasoning").evaluate("each => each.open")
    assert re.fullmatch(r"Thought for [\d.]+ s", last.locator("summary").inner_text())
    last.locator("summary").click()
    assert last.locator(".reasoning strong").inner_text() == "both"
    assert re.fullmatch(r"\d+ tokens · [\d,.]+ tokens/s", last.locator(".stats").inner_text())
    assert engine.prompts == ["[gMASK]<sop><|user|>17 + 25?<|assistant|><think>"]
    page.reload()
    assert answer(page).locator(".markdown em").inner_text() == "42"
    assert page.locator(".bubble").inner_text() == "17 + 25?"
    assert page.locator("#conversations .title").inner_text() == "17 + 25?"


def test_it_is_shown_while_it_comes(page, engine):
    thinking, saying = threading.Event(), threading.Event()
    engine.holds = {" for a while": thinking, " for a long": saying}
    say(engine, "Hm, let me think about it for a while</think>It is so, and so it will be for a long time.")
    page.fill("#input", "Why?")
    page.press("#input", "Enter")
    page.locator(".reasoning[open]", has_text="Hm").wait_for()
    assert page.locator("summary").inner_text() == "Thinking…"
    thinking.set()
    page.locator(".message.assistant .markdown", has_text="It is").last.wait_for()
    assert not page.locator(".reasoning").evaluate("each => each.open")
    assert page.locator(".message.assistant").get_attribute("aria-busy") == "true"
    assert "long time" not in page.locator(".message.assistant").inner_text()
    page.press("#input", "Escape")
    assert "Stopped." in answer(page).inner_text()
    assert "about" in page.locator(".message .stats").inner_text()
    saying.set()
    wait_until(lambda: engine.stats().running == 0)


def test_thinking_is_on_preserved_or_off(page, engine):
    say(engine, "Secret.</think>One.")
    ask(page, "First?")
    ask(page, "Second?")
    assert "Secret" not in engine.prompts[-1] and engine.prompts[-1].endswith("<|assistant|><think>")
    page.select_option("#thinking", "preserved")
    ask(page, "Third?")
    assert engine.prompts[-1].count("<think>Secret.</think>") == 2
    page.select_option("#thinking", "off")
    say(engine, "No thoughts.")
    assert ask(page, "Fourth?").locator(".reasoning").is_hidden()
    assert engine.prompts[-1].endswith("<|assistant|></think>")
    page.reload()
    assert page.locator("#thinking").input_value() == "off"


def test_other_answers_and_edits_are_branches(page, engine):
    say(engine, "</think>One.", "</think>Two.", "</think>Three.")
    ask(page, "First?").get_by_role("button", name="Another answer").click()
    last = page.locator(".message.assistant", has_text="Two.")
    assert last.locator(".versions").inner_text().split() == ["2/2"]
    last.get_by_role("button", name="Version before").click()
    assert page.locator(".message.assistant", has_text="One.").locator(".versions").inner_text().split() == ["1/2"]
    first = page.locator(".message.user")
    first.hover()
    first.get_by_role("button", name="Edit this message").click()
    page.locator(".editor-area").fill("Other?")
    page.locator(".editor-area").press("Control+Enter")
    page.locator(".message.assistant", has_text="Three.").wait_for()
    assert engine.prompts[-1].endswith("<|user|>Other?<|assistant|><think>")
    page.locator(".message.user").get_by_role("button", name="Version before").click()
    assert "One." in page.locator("#messages").inner_text()  # the branch, as it was left
    assert len(engine.prompts) == 3


def test_an_edited_answer_is_what_the_model_is_told_it_said(page, engine):
    say(engine, "</think>Wrong.")
    last = ask(page, "First?")
    last.get_by_role("button", name="Edit this message").click()
    page.locator(".editor-area").fill("Right.")
    page.get_by_role("button", name="Save").click()
    ask(page, "Second?")
    assert "</think>Right.<|user|>Second?" in engine.prompts[-1]
    assert len(engine.prompts) == 2


def test_the_last_words_are_edited_by_the_arrow_key_or_left(page, engine):
    say(engine, "</think>One.")
    ask(page, "First?")
    page.press("#input", "ArrowUp")
    assert page.locator(".editor-area").input_value() == "First?"
    page.keyboard.press("Escape")
    assert page.locator(".bubble").inner_text() == "First?"


def set_tools(page, tools):
    page.click("#settings-button")
    page.fill("#tools", tools if isinstance(tools, str) else json.dumps(tools))
    page.press("#tools", "Escape")


def test_calls_are_shown_and_their_results_entered(page, engine):
    call = "<tool_call>weather<arg_key>city</arg_key><arg_value>Zürich</arg_value></tool_call>"
    set_tools(page, [TOOL])
    assert page.locator("#tools-chip").inner_text() == "1 tool"
    engine.script = lambda prompt: f"Ask.</think>{call}{call}<|observation|>"
    last = ask(page, "Rain?")
    assert last.locator(".call").all_inner_texts()[0].split() == [
        "Calls",
        "weather",
        "json",
        "{",
        '"city":',
        '"Zürich"',
        "}",
    ]
    page.fill("#input", "Well?")
    page.press("#input", "Enter")
    assert "waits for the results" in page.locator("#toast").inner_text()
    say(engine, "</think>It will not.")
    for area, text in zip(last.locator(".call textarea").all(), ("dry", "<b>sunny</b>"), strict=True):
        area.fill(text)
    last.get_by_role("button", name="Send the results").click()
    page.locator(".message.assistant", has_text="It will not.").wait_for()
    results = "<|observation|><tool_response>dry</tool_response><tool_response><b>sunny</b></tool_response>"
    assert results in engine.prompts[-1] and call in engine.prompts[-1]
    assert page.locator(".tool pre").all_inner_texts() == ["dry", "<b>sunny</b>"]
    assert page.locator(".call textarea").count() == 0


CALL = "<tool_call>calculator<arg_key>expression</arg_key><arg_value>{}</arg_value></tool_call>"


def test_calls_of_the_calculator_are_answered_by_the_page(page, engine):
    page.click("#settings-button")
    page.check("#calculator")
    page.press("#calculator", "Escape")
    assert page.locator("#tools-chip").inner_text() == "1 tool"
    engine.script = lambda prompt: (
        f"</think>It is {prompt.count('<tool_response>')}.<|user|>"
        if "<tool_response>" in prompt
        else f"I ask.</think>{CALL.format('8809*4275')}{CALL.format('8809*4275=')}<|observation|>"
    )
    page.fill("#input", "8809*4275?")
    page.press("#input", "Enter")
    page.locator(".message.assistant", has_text="It is 2.").wait_for()
    assert '"name": "calculator"' in engine.prompts[0]
    assert page.locator(".tool pre").all_inner_texts() == [
        "37658475",
        "Error: only numbers and + - * / // % are understood",
    ]
    assert len(engine.prompts) == 2


def test_a_model_that_only_calls_is_answered_eight_times(page, engine):
    page.click("#settings-button")
    page.check("#calculator")
    page.press("#calculator", "Escape")
    engine.script = lambda prompt: f"</think>{CALL.format('1+1')}<|observation|>"
    page.fill("#input", "Again?")
    page.press("#input", "Enter")
    page.locator(".message.assistant .call textarea").wait_for()
    assert len(engine.prompts) == 9


EXPRESSIONS = [
    "1+1", "8809*4275", "2**3", "(35+11)*18", "7//2", "-7//2", "7//-2", "-7%3", "7%-3", "7.5%2", "1/3", "6/3",
    "0.1+0.2", "1.5e-3*2", "-(2-5)", "--4", "2*-3", "1e5", "99999999999*99999999999", "", "1+", "(1", "1)", "a", "3 4",
    "1.5//0.5", ".5+1.",
]  # fmt: skip


def test_the_calculator_agrees_with_the_one_of_the_training_data(page):
    for expression in [*EXPRESSIONS, "1/0", "x" * 2000]:
        found = page.evaluate("async (text) => (await import('/page/calculator.js')).compute(text)", expression)
        try:
            wanted = calculator(expression)
        except ZeroDivisionError:
            wanted = "Error: division by zero"
        except (SyntaxError, ValueError):
            wanted = "Error: only numbers and + - * / // % are understood"
        assert found == wanted, expression


def test_definitions_of_tools_that_are_wrong_are_named(page, engine):
    set_tools(page, '[{"name": "a"}, {"nam": 1}]')
    assert page.locator("#tools-chip").inner_text() == "Tools: mistake"
    page.click("#tools-chip")
    assert page.locator("#tools-note").inner_text() == "Tool 2 has no name."
    page.keyboard.press("Escape")
    assert "Tool 2 has no name." in ask(page, "Hi").locator(".error").inner_text()
    assert engine.prompts == []


def test_system_prompt_and_sampling_reach_the_server(page, engine):
    page.click("#settings-button")
    page.fill("#system", "Be brief.")
    for name, value in (("temperature", "0.33"), ("max_tokens", "3"), ("stop", "END\n\nSTOP")):
        page.fill(f"#chat-{name}", value)
    page.fill("#chat-top_p", "7")
    assert page.locator("#chat-top_p-note").inner_text() == "A number from 0.01 to 1"
    page.keyboard.press("Escape")
    say(engine, "</think>A long answer.")
    with page.expect_request("**/v1/chat/completions") as request:
        last = ask(page, "Hi")
    body = request.value.post_data_json
    assert {name: body.get(name) for name in ("temperature", "max_tokens", "stop", "top_p", "thinking")} == {
        "temperature": 0.33, "max_tokens": 3, "stop": ["END", "STOP"], "top_p": None, "thinking": {"type": "enabled"},
    }  # fmt: skip
    assert engine.prompts[0].startswith("[gMASK]<sop><|system|>Be brief.<|user|>Hi")
    assert "Cut off" in last.inner_text()
    page.locator("#sidebar").get_by_role("button", name="New conversation").click()
    page.click("#settings-button")
    assert page.locator("#system").input_value() == "Be brief."  # new ones begin with the settings of the last


def test_conversations_are_listed_opened_deleted_and_restored(page, engine):
    say(engine, "</think>Yes.")
    for text in ("Alpha?", "Beta?"):
        page.locator("#sidebar").get_by_role("button", name="New conversation").click()
        ask(page, text)
    titles = page.locator("#conversations .title")
    assert titles.all_inner_texts() == ["Beta?", "Alpha?"]
    titles.last.click()
    assert page.locator(".bubble").inner_text() == "Alpha?"
    page.locator("#conversations li.here").hover()
    page.get_by_role("button", name="Delete Alpha?").click()
    assert titles.all_inner_texts() == ["Beta?"]
    page.get_by_role("button", name="Undo").click()
    assert titles.all_inner_texts() == ["Beta?", "Alpha?"]
    page.click("#settings-button")
    page.get_by_role("button", name="Delete all").click()
    page.get_by_role("button", name="Really delete all").click()
    assert titles.count() == 0
    assert page.evaluate("Object.keys(localStorage).filter(key => key.includes('conversation')).length") == 0


def test_an_answer_goes_on_while_another_conversation_is_read(page, engine):
    engine.seconds = 0.02
    say(engine, "</think>" + "word " * 20)
    page.fill("#input", "Long?")
    page.press("#input", "Enter")
    page.locator(".message.assistant", has_text="word").wait_for()
    page.locator("#sidebar").get_by_role("button", name="New conversation").click()
    assert page.locator(".message").count() == 0
    page.locator("#conversations .title", has_text="Long?").click()
    assert answer(page).locator(".markdown").last.inner_text() == ("word " * 20).strip()
    assert len(engine.prompts) == 1


def test_conversations_are_exported(page, engine):
    say(engine, "Hm.</think>Use ```` ``` ````.")
    ask(page, "How?")

    def exported(kind):
        page.click("#export-button")
        with page.expect_download() as download:
            page.locator("#export-menu").get_by_role("button", name=kind).click()
        assert download.value.suggested_filename == {"JSON": "how.json", "Markdown": "how.md"}[kind]
        return download.value.path().read_text()

    given = json.loads(exported("JSON"))
    assert [(m["role"], m["content"]) for m in given["messages"]] == [
        ("user", "How?"),
        ("assistant", "Use ```` ``` ````."),
    ]
    assert given["messages"][1]["reasoning_content"] == "Hm." and given["messages"][1]["stats"]["tokens"] > 5
    assert exported("Markdown") == (
        "# How?\n\nModel: small\n\n## You\n\nHow?\n\n## Answer\n\n"
        "<details><summary>Reasoning</summary>\n\nHm.\n\n</details>\n\nUse ```` ``` ````.\n"
    )


def test_messages_and_code_are_copied(page, context, engine):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(engine, "</think>Do\n\n```python\nprint(1 < 2)\n```")
    last = ask(page, "How?")
    for name, text in (("Copy this code", "print(1 < 2)"), ("Copy this message", "Do\n\n```python\nprint(1 < 2)\n```")):
        last.get_by_role("button", name=name).click()
        page.locator("#announce", has_text="Copied").wait_for(state="attached")
        assert page.evaluate("navigator.clipboard.readText()") == text
