import pytest

from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": 0}, r"engine\.page_size=0"),
        ({"max_running": 0}, r"engine\.max_running=0"),
        ({"cache_mb": 0}, r"engine\.cache_mb=0"),
        ({"cache_tokens": 15}, r"engine\.cache_tokens=15"),
        ({"tier_mb": -1}, r"engine\.tier_mb=-1"),
        ({"priority_tokens": -1}, r"engine\.priority_tokens=-1"),
        ({"max_batch_tokens": 63}, r"engine\.max_batch_tokens=63.*max_running=64"),
        ({"prefix_cache": False, "tier_mb": 1}, r"engine\.tier_mb=1.*prefix_cache=false"),
        ({"tier_dir": "/tmp"}, r"engine\.tier_dir='/tmp'.*tier_mb"),
    ],
)
def test_what_cannot_be_used_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        PagedEngineConfig(**options)


def test_the_cache_has_the_size_that_is_asked_for():
    model = small_model(max_position_embeddings=4096)
    by_memory = PagedEngine(PagedEngineConfig(cache_mb=1), model)
    assert by_memory.stats().pages == 2**20 // by_memory.store.page_bytes
    assert PagedEngine(PagedEngineConfig(cache_tokens=100), model).stats().pages == 6
    # no more than `max_running` sequences of the greatest length can fill
    assert PagedEngine(PagedEngineConfig(max_running=2), small_model()).stats().pages == 2 * 128 // 16
