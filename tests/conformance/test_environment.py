from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.contracts.environment import Environment
from arcforge_core.registry import registry
from arcforge_core.testing.environment_suite import EnvironmentSuite

QUESTIONS = Path(__file__).with_name("questions.jsonl")
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "math": [{"kinds": ["quadratics", "fractions"]}],
    "dataset": [{"path": str(QUESTIONS), "preset": "gsm8k"}],
}
"""Further variants of a component, beside its defaults."""
NEEDS_OPTIONS = ("dataset",)
"""Components that have nothing to do without options."""
VARIANTS = [
    (name, options)
    for name in registry().names("environment")
    for options in [*([] if name in NEEDS_OPTIONS else [{}]), *OPTIONS.get(name, [])]
]


@pytest.fixture(params=VARIANTS, ids=lambda variant: f"{variant[0]}{len(variant[1]) or ''}")
def make_environment(request: pytest.FixtureRequest) -> Callable[[str], Environment]:
    name, options = request.param
    component = registry().get("environment", name)
    target, schema = component.load(), component.load_schema()
    return lambda split: target(schema(split=split, **options))


class TestEveryEnvironment(EnvironmentSuite):
    examples = 15
