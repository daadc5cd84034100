"""Options of the variants are checked before anything is built."""

import pytest

from arcforge_attention.configs import DsaConfig, MlaConfig
from arcforge_core.errors import ConfigError


@pytest.mark.parametrize("config", [MlaConfig, DsaConfig])
def test_unknown_form_names_the_accepted_ones(config):
    with pytest.raises(
        ConfigError, match=r"attention.form='absorb'.*auto, expanded, absorbed.*did you mean 'absorbed'"
    ):
        config(form="absorb")
