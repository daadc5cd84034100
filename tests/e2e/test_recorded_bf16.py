"""Decoding steps that are recorded: Llama's form in bfloat16 and fp32, with and without experts."""

import pytest
import torch

from arcforge_attention.configs import GqaConfig
from arcforge_core.generation import recorded
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_config
from arcforge_hw.configs import CpuConfig
from arcforge_hw.cpu.backend import Cpu
from arcforge_hw.cpu.native import library

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "qk_rope_head_dim": 32, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def compiled():
    verdict = library().verdict()
    if not verdict.ok:
        pytest.skip(verdict.reason)


def decoded(model, lengths, steps):
    """Returns the hidden states of `steps` steps after prompts of these lengths, one token of each at a time."""
    cache, outs = model.new_cache([80] * len(lengths), 16), []
    cache.pages_NP = cache.pages_NP.flip(1)
    runner = recorded.Recorded(model, cache)
    with torch.inference_mode():
        runner.hidden(torch.arange(sum(lengths)) % 64, cache.batch(range(len(lengths)), lengths))
        for step in range(steps):
            tokens_T = (torch.arange(len(lengths)) * 5 + step * 3) % 64
            outs.append(runner.hidden(tokens_T, cache.batch(range(len(lengths)), [1] * len(lengths))))
    return torch.stack(outs, 1)


@pytest.mark.parametrize("dense", [2, 1], ids=["dense", "experts"])
@pytest.mark.parametrize("lengths", [[20], [9, 2, 30], [5] * 16, [5] * 40], ids=["one", "three", "sixteen", "forty"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_repeated_steps_give_the_bits_of_steps_that_are_run(dense, lengths, dtype, monkeypatch):
    torch.manual_seed(0)
    config = small_config(**SIZES, first_k_dense_replace=dense)
    model = build_model(config, GqaConfig(), Ops(Cpu(CpuConfig()))).to(dtype).eval()
    repeated, original = [], recorded.Step.run
    monkeypatch.setattr(recorded.Step, "run", lambda self, *args: repeated.append(self) or original(self, *args))
    found = decoded(model, lengths, 8)
    assert len(repeated) == 7
    monkeypatch.setattr(recorded.RecordedSteps, "replay", lambda *_: None)
    assert torch.equal(found, decoded(model, lengths, 8))


@pytest.mark.parametrize(("dense", "rows", "steps"), [(2, 64, 3), (2, 65, 0), (1, 64, 3), (1, 65, 0)])
def test_steps_of_up_to_64_tokens_are_repeated(dense, rows, steps, monkeypatch):
    torch.manual_seed(0)
    config = small_config(**SIZES, first_k_dense_replace=dense)
    model = build_model(config, GqaConfig(), Ops(Cpu(CpuConfig()))).bfloat16().eval()
    repeated, original = [], recorded.Step.run
    monkeypatch.setattr(recorded.Step, "run", lambda self, *args: repeated.append(self) or original(self, *args))
    tried, record = [], recorded.RecordedSteps._record
    monkeypatch.setattr(recorded.RecordedSteps, "_record", lambda self, *args: tried.append(1) or record(self, *args))
    found = decoded(model, [5] * rows, 4)
    assert (len(tried), len(repeated)) == (steps > 0, steps)
    monkeypatch.setattr(recorded.RecordedSteps, "replay", lambda *_: None)
    assert torch.equal(found, decoded(model, [5] * rows, 4))
