import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_optim.configs import CosineConfig, WsdConfig
from arcforge_optim.schedules import cosine, wsd

fractions = st.floats(0.0, 1.0)
cosines = st.builds(CosineConfig, warmup=st.floats(0.0, 0.9), final=fractions)


@st.composite
def wsds(draw: st.DrawFn) -> WsdConfig:
    decay = draw(st.floats(0.05, 1.0))
    warmup = draw(st.floats(0.0, 1.0)) * (1 - decay)
    shape = draw(st.sampled_from(["linear", "one_minus_sqrt"]))
    return WsdConfig(warmup=warmup, decay=decay, final=draw(fractions), shape=shape)


def schedule(config):
    return cosine(config) if isinstance(config, CosineConfig) else wsd(config)


any_config = st.one_of(cosines, wsds())


@given(any_config, fractions)
def test_factor_lies_between_zero_and_one(config, progress):
    assert 0.0 <= schedule(config)(progress) <= 1.0


@given(any_config)
def test_end_points(config):
    factor = schedule(config)
    assert factor(1.0) == pytest.approx(config.final)
    assert factor(config.warmup) == pytest.approx(1.0)
    if config.warmup > 0:
        assert factor(0.0) == 0.0
    assert factor(1.5) == pytest.approx(config.final)  # a run that overshoots its budget stays at the end


@given(any_config, fractions, fractions)
def test_rises_during_warm_up_and_never_after(config, a, b):
    factor, (low, high) = schedule(config), sorted((a, b))
    if high <= config.warmup:
        assert factor(low) <= factor(high)
    elif low >= config.warmup:
        assert factor(low) >= factor(high) - 1e-12


@given(any_config, fractions)
def test_continuous(config, progress):
    """Steps of 1e-9 move the factor little, also across the joints; sqrt moves by sqrt(step / decay)."""
    factor = schedule(config)
    for point in (progress, config.warmup, 1 - getattr(config, "decay", 0.0)):
        slope = 1e-9 / config.warmup if config.warmup else 0.0
        jump = abs(factor(min(1.0, point + 1e-9)) - factor(point))
        assert jump <= 4 * slope + math.sqrt(1e-9 / getattr(config, "decay", 1.0)) + 1e-6 or config.warmup < 1e-8


def test_cosine_halfway_is_the_mean_of_peak_and_final():
    assert cosine(CosineConfig(warmup=0.2, final=0.1))(0.6) == pytest.approx(0.55)


def test_wsd_holds_the_peak_until_the_decay():
    factor = wsd(WsdConfig(warmup=0.1, decay=0.4, shape="linear"))
    assert factor(0.1) == factor(0.3) == factor(0.59999) == 1.0
    assert factor(0.8) == pytest.approx(0.5)


def test_wsd_one_minus_sqrt_falls_fast_first():
    assert wsd(WsdConfig(warmup=0.0, decay=0.4))(0.7) == pytest.approx(0.5)  # a quarter of the decay
