"""Bridges to the next turn compared with those of the package ``renderers`` (0.1.12), an independent implementation.

`renderers_bridges.json` has its answers to random turns, so that the comparison needs no further package. With the
package, `test_more_turns_live` draws others. The record was written, and is rewritten, by

    PYTHONPATH=FOLDER_WITH_RENDERERS:tests python tests/core/chat/test_renderers.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.chat.glm5 import Glm5Template
from arcforge_core.configs import Glm5TemplateConfig
from arcforge_core.contracts.chat import ChatOptions, Fork, Message, Tool
from arcforge_core.testing.small_models import small_tokenizer

TOKENIZER = small_tokenizer()
TEMPLATE = Glm5Template(Glm5TemplateConfig(), TOKENIZER)
RECORD = Path(__file__).with_name("renderers_bridges.json")
RECORDED, LIVE = 400, 1000
WORDS = ("one", " two", "3", " é", "\n", "漢", " <", "</think")
DEFINITION = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
CALL = ("<tool_call>", "f", "<arg_key>", "a", "</arg_key>", "<arg_value>", None, "</arg_value>", "</tool_call>")
ENDS = ("<|user|>", "<|observation|>", "<|endoftext|>", "")
STRAYS = ("<|system|>", "<|assistant|>", "<think>", "</think>", "<tool_call>")

Turn = dict[str, Any]


def draw_turn(draw: random.Random) -> Turn:
    """Returns a conversation, its completion as parts (special tokens are parts of their own), and what follows."""

    def text() -> str:
        return "".join(draw.choice(WORDS) for _ in range(draw.randint(0, 4)))

    thinking = draw.random() < 0.7
    said = [text(), *(["</think>"] if draw.random() < 0.85 else [])] if thinking else []
    said.append(text())
    for _ in range(draw.choice((0, 0, 1, 2))):
        said += [text() if part is None else part for part in CALL]
    if draw.random() < 0.25:  # cut off
        said = said[: draw.randint(0, len(said))]
    if draw.random() < 0.05:
        said.insert(draw.randint(0, len(said)), draw.choice(STRAYS))
    system = [["system", text()]] if draw.random() < 0.3 else []
    news = [[draw.choice(("user", "tool", "system")), text()] for _ in range(draw.randint(1, 3))]
    return {
        "thinking": thinking,
        "clear": draw.random() < 0.5,
        "tools": draw.random() < 0.5,
        "before": [*system, ["user", text()]],
        "said": [*said, *filter(None, [draw.choice(ENDS)])],
        "news": news,
    }


def options_of(turn: Turn) -> ChatOptions:
    return ChatOptions(enable_thinking=turn["thinking"], clear_thinking=turn["clear"])


def prompt_of(turn: Turn) -> list[int]:
    messages, tools = [Message(*pair) for pair in turn["before"]], [Tool(DEFINITION)] if turn["tools"] else []
    return list(TEMPLATE.render(messages, tools, options_of(turn), generation_prompt=True).ids)


def completion_of(turn: Turn) -> list[int]:
    special = TOKENIZER.special
    return [id_ for part in turn["said"] for id_ in ([special[part]] if part in special else TOKENIZER.encode(part))]


def ours(turn: Turn) -> list[int] | Fork:
    """Returns the tokens that our template writes after a turn."""
    tools = [Tool(DEFINITION)] if turn["tools"] else []
    prompt, completion = prompt_of(turn), completion_of(turn)
    news = [Message(*pair) for pair in turn["news"]]
    found = TEMPLATE.bridge_to_next_turn(prompt, completion, news, tools, options_of(turn))
    return found if isinstance(found, Fork) else list(found.ids[len(prompt) + len(completion) :])


def theirs(turn: Turn) -> list[int] | None:
    """Returns the tokens that ``renderers`` writes after a turn; None where it renders everything again."""
    from renderers.configs import GLM5RendererConfig
    from renderers.glm5 import GLM5Renderer

    class Theirs:
        unk_token_id, eos_token_id = None, TOKENIZER.eos_id

        def convert_tokens_to_ids(self, token: str) -> int:
            return TOKENIZER.special[token]

        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return TOKENIZER.encode(text, allow_special=True)

        def decode(self, ids: list[int], **options: Any) -> str:
            return TOKENIZER.decode(list(ids))

    config = GLM5RendererConfig(enable_thinking=turn["thinking"], clear_thinking=turn["clear"])
    renderer, tools = GLM5Renderer(Theirs(), config), [DEFINITION] if turn["tools"] else None
    before = [{"role": role, "content": text} for role, text in turn["before"]]
    prompt = renderer.render(before, tools=tools, add_generation_prompt=True).token_ids
    assert prompt == prompt_of(turn)
    completion = completion_of(turn)
    news = [{"role": role, "content": text} for role, text in turn["news"]]
    found = renderer.bridge_to_next_turn(prompt, list(completion), news, tools=tools)
    return None if found is None else list(found.token_ids[len(prompt) + len(completion) :])


def compare(turns: list[Turn], answers: list[list[int] | None]) -> None:
    """Checks that ids are equal where both extend; ours alone forks to clear reasoning, and for nothing else."""
    both = 0
    for turn, answer in zip(turns, answers, strict=True):
        found = ours(turn)
        if isinstance(found, Fork):
            assert answer is None or "clears the reasoning" in found.reason, (turn, found)
        elif answer is not None:
            assert found == answer, (turn, TOKENIZER.decode(found), TOKENIZER.decode(answer))
            both += 1
    assert both > 0.6 * len(turns)


def test_recorded_turns_continue_as_in_renderers() -> None:
    rows = json.loads(RECORD.read_text(encoding="utf-8"))
    assert len(rows) == RECORDED
    written = [None if text is None else TOKENIZER.encode(text, allow_special=True) for _, text in rows]
    compare([turn for turn, _ in rows], written)


def test_more_turns_live() -> None:
    pytest.importorskip("renderers")
    draw = random.Random(1)
    turns = [draw_turn(draw) for _ in range(LIVE)]
    compare(turns, [theirs(turn) for turn in turns])


if __name__ == "__main__":
    drawn = random.Random(0)
    found = []
    for turn in (draw_turn(drawn) for _ in range(RECORDED)):
        answer = theirs(turn)
        found.append([turn, None if answer is None else TOKENIZER.decode(answer)])
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in found)
    RECORD.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
