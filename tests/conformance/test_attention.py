"""Runs the attention suite over every variant that the registry lists, and over options of ours."""

import pytest

from arcforge_core import registry
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.testing import AttentionSuite

OPTIONS = {
    "reference": [{"form": "gqa"}],
    "gqa": [{"qk_norm": True, "bias": True}],
    "pattern": [{"pattern": "R", "kinds": {"R": ReferenceAttentionConfig()}}],
    "swa": [{"window": 2}, {"window": 5}, {"window": 5, "pattern": "F"}],
    "swa_pattern": [{"pattern": "SF", "window": 3}],
    "gdn": [{"pattern": "FL", "qk_norm": True}],
    "simple_gdn": [
        {"decay": "fixed", "beta": 0.5, "rope": False},
        {"pattern": "L", "qk_norm": True, "bias": True},
        {"pattern": "FL"},
    ],
    "mla": [{"form": "absorbed"}, {"form": "expanded"}],
    "dsa": [{"index_relu": False}],
}
NEEDS_OPTIONS = ("swa_pattern", "pattern")
VARIANTS = [
    (name, options)
    for name in registry().names("attention")
    for options in [*([] if name in NEEDS_OPTIONS else [{}]), *OPTIONS.get(name, [])]
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join([v[0], *(f"{k}={x}" for k, x in v[1].items())]))
class TestAttention(AttentionSuite):
    @pytest.fixture
    def attention_config(self, variant):
        name, options = variant
        return registry().get("attention", name).load_schema()(**options)
