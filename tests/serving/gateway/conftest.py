from __future__ import annotations

import pytest

from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from support.servers import client_of, scripted_state
from support.sessions import TOKENIZER

QUIET = {"chat_template_kwargs": {"enable_thinking": False}}


def script(text: str) -> str:
    """Calls the tool after a user's message, unless it begins with "plain"; answers after a result."""
    last = text.rpartition("<|user|>")[2]
    if "<tool_response>" in last or last.startswith("plain") or "<tools>" not in text:
        return "two three<|user|>"
    return "one<tool_call>f<arg_key>a</arg_key><arg_value>one</arg_value></tool_call><|observation|>"


@pytest.fixture(scope="module")
def state():
    return scripted_state(TOKENIZER, script)


@pytest.fixture(scope="module")
def app(state):
    return gateway_app(state, GatewayConfig(sessions=50))


@pytest.fixture(scope="module")
def http(state, app):
    with client_of(state, app) as client:
        yield client


@pytest.fixture
def opened(http):
    """A session, closed at the end."""
    found = http.post("/sessions", json={}).json()
    yield found
    http.delete(f"/sessions/{found['id']}")
