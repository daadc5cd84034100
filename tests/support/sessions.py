"""A client of a `SessionTree` that checks, at every turn and at the end, what must always hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from arcforge_core.chat.glm5 import Glm5Template
from arcforge_core.configs import Glm5TemplateConfig
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.contracts.sessions import SessionRecord, path_of
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.gateway.tree import Attachment, Node, SessionTree

TOKENIZER = small_tokenizer()
TEMPLATE = Glm5Template(Glm5TemplateConfig(), TOKENIZER)
QUIET = ChatOptions(enable_thinking=False)
THINKS = ChatOptions()
PRESERVED = ChatOptions(clear_thinking=False)
TOOL = Tool(
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "number"}}},
        },
    }
)
CALL = (
    "<tool_call>f<arg_key>a</arg_key><arg_value>one</arg_value><arg_key>n</arg_key><arg_value>3</arg_value></tool_call>"
)


def user(text: str) -> Message:
    return Message("user", text)


def tool(text: str) -> Message:
    return Message("tool", text)


def said(text: str) -> Message:
    return Message("assistant", text)


def text_of(ids: Sequence[int]) -> str:
    return TOKENIZER.decode([int(id_) for id_ in ids])


def with_reasoning_of(earlier: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    """Returns messages with the reasoning that they lack and had in an earlier request, as far as both are alike."""
    found = list(messages)
    for place, (before, now) in enumerate(zip(earlier, messages, strict=False)):
        if (before.role, before.content.strip(), before.tool_calls) != (now.role, now.content.strip(), now.tool_calls):
            break
        found[place] = before if now.role == "assistant" and not now.reasoning else now
    return found


@dataclass
class Client:
    """Asks a tree for prompts, and samples what the test says.

    Attributes:
        tree: the session.
        sampled: every token that was recorded as sampled, by node: prompt, completion.
        asked: messages of all requests.
    """

    tree: SessionTree = field(default_factory=lambda: SessionTree(TEMPLATE))
    sampled: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    asked: list[Sequence[Message]] = field(default_factory=list)

    def attach(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions = QUIET
    ) -> Attachment:
        at = self.tree.attach(messages, tools, options)
        if at.drift == "new":
            meant = [messages]
            if self.tree.match == "loose":
                meant += [with_reasoning_of(earlier, messages) for earlier in self.asked]
            rendered = (TEMPLATE.render(each, tools, options, generation_prompt=True).ids for each in meant)
            assert any(at.prompt == list(ids) for ids in rendered)
        self.asked.append(messages)
        assert at.read and at.prompt[-1] in (TOKENIZER.special["<think>"], TOKENIZER.special["</think>"])
        return at

    def record(self, at: Attachment, text: str, tools: Sequence[Tool] = (), version: int = 0) -> Node:
        ids = TOKENIZER.encode(text, allow_special=True)
        logprobs = [-0.25 - 0.001 * n for n in range(len(ids))]
        reply = TEMPLATE.parse(ids, at.prompt, tools).message
        node = self.tree.record(at, GenerationOutput(ids, logprobs, "stop", version), reply)
        self.sampled[node.number] = (at.prompt, ids)
        return node

    def ask(
        self,
        messages: Sequence[Message],
        text: str = "two<|user|>",
        tools: Sequence[Tool] = (),
        options: ChatOptions = QUIET,
    ) -> tuple[Attachment, Message]:
        """Plays a turn; returns where it attached, and the reply as the client has it."""
        at = self.attach(messages, tools, options)
        return at, self.record(at, text, tools).reply

    def check(self) -> list[Branch]:
        """Checks the branches; returns them.

        Each begins with a token that was read. The tokens before a trained one are exactly those that it was sampled
        after. A sampled token is trained once, or a realignment has replaced it.
        """
        branches = self.tree.branches()
        owners: dict[tuple[int, int], int] = {}
        parts = self.tree.parts
        record = SessionRecord("s", [], parts, self.tree.leaves, self.tree.masked)
        read_back = SessionRecord.from_json(json.loads(json.dumps(record.as_json())))
        assert [
            each.named(branch.branch_id) for each, branch in zip(read_back.branches, branches, strict=True)
        ] == branches
        leaves = [node for node in self.tree.nodes if not node.is_continued]
        assert len(leaves) == len(branches)
        for leaf, branch in zip(leaves, branches, strict=True):
            assert np.array_equal(branch.ids, leaf.ids()) and not branch.sampled[0]
            assert branch.num_sampled, "a branch without sampled tokens trains nothing"
            place = 0
            for number, count in path_of(parts, leaf.number):
                node = self.tree.nodes[number]
                prompt, completion = self.sampled[number]
                for n in range(count):
                    if branch.sampled[place + n]:
                        token = n - node.read
                        assert branch.ids[: place + n].tolist() == [*prompt, *completion[:token]]
                        assert branch.ids[place + n] == completion[token]
                        assert branch.logprobs[place + n] == -0.25 - 0.001 * token
                        owner = (node.number, token)
                        assert owner not in owners
                        owners[owner] = place + n
                place += count
        total = sum(len(completion) for _, completion in self.sampled.values())
        assert len(owners) + self.tree.masked == total
        return branches
