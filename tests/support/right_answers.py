"""A server whose model says the right thing: the first of a few answers that the request's own constraint lets through.

The engine, the templates, the grammars and the parsers are those of `arcforge-serve`; of the model, only the choice of
tokens is replaced. An answer that the constraint refuses is never said, so a wrong grammar fails a cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.testing.small_models import small_model, small_tokenizer
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.engine.stream import Stream
from arcforge_serving.server.serve import state_of
from support.servers import Says, listening

VALUES = {"string": "Paris", "integer": 21, "number": 21.5, "boolean": True}
TEXT, STRUCTURE = "It is 21 degrees in Paris.", json.dumps({"city": "Paris", "degrees": 21})
NAME = "small"


class RightAnswers(PagedEngine):
    """Says what a good model would; `tokenizer` has to be set."""

    tokenizer: Tokenizer

    def submit(self, prompt: Sequence[int], params: SamplingParams, **further: Any) -> list[Stream]:
        """Queues a request; see `PagedEngine.submit`."""
        text = self.tokenizer.decode(list(prompt))
        thought = "I look it up.</think>" if text.endswith("<think>") else ""
        for answer in candidates(text):
            ids = self.tokenizer.encode(f"{thought}{answer}", allow_special=True)
            if params.matcher is None or lets_through(params, ids):
                matcher = partial(Says, ids, self.model.config.vocab_size, 0.0)
                return super().submit(prompt, replace(params, matcher=matcher), **further)
        raise AssertionError(f"the request's constraint lets none of {candidates(text)} through")


def lets_through(params: SamplingParams, ids: Sequence[int]) -> bool:
    """Whether a request's constraint allows a turn of these ids, of which the last ends it."""
    assert params.matcher is not None
    matcher = params.matcher()
    for id_ in ids:
        if matcher.finished:
            return id_ == ids[-1]
        if not matcher.allowed()[id_]:
            return False
        matcher.accept(id_)
    return True


def candidates(prompt: str) -> list[str]:
    """Returns the answers to a prompt of GLM-5's format, the best first."""
    block = re.search(r"<tools>\n(.*?)</tools>", prompt, re.DOTALL)
    tools = [json.loads(line)["function"] for line in block[1].splitlines()] if block else []
    looks_up = [tool for tool in tools if tool["name"] == "get_weather"]
    ends = [tool for tool in tools if tool["name"] != "get_weather"]
    knows = "<tool_response>" in prompt.rsplit("<|user|>", 1)[-1]
    calls = [call(tool) for tool in (ends if knows or not looks_up else looks_up)]
    return [*calls, TEXT + "<|user|>", STRUCTURE + "<|user|>"]


def call(tool: dict[str, Any]) -> str:
    """Returns a call with a value for every required argument."""
    schema = tool.get("parameters") or {}
    values = {name: VALUES[schema["properties"][name]["type"]] for name in schema.get("required", ())}
    parts = [
        f"<arg_key>{name}</arg_key><arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
        for name, value in values.items()
    ]
    return f"<tool_call>{tool['name']}{''.join(parts)}</tool_call><|observation|>"


def serve() -> Any:
    """Returns a context with a server and its URL."""
    tokenizer = small_tokenizer()
    model = small_model(vocab_size=tokenizer.vocab_size, max_position_embeddings=8192)
    engine = RightAnswers(PagedEngineConfig(), model)
    engine.tokenizer = tokenizer
    return listening(state_of(engine, tokenizer, NAME))
