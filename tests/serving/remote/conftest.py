import pytest

from arcforge_core.testing.small_models import small_model, small_tokenizer
from arcforge_serving.configs import ArcforgeEngineConfig, SglangEngineConfig, VllmEngineConfig
from arcforge_serving.remote.arcforge import ArcforgeEngine
from arcforge_serving.remote.sglang import SglangEngine
from arcforge_serving.remote.vllm import VllmEngine
from arcforge_serving.server.gate.auth import Keys, digest_of
from arcforge_serving.server.gate.guard import Guard
from support.remote_servers import FakeSglang, FakeVllm, serving
from support.servers import listening, small_state

KINDS = {
    "vllm": (FakeVllm, VllmEngine, VllmEngineConfig, {}),
    "sglang": (FakeSglang, SglangEngine, SglangEngineConfig, {"original_logprobs": True}),
}
ADMIN = "admin-of-the-tests"


@pytest.fixture
def model():
    return small_model()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def fake(kind, model):
    return KINDS[kind][0](model)


@pytest.fixture
def address(fake):
    with serving(fake) as address:
        yield address


@pytest.fixture
def make(kind, model, address, tmp_path):
    """Makes an engine in front of the server."""
    made = []

    def make(**options):
        _, engine, config, usual = KINDS[kind]
        made.append(engine(config(url=address, **{"weights_dir": str(tmp_path), **usual, **options}), model))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make):
    return make()


@pytest.fixture
def state(model, tmp_path):
    """A server of ours with this model."""
    state = small_state(small_tokenizer(), model, cache_tokens=4096)
    state.guard = Guard(Keys(admins=(digest_of(ADMIN),)))
    state.weights_root = tmp_path
    return state


@pytest.fixture
def ours(state, model, monkeypatch):
    """Makes engines in front of it."""
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", ADMIN)
    made = []

    with listening(state) as (_, address):

        def make(**options):
            made.append(ArcforgeEngine(ArcforgeEngineConfig(url=address, **options), model))
            return made[-1]

        yield make
        for engine in made:
            engine.close()
