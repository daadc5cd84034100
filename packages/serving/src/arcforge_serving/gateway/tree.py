"""The tokens of a session as a tree: every request continues recorded ids, every sampled token is trained once.

A node is one turn: the tokens read after its parent's, then the sampled ones. A request attaches to the deepest node
whose messages and tools it repeats. So a client that retries, rolls back, edits its history or runs several
conversations in one session makes siblings, and each path from the root to a leaf is one branch to train on.

Matching costs the request's messages, once each (a chain of hashes); nodes hold their own tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from arcforge_core.contracts.algorithm import Array, Branch
from arcforge_core.contracts.chat import ChatOptions, ChatTemplate, Fork, Message, NextTurn, OpenTurn, Tool
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_serving.gateway.keys import Match, agrees, link, seed_of

Drift = Literal["new", "clean", "realign", "fork"]


@dataclass(eq=False)
class Node:
    """A turn.

    Attributes:
        number: of the node in its tree, in order of recording.
        parent: the turn that it continues; None at the start of a conversation.
        keep: how many tokens of the parent's path are part of this one's; all of them except after a realignment.
        tokens: of this turn alone: those read, then those sampled.
        read: number of tokens that were read.
        reply: the message that the client received.
        turn: state of the template after the sampled tokens.
        children: turns that continue this one.
    """

    number: int
    parent: Node | None
    keep: int
    tokens: Branch
    read: int
    reply: Message
    turn: OpenTurn
    children: list[Node] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Length of the path before the first sampled token."""
        return self.keep + self.read

    @property
    def length(self) -> int:
        """Length of the path."""
        return self.keep + len(self.tokens)

    def parts(self, length: int | None = None) -> list[tuple[Node, int]]:
        """Returns the nodes of the path from the root, each with the number of its tokens that the path has.

        Args:
            length: of the path; None is all of it.
        """
        found: list[tuple[Node, int]] = []
        node, end = self, self.length if length is None else length
        while True:
            if end > node.keep:
                found.append((node, end - node.keep))
            end = node.keep
            if node.parent is None:
                return found[::-1]
            node = node.parent

    def ids(self, length: int | None = None) -> Array:
        """Returns the token ids of the path, int64."""
        return np.concatenate([node.tokens.ids[:count] for node, count in self.parts(length)])


@dataclass(frozen=True)
class Attachment:
    """Where a request continues, and with which tokens.

    Attributes:
        parent: node that it continues; None if it begins a branch.
        keep: how many tokens of the parent's path stay.
        read: further tokens to read.
        turn: state of the template after them.
        drift: ``new`` (nothing recorded is repeated), ``clean`` (recorded ids are extended), ``realign`` (the client's
            copy replaces the end of the last reply and is not trained) or ``fork`` (the recorded reply keeps a branch
            of its own).
        reason: why it is not ``clean``.
        masked: sampled tokens that a realignment replaces.
        chain: of the request's messages.
    """

    parent: Node | None
    keep: int
    read: tuple[int, ...]
    turn: OpenTurn
    drift: Drift
    reason: str
    masked: int
    chain: bytes

    @property
    def prompt(self) -> list[int]:
        """All tokens that the engine reads."""
        kept = [] if self.parent is None else self.parent.ids(self.keep).tolist()
        return [*kept, *self.read]


class SessionTree:
    """The turns of one session. Pure: no clock, no engine, no HTTP. Not thread-safe.

    Args:
        template: renders, continues and parses.
        match: when a message of a request is a recorded one; see `link`.
        fork_threshold_tokens: a reply that came back changed is realigned if fewer sampled tokens than this are lost by
            it; 0 loses none and always forks.
    """

    def __init__(self, template: ChatTemplate, match: Match = "loose", fork_threshold_tokens: int = 1024) -> None:
        self.template, self.match, self.fork_threshold_tokens = template, match, fork_threshold_tokens
        self.nodes: list[Node] = []
        self._said: dict[bytes, Node] = {}  # by the chain of all messages, the reply included
        self._asked: dict[bytes, Node] = {}  # by the chain of the messages before the reply

    def attach(self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions) -> Attachment:
        """Returns where a request continues. Changes nothing: the engine may fail, or the client may be gone.

        Raises:
            ConfigError: the template cannot render the conversation.
        """
        chain, node, known, changed = self._find(messages, tools)
        news = messages[known:]
        found: NextTurn | Fork = Fork("nothing recorded is repeated")
        if node is not None:
            found = self.template.next_turn(node.turn, news, tools, options) if news else Fork("no message is new")
        if node is not None and changed is None and isinstance(found, NextTurn):
            return Attachment(node, node.length, found.rendered.ids, found.turn, "clean", "", 0, chain)

        reason = "the client changed the last reply"
        if changed is None and isinstance(found, Fork):
            reason = found.reason
        last = changed or node
        ids = None
        if last is not None and not last.children:
            ids = self.template.render(messages, tools, options, generation_prompt=True).ids
            common = common_length(last.ids(), ids)
            lost = last.length - common
            if common >= last.start and (lost < self.fork_threshold_tokens or not lost):
                turn = self.template.open_turn(ids, tools)
                drift: Drift = "realign" if lost else "clean"
                return Attachment(last, common, ids[common:], turn, drift, reason if lost else "", lost, chain)
        if node is not None and isinstance(found, NextTurn):  # the changed reply is context
            return Attachment(node, node.length, found.rendered.ids, found.turn, "fork", reason, 0, chain)
        ids = ids or self.template.render(messages, tools, options, generation_prompt=True).ids
        begun: Drift = "new" if last is None else "fork"
        return Attachment(None, 0, ids, self.template.open_turn(ids, tools), begun, reason, 0, chain)

    def record(self, at: Attachment, output: GenerationOutput, reply: Message) -> Node:
        """Adds a turn; see `node_of`."""
        node = self.node_of(at, output, reply)
        self.add(node, at.chain)
        return node

    def node_of(self, at: Attachment, output: GenerationOutput, reply: Message) -> Node:
        """Returns the next node, which `add` adds.

        Args:
            at: where it attached; other turns may have been recorded since.
            output: the sampled tokens.
            reply: the message that the client received for it.

        Raises:
            ValueError: a token without a finite log-probability.
        """
        versions = [version for version, count in output.weight_versions for _ in range(count)]
        tokens = Branch(str(len(self.nodes)))
        tokens.read(at.read)
        tokens.sample(output.token_ids, output.logprobs, versions or [output.weight_version] * len(output.token_ids))
        turn = at.turn.completed(output.token_ids)
        return Node(len(self.nodes), at.parent, at.keep, tokens, len(at.read), reply, turn)

    def add(self, node: Node, chain: bytes) -> None:
        """Adds the next node; `chain` is that of the messages before its reply."""
        self.nodes.append(node)
        if node.parent is not None:
            node.parent.children.append(node)
        self._asked[chain] = node
        self._said[link(chain, node.reply, self.match)] = node

    def branches(self) -> list[Branch]:
        """Returns a branch for each leaf, in order of recording. A token that several share is sampled in the first."""
        found: list[Branch] = []
        owned = [0] * len(self.nodes)
        for leaf in self.nodes:
            if leaf.children:
                continue
            branch = Branch(str(len(found)))
            for node, count in leaf.parts():
                tokens, places = node.tokens, np.arange(count)
                mine = tokens.sampled[:count] & (places >= owned[node.number])
                branch.extend(tokens.ids[:count], mine, tokens.logprobs[:count], tokens.versions[:count])
                owned[node.number] = max(owned[node.number], count)
            found.append(branch)
        return found

    @property
    def masked(self) -> int:
        """Sampled tokens that no branch trains, because a realignment replaced them."""
        sampled = sum(node.tokens.num_sampled for node in self.nodes)
        return sampled - sum(branch.num_sampled for branch in self.branches())

    def _find(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[bytes, Node | None, int, Node | None]:
        """Walks through a request's messages.

        Returns the chain of all messages; the deepest node that they repeat, with the number of messages up to its
        reply; and the turn after it whose reply the client has changed, if there is one.
        """
        chain, node, known, changed, lost = seed_of(tools), None, 0, None, False
        for index, message in enumerate(messages):
            before, chain = chain, link(chain, message, self.match)
            if message.role != "assistant" or lost:
                continue
            said = self._said.get(chain)
            if said is not None and agrees(said.reply, message):
                node, known, changed = said, index + 1, None
                continue
            lost = said is not None  # its reasoning was changed, which chains do not show
            changed = changed or said or self._asked.get(before)
        return chain, node, known, changed


def common_length(one: Array, other: Sequence[int]) -> int:
    """Returns the number of tokens at the beginning that two sequences share."""
    count = min(len(one), len(other))
    differs = one[:count] != np.asarray(other[:count])
    return int(differs.argmax()) if differs.any() else count
