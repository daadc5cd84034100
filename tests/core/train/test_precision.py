"""bfloat16 compute with float32 weights learns as float32 does, by the measure of runs that differ in their seed."""

import pytest
import torch

from arcforge_core.config.schema import MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.testing.small_models import small_model
from arcforge_core.train.step import StepBatch, accumulate_gradients

STEPS, ROWS, LENGTH, VOCABULARY = 60, 8, 32, 64


def batches():
    """Text that repeats with a period of its own in every row, so that attention has something to learn."""
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        rows = []
        for _ in range(ROWS):
            period = int(torch.randint(3, 9, (), generator=generator))
            word = torch.randint(VOCABULARY // 4, (period,), generator=generator)
            rows.append(word.repeat(LENGTH // period + 2)[: LENGTH + 1])
        tokens_BS = torch.stack(rows)
        yield TrainBatch(
            tokens_BS[:, :-1].flatten(),
            tokens_BS[:, 1:].flatten(),
            torch.ones(ROWS * LENGTH),
            SequenceBatch.build([LENGTH] * ROWS),
            cursor=step + 1,
            num_bytes=ROWS * LENGTH,
        )


def curve(seed, dtype):
    """Returns the losses of a run; the seed decides its first weights."""
    model = small_model(seed, mtp=MtpConfig(depths=0), initializer_range=0.05).train()
    model.set_compute_dtype(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for batch in batches():
        result = accumulate_gradients(model, StepBatch([batch]), torch.Tensor.backward, lambda values: (values, 1.0))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(result.losses["loss"]))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return torch.tensor(losses)


@pytest.mark.nightly(reason="a run for each seed")
def test_losses_in_bfloat16_stay_within_the_noise_of_seeds():
    fp32 = torch.stack([curve(seed, torch.float32) for seed in range(4)])
    bf16 = curve(0, torch.bfloat16)
    assert not torch.equal(bf16, fp32[0]), "computed in bfloat16"
    assert fp32[:, -10:].mean() < 0.8 * fp32[:, :5].mean(), "something is learnt"
    noise = fp32.std(0).mean()
    assert (bf16 - fp32[0]).abs().mean() < noise
    assert (bf16[-10:].mean() - fp32[:, -10:].mean()).abs() < 2 * fp32[:, -10:].mean(1).std() + 1e-3
