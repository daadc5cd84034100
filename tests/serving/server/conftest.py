import json

import anthropic
import openai
import pytest

from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.server.shared.structured import Structure
from support.servers import client_of, listening, small_state


@pytest.fixture(scope="session")
def tokenizer():
    return small_tokenizer()


@pytest.fixture(scope="module")
def state(tokenizer):
    return small_state(tokenizer)


@pytest.fixture(scope="module")
def model(state):
    return state.engine.model


@pytest.fixture(scope="module")
def client(state):
    with client_of(state) as client:
        yield client


@pytest.fixture(scope="module")
def live(tokenizer):
    """(state, `openai` client) of a server on a port."""
    state = small_state(tokenizer)
    with (
        listening(state) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield state, client


@pytest.fixture(scope="module")
def claude(live):
    """The `anthropic` client of the server that `live` is."""
    _, client = live
    address = str(client.base_url).removesuffix("/v1/")
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as claude:
        yield claude


@pytest.fixture
def says(live, monkeypatch):
    """Returns a function that takes the model's next reply: texts, and tags for special tokens."""
    state, _ = live

    def script(*pieces):
        text = " ".join(p if p.startswith("<") else json.dumps(p, ensure_ascii=False) for p in pieces)
        factory = Structure("script", "grammar", f"start: {text}").matcher(state.grammars)
        monkeypatch.setattr("arcforge_serving.server.openai.chat.turn_matcher", lambda *args: factory)

    return script
