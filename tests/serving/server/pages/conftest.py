"""A server whose model says what a test tells it."""

import pytest

from arcforge_core.testing.small_models import small_tokenizer
from support.browsing import opened
from support.servers import listening, scripted_state


@pytest.fixture(scope="module")
def served():
    """(engine, address) of a model with GLM-5's template; a test sets `engine.script`."""
    state = scripted_state(small_tokenizer(), lambda prompt: "</think>Yes.<|user|>")
    with listening(state) as (_, address):
        yield state.engine, address


@pytest.fixture
def engine(served):
    """The engine, as if nothing had been asked."""
    engine, _ = served
    engine.seconds, engine.holds = 0.0, {}
    engine.prompts.clear()
    return engine


@pytest.fixture
def faults():
    """What went wrong in the page: exceptions, what its policy has refused, dialogues."""
    return []


@pytest.fixture
def context(browser, faults):
    """A browser that has seen nothing yet."""
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    context.set_default_timeout(30000)
    context.on("weberror", lambda error: faults.append(str(error.error)))
    yield context
    context.close()
    assert faults == []


@pytest.fixture
def page(context, served, engine, faults):
    """The page, in chat."""
    return opened(context, served[1], faults)
