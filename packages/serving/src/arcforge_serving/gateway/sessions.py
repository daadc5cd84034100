"""The open sessions of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException

from arcforge_core.chat.parser import CALL
from arcforge_core.contracts.chat import ChatTemplate
from arcforge_core.errors import ConfigError
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.imposed import Imposed, imposed_of
from arcforge_serving.gateway.log import SessionFile, SessionLog
from arcforge_serving.gateway.restore import Line, limits_of
from arcforge_serving.gateway.session import CLOSED, PREFIX, AgentSession
from arcforge_serving.server.gate.auth import digest_of
from arcforge_serving.server.shared.errors import NotKeptError
from arcforge_serving.server.shared.memories import Memories


class Sessions:
    """Opens, finds and closes sessions.

    Args:
        template: of the model.
        config: options of sessions that give none themselves.
        model: name of the served one.
        experts: whether the engine records the experts of tokens.

    Raises:
        ConfigError: an option has a value that is not accepted, or the sessions of ``gateway.log`` are another model's.
    """

    def __init__(self, template: ChatTemplate, config: GatewayConfig, model: str = "", experts: bool = False) -> None:
        self.template, self.config, self.experts = template, config, experts
        self.memories, self.kept = Memories(config.memory_mb * 2**20), Memories(config.replies_mb * 2**20)
        self._by_id: dict[str, AgentSession] = {}
        self._by_secret: dict[bytes, AgentSession] = {}
        self._check(config)
        self._failures = 0  # of sessions that were closed, or never opened
        self._log = None if config.log is None else SessionLog(config.log, model, template)
        if self._log is not None:
            try:
                for file, lines in self._log.files():
                    self._restore(self._log, file, lines)
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        """Lets another process use the log."""
        if self._log is not None:
            self._log.close()

    def __len__(self) -> int:
        return len(self._by_id)

    def open(
        self, owner: str, metadata: Mapping[str, Any], imposed: Imposed | None = None, **options: Any
    ) -> AgentSession:
        """Opens a session.

        Args:
            owner: of the key that opens it.
            metadata: for the trainer.
            imposed: on its turns.
            options: fields of `GatewayConfig`, in place of the server's.

        Raises:
            ConfigError: an option has a value that is not accepted.
            HTTPException: 429, too many are open, or have too many tokens.
            NotKeptError: it cannot be written to disk.
        """
        if len(self) >= self.config.sessions:
            raise HTTPException(429, f"{len(self)} sessions are open, as many as gateway.sessions allows; close some")
        most = self.config.recorded_tokens
        if most is not None and self.recorded >= most:
            said = f"the open sessions have {self.recorded} tokens, gateway.recorded_tokens allows {most}; close some"
            raise HTTPException(429, said)
        limits = replace(self.config, **options)
        self._check(limits)
        session = AgentSession(
            self.template, limits, owner, metadata, imposed=imposed or Imposed(), memories=self.memories,
            kept=self.kept, experts=self.experts,
        )  # fmt: skip
        if self._log is not None:
            try:
                session.create_file(self._log)
            except NotKeptError:
                self._failures += 1
                raise
        self._add(session)
        return session

    def _add(self, session: AgentSession) -> None:
        self._by_id[session.id] = self._by_secret[session.digest] = session

    def _restore(self, log: SessionLog, file: SessionFile, lines: list[Line]) -> None:
        try:
            own = lines[0]["session"]
            limits = limits_of(own, self.config)
            session = AgentSession(
                self.template, limits, own["owner"], own["metadata"], id=own["id"], secret="",
                digest=bytes.fromhex(own["secret"]), memories=self.memories, imposed=imposed_of(own["imposed"]),
                kept=self.kept, experts=self.experts,
            )  # fmt: skip
            session.restore(file, lines[1:], own["opened"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise log.damaged(file.path, f"{type(error).__name__}: {error}") from error
        self._add(session)

    @property
    def recorded(self) -> int:
        """Tokens of the open sessions."""
        return sum(session.recorded for session in self._by_id.values())

    @property
    def log_failures(self) -> int:
        """Lines that could not be written to disk."""
        files = [session.file for session in self._by_id.values() if session.file is not None]
        return self._failures + sum(file.failures for file in files)

    def find(self, id_: str) -> AgentSession:
        """Returns a session.

        Raises:
            HTTPException: 404, there is none.
        """
        if id_ not in self._by_id:
            raise HTTPException(404, CLOSED)
        return self._by_id[id_]

    def of_key(self, key: str) -> AgentSession | None:
        """Returns the session whose secret this is; None if it is no secret of a session.

        Raises:
            HTTPException: 404, the session was closed.
        """
        if not key.startswith(PREFIX):
            return None
        found = self._by_secret.get(digest_of(key))
        if found is None:
            raise HTTPException(404, CLOSED)
        return found

    def close(self, session: AgentSession) -> None:
        """Ends a session's turns and forgets it; its file, if it has one, stays until it is deleted.

        Raises:
            HTTPException: 404, it was closed.
        """
        if self._by_id.pop(session.id, None) is None:  # by another request, since this one has found it
            raise HTTPException(404, CLOSED)
        del self._by_secret[session.digest]
        session.close()
        self._failures += 0 if session.file is None else session.file.failures

    def _check(self, config: GatewayConfig) -> None:
        if config.final_turn and CALL not in self.template.tokenizer.special:
            raise ConfigError("gateway.final_turn", True, f"needs a chat template whose calls begin with {CALL}")
