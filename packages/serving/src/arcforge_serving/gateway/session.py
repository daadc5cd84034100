"""A session: its tree of turns, its limits, and the one turn of each request."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.exceptions import HTTPException

from arcforge_core.chat.parser import CALL
from arcforge_core.contracts.chat import ChatOptions, ChatTemplate, Message, Tool
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.sessions import SessionRecord, TurnRecord
from arcforge_core.errors import ConfigError
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.imposed import Imposed
from arcforge_serving.gateway.keys import Match
from arcforge_serving.gateway.log import SessionFile, SessionLog, write_line
from arcforge_serving.gateway.replies import Replies, Reply
from arcforge_serving.gateway.responses import WrittenResponses
from arcforge_serving.gateway.restore import Line, reply_line, restore_turn, restored_reply, session_line, turn_line
from arcforge_serving.gateway.tree import Attachment, SessionTree
from arcforge_serving.server.gate.auth import digest_of
from arcforge_serving.server.shared.errors import NotKeptError
from arcforge_serving.server.shared.memories import Memories
from arcforge_serving.server.shared.memory import Memory
from arcforge_serving.server.shared.response_store import ResponseStore
from arcforge_serving.server.shared.turns import Cancellable

PREFIX = "sess-"
"""Of secrets, so that one of a closed session is known as such."""
NEVER = -100.0
"""Added to the logit of a token that must not be sampled."""
CLOSED = "there is no such session, or it was closed"


class SessionLimitError(HTTPException):
    """A limit of the session is reached. The header keeps OpenAI's and Anthropic's clients from trying again."""

    def __init__(self, limit: str) -> None:
        super().__init__(429, f"the session has reached {limit}", {"x-should-retry": "false"})


@dataclass(eq=False)
class AgentSession:
    """One agent's conversation, or several.

    Attributes:
        template: of the model.
        limits: options of this session.
        owner: of the key that opened it.
        metadata: for the trainer.
        clock: seconds.
        imposed: on all turns.
        id: unique.
        secret: of the agent; empty in a session that was restored, which has its digest alone.
        digest: of the secret.
        file: on disk; None for a session in memory alone.
        memories: of the parsed parts of all sessions; None for its own.
        kept: the replies of all sessions; None for its own.
        experts: whether the engine records the experts of tokens.
        recorded: tokens of the tree.
    """

    template: ChatTemplate
    limits: GatewayConfig
    owner: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    imposed: Imposed = field(default_factory=Imposed)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    secret: str = field(default_factory=lambda: PREFIX + secrets.token_urlsafe(32))
    digest: bytes = b""
    file: SessionFile | None = None
    memories: Memories | None = None
    kept: Memories | None = None
    experts: bool = False

    def __post_init__(self) -> None:
        self.digest = self.digest or digest_of(self.secret)
        match: Match = "strict" if self.limits.match == "strict" else "loose"
        self.tree = SessionTree(self.template, match, self.limits.fork_threshold_tokens)
        self.turns: list[TurnRecord] = []
        kept = self.kept or Memories()
        self.responses, self.replies = WrittenResponses(kept), Replies(kept)
        self.memory = Memory(self.memories)
        self.lock = threading.Lock()  # prompts are made in threads
        self.is_closed = False
        self._began, self._final = self.clock(), False
        self._open: list[Turn] = []
        self._sampled = self.recorded = 0

    def create_file(self, log: SessionLog) -> None:
        """Begins the session's file.

        Raises:
            NotKeptError: it cannot be written.
        """
        line = session_line(
            time.time(), self.limits, self.imposed, self.digest,
            id=self.id, owner=self.owner, metadata=dict(self.metadata),
        )  # fmt: skip
        self.file = self.responses.file = log.create(self.id, line)

    def restore(self, file: SessionFile, lines: Sequence[Line], opened: float) -> None:
        """Repeats what a new session's lines say; later ones are written after them.

        Args:
            file: has the lines.
            lines: without the session's own.
            opened: seconds since 1970.

        Raises:
            KeyError, IndexError, TypeError, ValueError: a line is malformed.
        """
        for line in lines:
            if "turn" in line:
                turn = restore_turn(self.tree, line)
                self.turns.append(turn)
                self._sampled += turn.completion_tokens
                self.recorded += 0 if turn.node is None else len(self.tree.nodes[turn.node].tokens)
                self._final = self._final or (line["final"] and turn.node is not None)
            elif "reply" in line:
                key, reply = restored_reply(line)
                reply.end(is_whole=True)
                self.replies.keep(key, reply)
        self.responses.restore(lines)
        self._began -= max(time.time() - opened, 0.0)
        self.file = self.responses.file = file

    def look(self) -> Turn:
        """Returns a turn for a request that samples nothing."""
        return Turn(self, "", False)

    def begin(self, dialect: str) -> Turn:
        """Begins a turn; `Turn.finish` must follow.

        Raises:
            SessionLimitError: a limit is reached.
        """
        limit = self._limit()
        if limit and (self._final or not self.limits.final_turn):
            raise SessionLimitError(limit)
        self._final = bool(limit)
        turn = Turn(self, dialect, self._final, len(self.tree.nodes) + len(self._open))
        self._open.append(turn)
        return turn

    def _limit(self) -> str:
        limits, turns = self.limits, len(self.tree.nodes) + len(self._open)
        if limits.max_turns is not None and turns >= limits.max_turns:
            return f"max_turns={limits.max_turns}"
        if limits.max_tokens is not None and self._sampled >= limits.max_tokens:
            return f"max_tokens={limits.max_tokens}"
        if limits.max_seconds is not None and self.clock() - self._began >= limits.max_seconds:
            return f"max_seconds={limits.max_seconds}"
        return ""

    def record(self) -> SessionRecord:
        """Returns what was recorded so far."""
        with self.lock:
            tree = self.tree
            return SessionRecord(self.id, [*self.turns], tree.parts, tree.leaves, tree.masked, self.metadata)

    def close(self) -> None:
        """Ends the running turns; nothing is recorded any more."""
        with self.lock:
            self.is_closed = True
            if self.file is not None:
                self.file.close()
        for turn in [*self._open]:
            turn.cancel()
        for each in (self.memory, self.responses, self.replies):
            each.close()

    def ended(self, turn: Turn) -> None:
        """Takes note of a finished turn; called once for each."""
        self._open.remove(turn)
        self._final = self._final and not (turn.is_final and turn.record is None)  # one that failed may be repeated
        if turn.record is None:
            lost = turn.lost()
            with self.lock, suppress(NotKeptError):  # it has no tokens to lose; its file has counted the failure
                self.turns.append(lost)
                write_line(self.file, lambda: turn_line(lost, turn.is_final))

    def keep(self, turn: TurnRecord, is_final: bool, at: Attachment, output: GenerationOutput, reply: Message) -> None:
        """Records a turn with its node, the next of the tree, under `lock`; first on disk.

        Raises:
            ValueError: see `SessionTree.node_of`.
            NotKeptError: it cannot be written; nothing was recorded.
        """
        node = self.tree.node_of(at, output, reply)
        write_line(self.file, lambda: turn_line(turn, is_final, node, at.chain))
        self.tree.add(node, at.chain, at.within)
        self.recorded += len(node.tokens)
        self.turns.append(turn)
        self._sampled += len(output.token_ids)

    def keep_reply(self, key: bytes, reply: Reply) -> None:
        """Writes a whole reply, for requests that are repeated after a restart."""
        with self.lock, suppress(NotKeptError):  # a repeated request is another turn then
            write_line(self.file, lambda: reply_line(key, reply))


class Turn:
    """The `Turns` of one request in a session.

    Args:
        session: the session.
        dialect: of the request; empty for one that samples nothing.
        is_final: whether tools cannot be called.
        number: of the turns before it.

    Attributes:
        record: of the sampled tokens; None before.
    """

    def __init__(self, session: AgentSession, dialect: str, is_final: bool, number: int = 0) -> None:
        self.session, self.dialect, self.is_final, self.number = session, dialect, is_final, number
        self.record: TurnRecord | None = None
        self._at: Attachment | None = None
        self._tools: Sequence[Tool] = ()
        self._prompt_tokens = 0
        self._reason = "error"
        self._generation: Cancellable | None = None

    @property
    def owner(self) -> str:
        """Owner of the key that opened the session."""
        return self.session.owner

    @property
    def responses(self) -> ResponseStore:
        """Replies that ``previous_response_id`` may name."""
        return self.session.responses

    def check(self, sequences: int, as_ids: bool) -> None:
        """Refuses what a session cannot record.

        Raises:
            ConfigError: several sequences, or token ids that the client made up.
        """
        if sequences != 1:
            raise ConfigError("n", sequences, "must be 1 in a session: a turn has one reply")
        if as_ids:
            raise ConfigError("prompt_token_ids", "given", "a session takes messages: it knows the tokens itself")

    def prompt(
        self, template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions
    ) -> list[int]:
        """Attaches to the recorded tokens."""
        options = self.session.imposed.options(options)
        with self.session.lock:
            self._at, self._tools = self.session.tree.attach(messages, tools, options), tools
            prompt = self._at.prompt
        self._prompt_tokens = len(prompt)
        return prompt

    def params(self, params: SamplingParams) -> SamplingParams:
        """Samples as the session imposes, and keeps a final turn from calling tools."""
        params = self.session.imposed.params(params, self.number)
        if self.session.experts and self._at is not None:
            params = replace(params, experts_from=max(self._at.keep - 1, 0))
        call = self.session.template.tokenizer.special.get(CALL)
        if not self.is_final or call is None:
            return params
        return replace(params, logit_bias={**params.logit_bias, call: NEVER})

    def began(self, generation: Cancellable) -> None:
        """Takes note of the generation, to end it with the session."""
        self._generation, self._reason = generation, "gone"
        if self.session.is_closed:
            generation.cancel()

    def cancel(self) -> None:
        """Ends the generation."""
        if self._generation is not None:
            self._generation.cancel()

    def ended(self, output: GenerationOutput, stop: str | None) -> None:
        """Records what was sampled, unless the engine or the end of the session aborted it.

        Raises:
            ValueError: a token without a finite log-probability.
            NotKeptError: the turn cannot be written to disk.
        """
        self._reason = output.finish_reason
        if output.finish_reason in ("abort", "error") or self._at is None:
            return
        at, session = self._at, self.session
        reply = session.template.parse(output.token_ids, at.read, self._tools).message
        if stop is not None:
            reply = replace(reply, content=reply.content.partition(stop)[0].rstrip())
        turn = replace(
            self.lost(),
            completion_tokens=len(output.token_ids),
            cached_tokens=output.cached_tokens,
            drafted_tokens=output.drafted_tokens,
            accepted_tokens=output.accepted_tokens,
            masked_tokens=at.masked,
        )
        with session.lock:
            if session.is_closed:
                return
            turn = replace(turn, node=len(session.tree.nodes))
            session.keep(turn, self.is_final, at, output, reply)
            self.record = turn

    def failed(self) -> None:
        """Takes note of a generation without an end."""
        self._reason = "error"

    def lost(self) -> TurnRecord:
        """Returns the record of a turn without recorded tokens."""
        at = self._at
        parent = None if at is None or at.continued is None else at.continued.number
        drift, reason = ("", "") if at is None else (at.drift, at.reason)
        return TurnRecord(self.dialect, None, parent, drift, reason, self._reason, self._prompt_tokens, 0)

    def finish(self) -> None:
        """Ends the turn with its request."""
        if self.dialect:
            self.session.ended(self)
        self._generation = None  # it refers to this turn: both would wait for a garbage collection, prompt included
