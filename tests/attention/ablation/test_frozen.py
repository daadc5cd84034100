"""The recipe of the comparison was chosen on seeds 0 to 2 and is judged on seeds 3 to 5.

`frozen.json` has every composed option of it. A change needs seeds that were not used yet, in
conf/sweep/attention_seeds.yaml, and a new file. Options added later must leave runs as they were by default.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from arcforge_attention.configs import AblationConfig
from arcforge_core.config.compose import compose_config

FROZEN: dict[str, Any] = json.loads((Path(__file__).parent / "frozen.json").read_text())
SWEEP = Path(__file__).parents[3] / "conf" / "sweep" / "attention_seeds.yaml"


def changes(frozen: dict[str, Any], found: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yields the frozen options that are missing or have another value."""
    for name, value in frozen.items():
        where = f"{path}.{name}".lstrip(".")
        if isinstance(value, dict) and isinstance(found.get(name), dict):
            yield from changes(value, found[name], where)
        elif name not in found or found[name] != value:
            yield f"{where}={value}, now {found.get(name, 'missing')}"


def composed(variant: str, *overrides: str) -> list[str]:
    """Returns the changes of a variant's options."""
    found = asdict(compose_config("ablation", AblationConfig, [f"attention={variant}", *overrides]))
    return list(changes({**FROZEN, "attention": FROZEN["attention"][variant]}, found))


@pytest.mark.parametrize("variant", FROZEN["attention"])
def test_the_recipe_of_the_comparison_is_the_one_that_was_frozen(variant: str) -> None:
    assert composed(variant) == []


def test_the_variants_are_judged_on_seeds_that_did_not_choose_the_recipe() -> None:
    parameters = yaml.safe_load(SWEEP.read_text())["hydra"]["sweeper"]["params"]
    assert sorted(parameters["attention"].split(",")) == sorted(FROZEN["attention"])
    assert parameters["seed"] == "3,4,5"


def test_a_changed_option_of_any_section_is_found() -> None:
    found = composed(
        "swa", "attention.window=64", "model.rope_theta=1e6", "trainer.clip_norm=0.5", "data.heldout=0.2",
        "data.sources.text.functions=0.1", "ablation.further_steps=7",
    )  # fmt: skip
    assert {change.partition("=")[0] for change in found} == {
        "attention.window", "model.rope_theta", "trainer.clip_norm", "data.heldout", "data.sources.text.functions",
        "ablation.further_steps",
    }  # fmt: skip
    assert list(changes({"a": {"b": 1}}, {"a": {"c": 1}})) == ["a.b=1, now missing"]
