from collections.abc import Callable
from typing import Any

import pytest

from arcforge_core.contracts.environment import Environment
from arcforge_core.registry import registry
from arcforge_core.testing.environment_suite import EnvironmentSuite

OPTIONS: dict[str, list[dict[str, Any]]] = {"math": [{"kinds": ["quadratics", "fractions"]}, {"steps": 3}]}
"""Further variants of a component, beside its defaults."""
NEEDS_OPTIONS: tuple[str, ...] = ()
"""Components that have nothing to do without options."""
VARIANTS = [
    (name, options)
    for name in registry().names("environment")
    for options in [*([] if name in NEEDS_OPTIONS else [{}]), *OPTIONS.get(name, [])]
]


@pytest.fixture(params=VARIANTS, ids=lambda variant: f"{variant[0]}-{variant[1]}")
def make_environment(request: pytest.FixtureRequest) -> Callable[[str], Environment]:
    name, options = request.param
    component = registry().get("environment", name)
    target, schema = component.load(), component.load_schema()
    return lambda split: target(schema(split=split, **options))


class TestEveryEnvironment(EnvironmentSuite):
    pass
