from collections.abc import Callable

import pytest

from arcforge_core.contracts.environment import Environment
from arcforge_core.registry import registry
from arcforge_core.testing.environment_suite import EnvironmentSuite


@pytest.fixture(params=registry().names("environment"))
def make_environment(request: pytest.FixtureRequest) -> Callable[[str], Environment]:
    component = registry().get("environment", request.param)
    target, schema = component.load(), component.load_schema()
    return lambda split: target(schema(split=split))


class TestEveryEnvironment(EnvironmentSuite):
    pass
