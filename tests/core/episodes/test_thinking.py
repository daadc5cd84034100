"""Thinking modes: the reasoning that a rendered history keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcforge_core.chat.glm5 import Glm5Template
from arcforge_core.chat.jinja import JinjaTemplate
from arcforge_core.configs import Glm5TemplateConfig, JinjaTemplateConfig
from arcforge_core.contracts.chat import ChatTemplate, Message, ToolCall
from arcforge_core.episodes.agent import THINKING, ChatDialogue
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs.learning import MODES

TOKENIZER = small_tokenizer()
WORKING = [Message("user", "u"), Message("assistant", "", "inner", (ToolCall("f", {"a": "x"}),)), Message("tool", "t")]
ASKED = [*WORKING, Message("assistant", "y", "second"), Message("user", "w")]
PRESERVES = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content and not clear_thinking|default(false) %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def kept(template: ChatTemplate, mode: str, messages: list[Message]) -> list[str]:
    text = TOKENIZER.decode(list(ChatDialogue(template, THINKING[mode]).prompt(messages, ()).ids))
    return [word for word in ("inner", "second") if word in text]


@pytest.mark.parametrize(
    ("mode", "working", "asked", "opens"),
    [
        ("off", ["inner"], [], False),
        ("on", ["inner"], [], True),
        ("interleaved", ["inner"], [], True),
        ("preserved", ["inner"], ["inner", "second"], True),
    ],
)
def test_modes_of_glm5(mode: str, working: list[str], asked: list[str], opens: bool) -> None:
    template = Glm5Template(Glm5TemplateConfig(), TOKENIZER)
    assert kept(template, mode, WORKING) == working and kept(template, mode, ASKED) == asked
    prompt = ChatDialogue(template, THINKING[mode]).prompt(ASKED, ()).ids
    assert (TOKENIZER.special["</think>"] != prompt[-1]) == opens


def test_on_leaves_history_to_the_templates_default_and_the_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(PRESERVES)
    template = JinjaTemplate(JinjaTemplateConfig(template=str(tmp_path / "t.jinja")), TOKENIZER)
    plain = [ASKED[0], Message("assistant", "x", "inner"), *ASKED[3:]]
    found = {mode: kept(template, mode, plain) for mode in MODES}
    both = ["inner", "second"]
    assert found == {"off": both, "on": both, "interleaved": [], "preserved": both}


def test_the_options_modes_are_those_of_dialogues() -> None:
    assert set(MODES) == set(THINKING)
