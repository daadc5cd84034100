"""Numbers with tiers and sources."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.errors import ConfigError
from arcforge_hw.planner.facts import TIERS, Fact, counted, derive

KNOWN = [tier for tier in TIERS if tier not in ("unknown", "derived")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": 1.0},
        {"value": 1.0, "unit": "GB", "source": ""},
        {"tier": "unknown", "value": 1.0},
        {"tier": "rumour", "value": 1.0, "unit": "GB"},
        {"value": -1.0, "unit": "GB"},
        {"value": float("inf"), "unit": "GB"},
        {"value": float("nan"), "unit": "GB"},
    ],
)
def test_a_number_without_unit_tier_or_source_is_refused(wrong):
    with pytest.raises(ConfigError):
        Fact(**{"tier": "vendor", "source": "a page", **wrong})


@given(st.lists(st.sampled_from(KNOWN), min_size=1, max_size=5))
@settings(max_examples=20)
def test_a_derived_number_names_its_weakest_ground(tiers):
    inputs = [Fact(tier, "a page", 2.0, "GB") for tier in tiers]
    found = derive("GB", "sum", lambda *values: sum(values), *inputs)
    assert found.value == 2.0 * len(tiers)
    assert found.grounds == max(tiers, key=TIERS.index)
    assert derive("GB", "again", lambda x: x, found).grounds == found.grounds


def test_unknown_propagates_with_its_reason():
    unknown = Fact("unknown", "sources disagree")
    found = derive("GB", "sum", lambda a, b: a + b, counted(1, "GB", "counted"), unknown)
    assert (found.value, found.tier, found.source) == (None, "unknown", "sources disagree")
    with pytest.raises(ConfigError, match="sources disagree"):
        _ = found.known


def test_counts_are_exact_grounds():
    found = derive("GB", "sum", lambda a, b: a + b, counted(1, "GB", "counted"), Fact("vendor", "a page", 2.0, "GB"))
    assert (found.value, found.trust) == (3.0, "derived (vendor)")
