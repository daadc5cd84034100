"""Records a directory that msModelSlim's own saver writes, which tests read.

In the environment of `record_parity.py`, with arcforge installed in it too:

    python tests/hw/quantization/record_directory.py

writes the folder ``msmodelslim_glm`` beside this file: a tiny GLM-5 with the kinds of matrices of msModelSlim's recipes
for it, projections of attention with fixed scales (``W8A8``) in one layer and scales by token in the other, int4
experts; and ``expected.safetensors``, what its own objects say that some matrices are.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from msmodelslim import ir
from msmodelslim.core.quant_service.modelslim_v1.save.ascendv1 import AscendV1Config, AscendV1Saver
from msmodelslim.ir.api import dequantize
from msmodelslim.ir.qal import QDType, QParam, QScheme, QScope, QStorage
from msmodelslim.model import IModel
from safetensors.torch import save_file
from torch import Tensor, nn

from arcforge_attention.configs import DsaConfig
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.checkpoint.shards import ShardReader
from arcforge_core.config.schema import MtpConfig
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_config

TARGET = Path(__file__).parent / "msmodelslim_glm"
FIXED = re.compile(r"model\.layers\.0\.self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)")
BY_TOKEN = re.compile(
    r"model\.layers\.1\.self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)"
    r"|model\.layers\.\d\.mlp\.(shared_experts\.)?(gate|up|down)_proj"
)
EXPERT = re.compile(r"model\.layers\.\d\.mlp\.experts\.\d\.\w+_proj")
SHOWN = (
    "model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.q_b_proj", "model.layers.1.mlp.experts.2.down_proj",
    "model.layers.1.mlp.experts.3.up_proj",
)  # fmt: skip


class Model(IModel):
    """The answers that the saver needs about a model."""

    model_type, trust_remote_code = "glm_5", False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def model_path(self) -> Path:
        return self.folder


def made(stem: str, weight_NK: Tensor) -> tuple[nn.Module, Tensor] | None:
    """Returns msModelSlim's object for a matrix, and the matrix that it means; None for matrices that stay floats."""
    bits = 4 if EXPERT.fullmatch(stem) else 8
    if bits == 8 and not (FIXED.fullmatch(stem) or BY_TOKEN.fullmatch(stem)):
        return None
    dtype = QDType.INT4 if bits == 4 else QDType.INT8
    scale_N = weight_NK.abs().amax(1) / (2 ** (bits - 1) - 1)
    integers_NK = (weight_NK / scale_N[:, None]).round().to(torch.int8)
    rows = QParam(scheme=QScheme(scope=QScope.PER_CHANNEL, dtype=dtype, symmetric=True), ext={"scale": scale_N})
    tokens = QParam(scheme=QScheme(scope=QScope.PER_TOKEN, dtype=QDType.INT8, symmetric=True))
    stored = QStorage(dtype, integers_NK)
    if FIXED.fullmatch(stem):
        fixed = QParam(
            scheme=QScheme(scope=QScope.PER_TENSOR, dtype=QDType.INT8, symmetric=False),
            ext={"scale": torch.tensor(0.037), "offset": torch.tensor(-3.0)},
        )
        module: nn.Module = ir.W8A8StaticFakeQuantLinear(fixed, rows, stored, None)
    elif bits == 4:
        module = ir.W4A8DynamicFakeQuantLinear(tokens, rows, stored, None)
    else:
        module = ir.W8A8DynamicPerChannelFakeQuantLinear(tokens, rows, stored, None)
    return module, dequantize(QStorage(dtype, integers_NK).T, rows).T.value


def tree(tensors: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a module with these tensors, some of them quantised, and what the `SHOWN` ones mean."""
    root, shown = nn.Module(), {}
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        stem, at = ".".join(path), root
        found = made(stem, tensor.float()) if last == "weight" and tensor.ndim == 2 else None
        for part in path[:-1] if found else path:
            if part not in dict(at.named_children()):
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        if found is None:
            at.register_parameter(last, nn.Parameter(tensor.clone(), requires_grad=False))
        else:
            at.add_module(path[-1], found[0])
            if stem in SHOWN:
                shown[stem] = found[1].contiguous()
    return root, shown


def main() -> None:
    """Writes the folder."""
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"moe_intermediate_size": 16, "index_topk": 4, "mtp": MtpConfig(depths=0)}
    model = build_model(small_config(**sizes), DsaConfig(), Ops(None)).eval()
    shutil.rmtree(TARGET, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "source"
        export_hf(model, source)
        reader = ShardReader(source)
        root, shown = tree({name: reader[name] for name in reader})
        config = AscendV1Config(part_file_size=1)
        config.set_save_directory(str(TARGET))
        AscendV1Saver(root, config, Model(source)).post_run()
        save_file(shown, TARGET / "expected.safetensors")


if __name__ == "__main__":
    main()
