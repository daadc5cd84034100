"""The tokens of a session as a tree: every request continues recorded ids, every sampled token is trained once.

A node is one turn: the tokens read after its parent's, then the sampled ones. A request attaches to the deepest node
whose messages and tools it repeats. So a client that retries, rolls back, edits its history or runs several
conversations in one session makes siblings, and each path from the root to a leaf is one branch to train on.

Matching costs the request's messages, once each (a chain of hashes); nodes hold their own tokens alone. An agent that
shortens earlier results changes its history before the last replies: it continues the tokens up to the first change
that another turn has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from arcforge_core.contracts.algorithm import Array, Branch
from arcforge_core.contracts.chat import (
    ChatOptions,
    ChatTemplate,
    Fork,
    Message,
    OpenTurn,
    Rendered,
    RenderedTurn,
    Tool,
)
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.contracts.experts import Experts
from arcforge_core.contracts.sessions import SessionPart, branches_of, uncovered
from arcforge_serving.gateway.keys import Match, agrees, link, seed_of

Drift = Literal["new", "clean", "realign", "fork"]
Context = tuple[tuple[bytes, bool], Message, RenderedTurn]


@dataclass(eq=False)
class Node:
    """A turn.

    Attributes:
        number: of the node in its tree, in order of recording.
        parent: the turn whose path this one's begins with; None if it shares no tokens.
        keep: how many tokens of the parent's path are part of this one's; fewer than all after a realignment, or if the
            conversations differ before the parent's reply.
        tokens: of this turn alone: those read, then those sampled.
        read: number of tokens that were read.
        reply: the message that the client received.
        turn: state of the template after the sampled tokens.
        is_continued: whether a turn continues the reply, or a realigned part of it.
        before: experts of the last kept token, which this turn was the first to read, [1, L, K]; None where the engine
            records none, or nothing is kept.
    """

    number: int
    parent: Node | None
    keep: int
    tokens: Branch
    read: int
    reply: Message
    turn: OpenTurn
    is_continued: bool = False
    before: Experts | None = None

    def route(self, experts_PLK: Experts) -> None:
        """Takes the experts of the path from its last kept token on.

        Raises:
            ValueError: they are of more tokens than the turn has.
        """
        kept = min(self.keep, 1)
        self.before = experts_PLK[:kept] if kept else None
        self.tokens.route(experts_PLK[kept:])

    @property
    def start(self) -> int:
        """Length of the path before the first sampled token."""
        return self.keep + self.read

    @property
    def length(self) -> int:
        """Length of the path."""
        return self.keep + len(self.tokens)

    @property
    def part(self) -> SessionPart:
        """The node in a record."""
        return SessionPart(None if self.parent is None else self.parent.number, self.keep, self.tokens)

    def ids(self, length: int | None = None) -> Array:
        """Returns the token ids of the path, int64.

        Args:
            length: of the path; None is all of it.
        """
        node, end = self, self.length if length is None else length
        found: list[Array] = []
        while True:
            if end > node.keep:
                found.append(node.tokens.ids[: end - node.keep])
            end = min(end, node.keep)
            if node.parent is None:
                return np.concatenate(found[::-1])
            node = node.parent


@dataclass(frozen=True)
class TurnEnd:
    """The end of an assistant's message, where a request may continue.

    Attributes:
        node: has the message's tokens, as its reply or, read as context, before it.
        length: of the node's path up to there.
        message: the message.
        turn: state of the template there.
    """

    node: Node
    length: int
    message: Message
    turn: OpenTurn


@dataclass(frozen=True)
class Attachment:
    """Where a request continues, and with which tokens.

    Attributes:
        parent: node whose path the prompt begins with; None if it shares no tokens.
        keep: how many tokens of the parent's path stay.
        read: further tokens to read.
        turn: state of the template after them.
        drift: ``new`` (nothing recorded is repeated), ``clean`` (recorded ids are extended), ``realign`` (the client's
            copy replaces the end of the last reply and is not trained) or ``fork`` (the recorded reply keeps a branch
            of its own).
        reason: why it is not ``clean``.
        masked: sampled tokens that a realignment replaces.
        chain: of the request's messages.
        continued: node whose reply the request repeats; None if it begins a conversation.
        within: the assistant's messages among the tokens to read, by chain and by whether reasoning was cleared, each
            with its end.
    """

    parent: Node | None
    keep: int
    read: tuple[int, ...]
    turn: OpenTurn
    drift: Drift
    reason: str
    masked: int
    chain: bytes
    continued: Node | None = None
    within: Sequence[Context] = ()

    @property
    def prompt(self) -> list[int]:
        """All tokens that the engine reads."""
        kept = [] if self.parent is None else self.parent.ids(self.keep).tolist()
        return [*kept, *self.read]


@dataclass(frozen=True)
class _Walk:
    """A request and the recorded messages that it repeats.

    Attributes:
        messages, tools, options: of the request.
        chains: before the first message, and after each.
        places: where it may continue, the deepest first, each with the number of messages up to there.
        replied: the deepest reply that is repeated.
        changed: the turn after it, if the client has changed its reply.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool]
    options: ChatOptions
    chains: Sequence[bytes]
    places: Sequence[tuple[TurnEnd, int]]
    replied: Node | None
    changed: Node | None


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
        self._said: dict[bytes, TurnEnd] = {}  # by the chain of the messages up to a reply, that one included
        self._read: dict[tuple[bytes, bool], TurnEnd] = {}  # context, by its chain and whether reasoning was cleared
        self._asked: dict[bytes, Node] = {}  # by the chain of the messages before the reply

    def attach(self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions) -> Attachment:
        """Returns where a request continues. Changes nothing: the engine may fail, or the client may be gone.

        Raises:
            ConfigError: the template cannot render the conversation.
        """
        walk = self._walk(messages, tools, options)
        found = self._continue(walk)
        if isinstance(found, Attachment) and walk.replied is not None and walk.changed is None:
            return found

        reason = "nothing recorded is repeated"
        if walk.changed is not None:
            reason = "the client changed the last reply"
        elif walk.replied is not None and isinstance(found, Fork):
            reason = found.reason
        last = walk.changed or walk.replied
        rendered = None
        if last is not None and not last.is_continued:
            rendered = self.template.render(messages, tools, options, generation_prompt=True)
            common = common_length(last.ids(), rendered.ids)
            lost = last.length - common
            if common >= last.start and (lost < self.fork_threshold_tokens or not lost):
                turn, read = self.template.open_turn(rendered.ids, tools), rendered.ids[common:]
                drift: Drift = "realign" if lost else "clean"
                return Attachment(last, common, read, turn, drift, reason if lost else "", lost, walk.chains[-1], last)
        begun: Drift = "new" if last is None else "fork"
        if isinstance(found, Attachment):  # a reply that was changed is context
            return replace(found, drift=begun, reason=reason)
        rendered = rendered or self.template.render(messages, tools, options, generation_prompt=True)
        turn = self.template.open_turn(rendered.ids, tools)
        within = self._within(walk, 0, OpenTurn(turn.tools, False, None), rendered)
        return Attachment(None, 0, rendered.ids, turn, begun, reason, 0, walk.chains[-1], None, within)

    def _continue(self, walk: _Walk) -> Attachment | Fork:
        """Returns the continuation of the deepest place that has one, or why there is none."""
        why = Fork("nothing recorded is repeated")
        for place, known in walk.places:
            if known == len(walk.messages):
                why = Fork("no message is new")
                continue
            found = self.template.next_turn(place.turn, walk.messages[known:], walk.tools, walk.options)
            if isinstance(found, Fork):
                why = found
            else:
                within = self._within(walk, known, place.turn, found.rendered)
                return Attachment(
                    place.node, place.length, found.rendered.ids, found.turn, "clean", "", 0, walk.chains[-1],
                    walk.replied, within,
                )  # fmt: skip
        return why

    def _within(self, walk: _Walk, known: int, before: OpenTurn, rendered: Rendered) -> list[Context]:
        """Returns the assistant's messages in a rendering of the messages after the first `known`."""
        news = walk.messages[known:]
        found = self.template.turns_within(before, rendered, news, walk.options)
        chains, clears = walk.chains, walk.options.clear_thinking
        return [((chains[known + each.message + 1], clears), news[each.message], each) for each in found]

    def record(self, at: Attachment, output: GenerationOutput, reply: Message) -> Node:
        """Adds a turn; see `node_of`."""
        node = self.node_of(at, output, reply)
        self.add(node, at.chain, at.within)
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
        node = Node(len(self.nodes), at.parent, at.keep, tokens, len(at.read), reply, turn)
        if output.experts is not None:
            node.route(output.experts)
        return node

    def add(self, node: Node, chain: bytes, within: Sequence[Context] = ()) -> None:
        """Adds the next node.

        Args:
            node: the node.
            chain: of the messages before its reply.
            within: see `Attachment`.
        """
        self.nodes.append(node)
        parent = node.parent
        if parent is not None and node.keep >= parent.start:
            parent.is_continued = True
        if parent is not None and node.before is not None and node.keep == parent.keep + parent.tokens.routed + 1:
            parent.tokens.route(node.before)
        self._asked[chain] = node
        for context, message, end in within:
            self._read.setdefault(context, TurnEnd(node, node.keep + end.length, message, end.turn))
        self._said[link(chain, node.reply, self.match)] = TurnEnd(node, node.length, node.reply, node.turn)

    @property
    def parts(self) -> list[SessionPart]:
        """The nodes in a record, in order."""
        return [node.part for node in self.nodes]

    @property
    def leaves(self) -> list[int]:
        """Numbers of the nodes whose replies no turn continues: each ends a branch."""
        return [node.number for node in self.nodes if not node.is_continued]

    def branches(self) -> list[Branch]:
        """Returns a branch for each leaf; see `branches_of`."""
        return branches_of(self.parts, self.leaves)

    @property
    def masked(self) -> int:
        """Sampled tokens that no branch trains, because a realignment replaced them."""
        return uncovered(self.parts, self.leaves)

    def _walk(self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions) -> _Walk:
        """Walks through a request's messages."""
        chains = [seed_of(tools)]
        reply: tuple[TurnEnd, int] | None = None
        context: tuple[TurnEnd, int] | None = None
        changed: Node | None = None
        lost = doubted = False
        for known, message in enumerate(messages, 1):
            chains.append(link(chains[-1], message, self.match))
            if message.role != "assistant" or lost:
                continue
            said = self._said.get(chains[-1])
            if said is not None and agrees(said.message, message):
                reply, context, changed, doubted = (said, known), None, None, False
                continue
            read = self._read.get((chains[-1], options.clear_thinking))
            doubted = doubted or (read is not None and not agrees(read.message, message))
            context = context if read is None or doubted else (read, known)
            lost = said is not None  # its reasoning was changed, which chains do not show
            changed = changed or (said.node if said is not None else self._asked.get(chains[-2]))
        places = [place for place in (context, reply) if place is not None]
        replied = None if reply is None else reply[0].node
        return _Walk(messages, tools, options, chains, places, replied, changed)


def common_length(one: Array, other: Sequence[int]) -> int:
    """Returns the number of tokens at the beginning that two sequences share."""
    count = min(len(one), len(other))
    differs = one[:count] != np.asarray(other[:count])
    return int(differs.argmax()) if differs.any() else count
