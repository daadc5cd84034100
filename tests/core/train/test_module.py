"""What several processes exchange in a step."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

from arcforge_core.config.compose import compose
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.train import processes
from arcforge_core.train.accelerator import AfterBackward
from arcforge_core.train.module import TrainingModule
from support.runs import CORE_ONLY


@pytest.fixture
def sent(monkeypatch):
    """Of two processes this one is real, and the other has three times its values. Returns what was exchanged."""
    found = []

    def gather(out, own):
        found.append(own)
        theirs = 3 * own.cpu().view(torch.float64)
        out.copy_(torch.cat((own.cpu(), theirs.view(torch.int32))))

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(dist, "all_gather_into_tensor", gather)
    return found


def test_sums_over_processes_need_no_float64(sent):
    config = compose(["model=tiny", *CORE_ONLY, "trainer.max_steps=1"])
    module = TrainingModule(CausalLM(config.model, config.attention), config)
    values = [0.1, 1e300, -3.0]
    assert module.sum_over_processes(values) == ([v + 3 * v for v in values], 2.0)
    assert module.in_any_process(True) and not module.in_any_process(False)
    module.progress.seconds = 0.5
    module.share_clock()
    assert 1.0 <= module.progress.seconds < 3600
    assert {x.dtype for x in sent} == {torch.int32}


@pytest.mark.parametrize(("strategy", "mean"), [(AfterBackward(), 2.0), (DDPStrategy(), 1.0)])
def test_gradients_are_averaged_where_torch_has_not_done_so(sent, monkeypatch, strategy, mean):
    config = compose(["model=tiny", *CORE_ONLY, "trainer.max_steps=1"])
    module = TrainingModule(CausalLM(config.model, config.attention), config)
    module._trainer = SimpleNamespace(strategy=strategy)
    monkeypatch.setattr(processes, "gather", lambda names: [names])
    monkeypatch.setattr(processes, "place", lambda: (0, 2))
    monkeypatch.setattr(dist, "all_reduce", lambda x, async_op: SimpleNamespace(wait=x.mul_(4).sum))
    weight, idle = module.model.lm_head.weight, module.model.model.embed_tokens.weight
    weight.grad = torch.ones_like(weight)
    module.share_gradients()
    assert set(weight.grad.flatten().tolist()) == {mean} and idle.grad is None
