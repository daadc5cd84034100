import pytest
import torch

from arcforge_core.errors import ConfigError
from arcforge_serving.engine.kvcache.tier import FileTier


def record(value):
    return torch.full((4,), value, dtype=torch.uint8)


def test_records_are_checked_when_they_are_read(tmp_path):
    tier = FileTier(2, 4, str(tmp_path))
    first, second = tier.take(), tier.take()
    assert tier.free == 0
    assert tier.read(first) is None
    tier.write(first, record(1))
    tier.write(second, record(2))
    assert tier.read(first).tolist() == [1] * 4
    with tier.path.open("r+b") as file:  # one bit of one of the two
        place = tier.path.read_bytes().index(2)
        file.seek(place)
        file.write(b"\x03")
    assert tier.read(first) is not None
    assert tier.read(second) is None
    tier.close()
    assert not tier.path.exists()


def test_a_late_write_does_not_reach_a_record_that_has_another_owner():
    tier = FileTier(1, 4)
    late = tier.take()
    tier.give(late)
    present = tier.take()
    tier.write(late, record(1))
    assert tier.read(present) is None
    tier.write(present, record(2))
    assert tier.read(present).tolist() == [2] * 4
    tier.close()


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"engine\.tier_dir='/nowhere'"):
        FileTier(1, 4, "/nowhere")
