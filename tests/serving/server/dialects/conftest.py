import json

import anthropic
import pytest

from arcforge_serving.server.structured import compiled


@pytest.fixture(scope="module")
def claude(live):
    """The `anthropic` client of the server that `live` is."""
    _, client = live
    address = str(client.base_url).removesuffix("/v1/")
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as claude:
        yield claude


@pytest.fixture
def says(live, monkeypatch):
    """Call it with what the model is to say: texts, and tags that stand for their tokens."""
    state, _ = live

    def script(*pieces):
        text = " ".join(p if p.startswith("<") else json.dumps(p, ensure_ascii=False) for p in pieces)
        factory = compiled(state.grammars, "script", "grammar", f"start: {text}")
        monkeypatch.setattr("arcforge_serving.server.chat.turn_matcher", lambda *args: factory)

    return script
