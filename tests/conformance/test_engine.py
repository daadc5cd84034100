from collections.abc import Iterator
from typing import Any

import pytest

from arcforge_core.contracts.engine import Engine
from arcforge_core.generation.engine import build_engine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.engine_suite import EngineSuite
from arcforge_core.testing.serving_engine_suite import ServingEngineSuite
from arcforge_core.testing.small_models import small_model

REMOTE = {"arcforge", "vllm", "sglang"}
"""Engines that need a server: tests/serving/remote has their suites, with our server and imitated ones."""


class TestEveryEngine(EngineSuite):
    @pytest.fixture
    def model(self) -> CausalLM:
        return small_model()

    @pytest.fixture(params=sorted(set(registry().names("engine")) - REMOTE))
    def engine(self, model: CausalLM, request: pytest.FixtureRequest) -> Engine:
        return build_engine(registry().get("engine", request.param).load_schema()(), model)


class TestStartedEngines(ServingEngineSuite):
    """Engines in this process that many callers share."""

    @pytest.fixture
    def model(self) -> CausalLM:
        return small_model()

    @pytest.fixture(params=["paged"])
    def engine(self, model: CausalLM, request: pytest.FixtureRequest) -> Iterator[Any]:
        engine: Any = build_engine(registry().get("engine", request.param).load_schema()(), model)
        engine.start()
        yield engine
        engine.close()
