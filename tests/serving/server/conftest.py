import openai
import pytest

from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.server.testing import client_of, listening, small_state


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
