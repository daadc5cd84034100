"""The open sessions of a gateway."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException

from arcforge_core.chat.parser import CALL
from arcforge_core.contracts.chat import ChatTemplate
from arcforge_core.errors import ConfigError
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.imposed import Imposed
from arcforge_serving.gateway.session import CLOSED, PREFIX, AgentSession
from arcforge_serving.server.gate.auth import digest_of


class Sessions:
    """Opens, finds and closes sessions.

    Args:
        template: of the model.
        config: options of sessions that give none themselves.
    """

    def __init__(self, template: ChatTemplate, config: GatewayConfig) -> None:
        self.template, self.config = template, config
        self._by_id: dict[str, AgentSession] = {}
        self._by_secret: dict[bytes, AgentSession] = {}
        self._check(config)

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
            HTTPException: 429, too many are open.
        """
        if len(self) >= self.config.sessions:
            raise HTTPException(429, f"{len(self)} sessions are open, as many as gateway.sessions allows; close some")
        limits = replace(self.config, **options)
        self._check(limits)
        session = AgentSession(self.template, limits, owner, metadata, imposed=imposed or Imposed())
        self._by_id[session.id] = self._by_secret[digest_of(session.secret)] = session
        return session

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
        if found is None or not hmac.compare_digest(found.secret, key):
            raise HTTPException(404, CLOSED)
        return found

    def close(self, session: AgentSession) -> None:
        """Ends a session's turns and forgets it."""
        del self._by_id[session.id], self._by_secret[digest_of(session.secret)]
        session.close()

    def _check(self, config: GatewayConfig) -> None:
        if config.final_turn and CALL not in self.template.tokenizer.special:
            raise ConfigError("gateway.final_turn", True, f"needs a chat template whose calls begin with {CALL}")
