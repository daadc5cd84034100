"""Run by test_vendor.py in a process of its own: a chip under the name given, with an operator of its vendor."""

import json
import sys

import torch

from arcforge_core.testing.fake_chip.device import Limits, install
from arcforge_core.testing.fake_chip.vendor import VendorOp, declare, extension, need

name = sys.argv[1]
install(name, Limits(int64=False))


def scaled(x, *, factor, rows=None):
    need(x.is_contiguous(), "scaled", "x must be contiguous")
    return x * factor


schema = "scaled(Tensor x, *, float factor, Tensor? rows=None) -> Tensor"
declare(name, [VendorOp(schema, scaled, lambda given, outs, grads: {"x": grads[0] * given["factor"]})])
extension(f"torch_{name}")
__import__(f"torch_{name}")
op, x = getattr(torch.ops, name).scaled, torch.arange(6.0).reshape(2, 3).to(name).requires_grad_()
y = op(x, factor=2.0)
y.sum().backward()
assert y.device.type == x.grad.device.type == name and y.cpu()[1, 2] == 10 and x.grad.cpu().eq(2).all()
said = {}
for key, call in {
    "name": lambda: op(x, factors=2.0),
    "order": lambda: op(2.0, x),
    "layout": lambda: op(x.detach().mT, factor=2.0),
    "host": lambda: op(torch.ones(2), factor=2.0),
    "mixed": lambda: op(x.detach(), factor=2.0, rows=torch.ones(2)),
    "int64": lambda: torch.ones(2, dtype=torch.int64, device=name),
}.items():
    try:
        call()
    except (RuntimeError, NotImplementedError) as error:
        said[key] = str(error)
print(json.dumps(said))
