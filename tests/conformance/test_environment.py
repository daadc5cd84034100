from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.contracts.environment import Environment
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.environment_suite import EnvironmentSuite
from support.bfcl_small import small_bfcl
from support.tau2_small import small_benchmark
from support.textworld_small import small_textworld

QUESTIONS = Path(__file__).with_name("questions.jsonl")
PROGRAMS = Path(__file__).with_name("programs.jsonl")
CONVERSATIONS = Path(__file__).with_name("conversations.jsonl")
REPOSITORIES = Path(__file__).with_name("repositories")
SEARCH = Path(__file__).with_name("search")
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "math": [{"kinds": ["quadratics", "fractions"]}],
    "dataset": [
        {"path": str(QUESTIONS), "preset": "gsm8k"},
        {"path": str(PROGRAMS), "preset": "taco", "skip_bad": True},
    ],
    "conversations": [{"files": [str(CONVERSATIONS)]}],
    "sandbox_conversations": [{"files": [str(CONVERSATIONS)]}],
    "swe": [{"path": str(REPOSITORIES)}],
    "search": [{"path": str(SEARCH)}],
    "tau2": [{"path": str(small_benchmark())}],
    "bfcl": [{"path": str(small_bfcl()), "categories": ["base", "miss_func"]}],
    "textworld": [{"path": str(small_textworld()), "level": 2}],
}
"""Further variants of a component, beside its defaults."""
NEEDS_OPTIONS = ("dataset", "conversations", "sandbox_conversations", "search", "swe", "tau2", "bfcl", "textworld")
"""Components that have nothing to do without options."""


def variants(names: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Returns what the suite runs on; no registered environment is left out."""
    found = [
        (name, options)
        for name in names
        for options in [*([] if name in NEEDS_OPTIONS else [{}]), *OPTIONS.get(name, [])]
    ]
    assert not set(names) - {name for name, _ in found}
    return found


VARIANTS = variants(registry().names("environment"))


TIMED = ("code", "dataset", "human_eval")
"""Environments that run programs for some seconds."""
NIGHTLY = pytest.mark.nightly(reason="judges programs as environment=code does")
PLAYED = ("swe", "terminal", "bfcl", "textworld", "miniwob")
"""Environments with a sandbox for each script."""
MIXED = pytest.mark.nightly(reason="its parts are tried one by one")
PARAMS = [
    pytest.param(
        variant,
        marks=[NIGHTLY] * (str(PROGRAMS) in variant[1].values() or variant[0] in PLAYED)
        + [MIXED] * (variant[0] == "general"),
    )
    for variant in VARIANTS
]


@pytest.fixture(params=PARAMS, ids=lambda variant: f"{variant[0]}{len(variant[1]) or ''}")
def make_environment(request: pytest.FixtureRequest) -> Callable[[str], Environment]:
    name, options = request.param
    component = registry().get("environment", name)
    target, schema = component.load(), component.load_schema()
    if request.function.__name__ == "test_oracle_scores_one" and name in TIMED:
        options = {"seconds": 60.0, **options}  # a busy machine may be late; cheats that never end have the default
    return lambda split: target(schema(split=split, **options))


class TestEveryEnvironment(EnvironmentSuite):
    examples = 15
