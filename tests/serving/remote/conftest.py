import pytest

from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import SglangEngineConfig, VllmEngineConfig
from arcforge_serving.remote.sglang import SglangEngine
from arcforge_serving.remote.vllm import VllmEngine
from support.remote_servers import FakeSglang, FakeVllm, serving

KINDS = {
    "vllm": (FakeVllm, VllmEngine, VllmEngineConfig, {}),
    "sglang": (FakeSglang, SglangEngine, SglangEngineConfig, {"original_logprobs": True}),
}


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
