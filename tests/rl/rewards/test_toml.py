"""Files of hybrid rewards: rewardkit's are read as they are, and whatever is wrong in one is named in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.rewards.spec import Measured
from arcforge_rl.rewards.toml import read_rewards, spec_of, to_toml

REWARDKIT = """
[[reward]]
name = "reward"
aggregation = "weighted-mean"
weights = { correctness = 2.0, structure = 1 }
"""
OURS = """
[[reward]]
aggregation = "weighted_sum"
weights = { good = 1.0, style = 0.25 }
gates = { correct = 1.0 }

[[reward]]
name = "good"
aggregation = "required-pass"
weights = { correct = 1, short = 1 }
optional = ["short"]

[component.correct]
of = "reward"

[component.style]
kind = "grm"
reward = "judge"
options = { rubric = "naïve \\"style\\"" }
scale = [1, 10]
normalise = "group"
cap = 0.5
"""


def test_rewardkits_file_names_the_environments_own_rewards() -> None:
    spec = spec_of(tomllib.loads(REWARDKIT), ["correctness", "structure", "reward"])
    assert spec.components == {"correctness": Measured("correctness"), "structure": Measured("structure")}
    assert spec.combinations["reward"].weights == {"correctness": 2.0, "structure": 1}
    written = tomllib.loads(to_toml(spec))
    assert written["reward"] == tomllib.loads(REWARDKIT)["reward"] and set(written) == {"reward"}


def test_ours_has_gates_components_and_nested_rewards(tmp_path: Path) -> None:
    (tmp_path / "reward.toml").write_text(OURS, encoding="utf-8")
    spec = read_rewards(tmp_path / "reward.toml", ["reward", "short"])
    assert [part.name for part in spec.order].index("good") < [part.name for part in spec.order].index("reward")
    assert spec.compares and spec.combinations["reward"].aggregation == "weighted-sum"
    assert spec.components["style"].scale == (1, 10)
    again = spec_of(tomllib.loads(to_toml(spec)), ["reward", "short"])
    assert (again.components, again.combinations) == (spec.components, spec.combinations)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("", r"reward=\[\]: must have one \[\[reward\]\] named 'reward'"),
        ("[scoring.checks]\naggregation = 'all-pass'", "rewards='scoring': is no table"),
        ("[[reward]]\nweights = {}", r"reward\[reward\]\.weights={}: must name at least one component"),
        ("[[reward]]\nweights = { a = 0.0 }", r"reward\[reward\]\.weights={'a': 0\.0}: must not sum to 0"),
        ("[[reward]]\nweights = { a = -1.0, short = 2 }", r"weights\.a=-1\.0: must be finite, and not negative"),
        ("[[reward]]\nweights = { a = nan }", r"weights\.a=nan"),
        ("[[reward]]\nweights = { a = 'x' }", r"reward\.weights={'a': 'x'}: must be a table of numbers"),
        ("[[reward]]\nweights = { shrt = 1.0 }", r"reward\[reward\]='shrt': is no component.*did you mean 'short'"),
        ("[[reward]]\nweights = { a = 1 }\naggregation = 'mean'", r"aggregation='mean': must be one of"),
        ("[[reward]]\nweights = { a = 1 }\nwieghts = {}", r"reward\.wieghts={}: is unknown.*did you mean 'weights'"),
        ("[[reward]]\nweights = { reward = 1 }", "depends on itself: reward -> reward"),
        (
            "[[reward]]\nweights = { a = 1 }\n[component.a]\ngates = { short = 1 }\n"
            "[component.short]\ngates = { a = 1 }",
            "depends on itself: a -> short -> a",
        ),
        ("[[reward]]\nweights = { a = 1 }\n[[reward]]\nweights = { a = 1 }", "is declared twice"),
        ("[[reward]]\nweights = { a = 1 }\n[component.b]\nof = 'a'", r"component\.b='b': counts nowhere"),
        ("[[reward]]\nweights = { a = 1 }\ngates = { a = inf }", r"reward\[reward\]\.gates\.a=inf: must be finite"),
        ("[[reward]]\nweights = { a = 1 }\ncap = nan", r"reward\[reward\]\.cap=nan"),
        ("[[reward]]\nweights = { a = 1 }\noptional = ['a']", "is of aggregation=required-pass"),
        (
            "[[reward]]\nweights = { a = 1 }\naggregation = 'required-pass'\noptional = ['a']",
            "must leave a component that is required",
        ),
        ("[[reward]]\nweights = { a = 1 }\n[component.a]\nkind = 'llm'", r"component\.a\.kind='llm'"),
        ("[[reward]]\nweights = { a = 1 }\n[component.a]\nscale = [1, 1]", r"component\.a\.scale=\(1, 1\)"),
        ("[[reward]]\nweights = { a = 1 }\n[component.a]\nscale = [1]", "must be two numbers"),
        ("[[reward]]\nweights = { a = 1 }\n[component.a]\nnormalise = 'z'", r"component\.a\.normalise='z'"),
        ("[[reward]]\nweights = { a = 1 }\n[component.a]\nof = 'b'", r"component\.a='b': is no component"),
        ("[[reward]]\nweights = { a = 1 }\n[component.a]\noptions = { x = 1 }", r"component\.a\.options"),
        ("[[reward]]\nweights = { a = 1 }\n[component.a]\nof = 'a'\nreward = 'x'", r"component\.a\.of='a'"),
        ("reward = 1", "must be"),
    ],
)
def test_bad_files_are_named(text: str, refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        spec_of(tomllib.loads(text), ["a", "short", "reward"])


@pytest.mark.parametrize("text", [b"[[reward", b"\xff", None])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "reward.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(DataError, match=r"rewards=.*reward\.toml: cannot be read"):
        read_rewards(path)
