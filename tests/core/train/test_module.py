"""What several processes exchange in a step."""

import pytest
import torch
import torch.distributed as dist

from arcforge_core.config.compose import compose
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.train.module import TrainingModule
from support.runs import CORE_ONLY


@pytest.fixture
def group_without_host(monkeypatch):
    """A process group such as Lightning makes for an accelerator: it has a backend for one device and none for the
    host. Of two processes, this one is real; the device is ``meta``, whose tensors read as 1.5."""
    dist.init_process_group("meta:gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: [1.5] * len(tensor))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_without_host")
def test_sums_over_processes_are_computed_on_the_module_s_device():
    config = compose(["model=tiny", *CORE_ONLY, "trainer.max_steps=1"])
    with torch.device("meta"):
        module = TrainingModule(CausalLM(config.model, config.attention), config).to("meta")
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.zeros(1))
    assert module.sum_over_processes([1.0]) == ([1.5], 2.0)
    assert module.in_any_process(True)
    module.share_clock()
    assert module.progress.seconds == 0.75
