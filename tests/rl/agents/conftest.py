from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from arcforge_core.contracts.sessions import SessionRecord
from arcforge_rl.agents.gateway import Gateway
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from support.servers import listening


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts gateways: state -> address. Keeps the engine's requests, and the records that were returned."""
    with ExitStack() as stack:

        def serve(state: Any, unix: str | None = None, **options: Any) -> str:
            submit, serve.asked, serve.params = state.engine.submit, [], []

            def noted(prompt: Any, params: Any, **given: Any) -> Any:
                streams = submit(prompt, params, **given)
                serve.params.append(params)
                serve.asked.append(([*prompt], streams[0]))
                return streams

            state.engine.submit = noted
            app = gateway_app(state, GatewayConfig(sessions=50, **options))
            _, address = stack.enter_context(listening(state, app=app, unix=unix))
            return address

        serve.records = []
        close = Gateway.close

        async def kept(self: Gateway, session: Any) -> SessionRecord:
            serve.records.append(await close(self, session))
            return serve.records[-1]

        monkeypatch.setattr(Gateway, "close", kept)
        yield serve
