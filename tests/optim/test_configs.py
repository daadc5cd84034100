import subprocess
import sys

import pytest

from arcforge_core.errors import ConfigError
from arcforge_optim.configs import AdamWConfig, CosineConfig, MuonConfig, MuonSplitConfig, WsdConfig


@pytest.mark.parametrize("config", [AdamWConfig, MuonConfig, MuonSplitConfig])
@pytest.mark.parametrize(
    ("field", "value"),
    [("lr", -1), ("lr", -1.0), ("weight_decay", -0.1), ("beta1", 1.0), ("beta2", -0.1), ("eps", float("nan"))],
)
def test_common_fields_are_checked(config, field, value):
    with pytest.raises(ConfigError, match=f"optimizer.{field}="):
        config(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("adamw_lr", -1e-3), ("momentum", 1.0), ("momentum_style", "nesterov"), ("coefficients", "quintik"),
        ("ns_dtype", "fp16"), ("scale", "rsm"), ("update_rms", 0.0), ("head", "sgd"), ("router", "sgd"),
    ],
)  # fmt: skip
def test_muon_fields_are_checked(field, value):
    with pytest.raises(ConfigError, match=f"optimizer.{field}="):
        MuonSplitConfig(**{field: value})


def test_update_rms_without_effect_is_refused():
    with pytest.raises(ConfigError, match="scale=rms only"):
        MuonConfig(scale="original", update_rms=0.1)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: CosineConfig(warmup=1.0), "schedule.warmup"),
        (lambda: WsdConfig(decay=0.0), "schedule.decay"),
        (lambda: WsdConfig(warmup=0.5, decay=0.6), "schedule.decay"),
        (lambda: WsdConfig(shape="sqrt"), "schedule.shape"),
        (lambda: WsdConfig(final=1.5), "schedule.final"),
    ],
)
def test_schedules_are_checked(build, field):
    with pytest.raises(ConfigError, match=field):
        build()


def test_plugin_and_schemas_import_no_torch():
    code = (
        "import sys, arcforge_optim, arcforge_optim.plugin, arcforge_optim.configs; "
        "assert not {'torch', 'numpy', 'lightning'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
