"""Huawei's Ascend NPUs: kernels of torch_npu where its documents allow a call's sizes, otherwise torch's operators.

Tiers of the sources: *document* for sizes, dtypes and layouts of operators (`kernels`), from op-plugin of
github.com/Ascend; *source* for no float64 and for int64 (FlagGems' vendor table) and for uneven exchanges
(vllm-ascend); *white paper* for 354 TFLOP/s in bfloat16, why `fast_bf16` is claimed. **Nothing here has run on
silicon**: schemas, layouts and limits of the operators are tested against stand-ins on a simulated device
(`arcforge_core.testing.fake_chip.npu`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from arcforge_core.contracts.device import COLLECTIVES
from arcforge_core.contracts.hardware import Kernel, Prepared, Weight
from arcforge_hw.ascend import layouts
from arcforge_hw.ascend.kernels import kernels
from arcforge_hw.configs import AscendConfig
from arcforge_hw.vendors.backend import VendorChip

EXCHANGES = frozenset(COLLECTIVES)


class Ascend(
    VendorChip,
    vendor="ascend",
    triton="ascend",
    device="npu",
    distributed="hccl",
    fast_bf16=True,
    collectives=EXCHANGES,
):
    """Huawei's Ascend NPUs."""

    def kernels(self) -> Sequence[Kernel]:
        """Returns the kernels of torch_npu, and those of every vendor for calls that these leave."""
        config = self.config if isinstance(self.config, AscendConfig) else AscendConfig()
        return [*kernels(self._supports, config.quant_indexer, config.mla_prologue), *super().kernels()]

    def prepare_weight(self, weight: Weight, value: Tensor) -> Prepared | None:
        """Returns a weight as the operators read it; see `layouts.prepare`."""
        return layouts.prepare(weight, value)

    def restore_weight(self, weight: Weight, prepared: Prepared) -> Tensor:
        """Returns the ordinary weight."""
        return layouts.restore(weight, prepared)
