"""A model on a device of its own type, without float64: the results are the host's, and it refuses what it lacks."""

import subprocess
import sys

import pytest

MODEL = """
import torch
from arcforge_core.config.compose import compose
from arcforge_core.model.adapt.quantised import quantise_model
from arcforge_core.model.build import build_model
from arcforge_core.ops import Ops, reference
from arcforge_core.testing.fake_chip.device import ChipTensor, install

chip = install("npu")
config = compose(["model=tiny", "attention=dsa", "optimizer=torch_adamw"])
model, host = (build_model(config.model, config.attention, Ops(None)) for _ in range(2))
host.load_state_dict(model.state_dict())
model = model.to("npu")
ids = torch.arange(24).reshape(2, 12) % config.model.vocab_size
outs = [m(ids.to(m.device)).logits for m in (model, host)]
for out in outs:
    out.logsumexp(-1).sum().backward()
assert isinstance(outs[0], ChipTensor) and torch.equal(outs[0].cpu(), outs[1]), "logits"
for (name, p), q in zip(model.named_parameters(), host.parameters(), strict=True):
    assert p.device.type == "npu", name
    if q.grad is not None:
        torch.testing.assert_close(p.grad.cpu(), q.grad, msg=name)

host.eval()
quantise_model(host, "w4a8")
tokens = host.generate(ids, max_new_tokens=4)
host.to("npu")
assert torch.equal(host.generate(ids.to("npu"), max_new_tokens=4).cpu(), tokens), "generated tokens"

rows, seeds = torch.randn(3, 50), torch.arange(3)
given = rows, torch.ones(3), seeds, seeds
assert torch.equal(reference.sample(*(x.to("npu") for x in given)).cpu(), reference.sample(*given)), "sampled tokens"

x, said = torch.ones(3, device="npu"), []
wide = {"dtype": torch.float64, "device": "npu"}
for refused in (lambda: x.double(), lambda: torch.ones(1, **wide), lambda: x + torch.ones(3)):
    try:
        refused()
    except RuntimeError as error:
        said.append(str(error))
print("\\n".join(said))
"""


@pytest.mark.slow(reason="imports torch in a process of its own, which can have one such device")
def test_a_model_on_a_chip_without_float64_is_the_host_s():
    result = subprocess.run([sys.executable, "-c", MODEL], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "npu has no float64: _to_copy",
        "npu has no float64: empty",
        "aten.add.Tensor on npu got a tensor of shape (3,) on cpu",
    ]
