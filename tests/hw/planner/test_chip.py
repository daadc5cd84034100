"""Chips as data: our file, a user's file, and mistakes in one."""

import pytest

from arcforge_core.errors import ConfigError
from arcforge_hw.planner.chip import UNITS, Chip, chip_named, chips, chips_of
from arcforge_hw.planner.facts import Fact

GOOD = "acme:\n  memory: {value: 8, unit: GB, tier: vendor, source: a page}\n"


def test_every_number_of_our_file_has_a_source_and_its_unit():
    for chip in chips().values():
        for field, unit in UNITS.items():
            fact = getattr(chip, field)
            assert fact.source
            assert fact.unit in (None, unit)


def test_an_unknown_chip_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'ascend_910c'"):
        chip_named("ascend-910c")


def test_a_users_file_adds_chips(tmp_path):
    path = tmp_path / "chips.yaml"
    path.write_text(GOOD)
    chip = chip_named("acme", chips_of(path))
    assert chip.memory == Fact("vendor", "a page", 8, "GB")
    assert chip.bandwidth.value is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acme: 3", "must map names of chips"),
        ("- acme", "must map names of chips"),
        ("{", "must be YAML"),
        (GOOD.replace("memory", "memroy"), "did you mean 'memory'"),
        (GOOD.replace("GB", "GiB"), "must be GB"),
        (GOOD.replace(", source: a page", ""), "needs a tier and a source"),
        (GOOD.replace("8", "0"), "must be positive"),
        (GOOD.replace("value: 8, unit: GB", "value: 8"), "needs a unit"),
        ("acme:\n  matmul_efficiency: {value: 1.5, unit: share, tier: vendor, source: x}", "must be at most 1"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "chips.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        chips_of(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        chips_of(tmp_path / "none.yaml")


def test_assumptions_replace_numbers_and_say_so():
    chip = Chip("acme").assuming({"network": 25.0})
    assert (chip.network.value, chip.network.tier) == (25.0, "assumed")
    with pytest.raises(ConfigError, match="did you mean 'network'"):
        chip.assuming({"netwrk": 25.0})
    with pytest.raises(ConfigError, match="must be positive"):
        chip.assuming({"network": 0.0})
