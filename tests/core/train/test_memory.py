"""Runs that cannot fit are refused before anything is allocated."""

import pytest

from arcforge_core.config.compose import compose
from arcforge_core.errors import ConfigError
from arcforge_core.train.memory import check_memory


def test_a_model_beyond_memory_is_refused_with_both_sizes():
    with pytest.raises(
        ConfigError, match=r"model.name='glm5': its 753.9G parameters take at least 8,425 GiB .*16.0 GiB"
    ):
        check_memory(compose(["model=glm5"]), "cpu", 16 * 2**30)


def test_adapters_need_no_gradients_of_the_frozen_weights():
    lora = compose(["model=flash", "adapter=lora", "init=demo"])
    check_memory(lora, "cpu", 100 * 2**30)
    with pytest.raises(ConfigError, match=r"model.name='flash'"):
        check_memory(compose(["model=flash"]), "cpu", 100 * 2**30)


def test_a_micro_batch_beyond_memory_is_refused():
    config = compose(["model=mini", "trainer.micro_batch_tokens=102400000"])
    with pytest.raises(
        ConfigError, match=r"trainer.micro_batch_tokens=102400000: with the model it takes at least 122 GiB"
    ):
        check_memory(config, "cpu", 16 * 2**30)
    check_memory(config, "cpu", 200 * 2**30)
    check_memory(config, "npu", None)
