"""Which matrices of a layer read which channels, and the calibration tokens that each of them reads.

Shapes: N tokens, K inputs of a matrix, E experts, F their width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from arcforge_core.ops.reference import swiglu
from arcforge_hw.quantization.quarot import Quarot
from arcforge_hw.quantization.smoothing import Reader
from arcforge_hw.quantization.transform import READERS
from arcforge_hw.quantization.walk import EXPERTS, LayerInputs

PLACES = {
    **{place: tuple(r for r in readers if not r.startswith(EXPERTS)) for place, readers in READERS.items()},
    "self_attn.value": ("self_attn.o_proj",),
    "mlp.up": ("mlp.down_proj",),
    "mlp.shared_experts.up": ("mlp.shared_experts.down_proj",),
}
"""Places of smoothing factors, and the projections that read them, by name in a layer."""


@dataclass(frozen=True)
class LayerReaders:
    """The quantised matrices of one layer.

    Attributes:
        made: the quantizer, whose tensors have no factors for this layer yet.
        prefix: ``model.layers.N``.
        inputs: of the layer's matrices.
    """

    made: Quarot
    prefix: str
    inputs: LayerInputs

    def of(self, place: str) -> list[Reader]:
        """Returns the readers of a place in `PLACES`, [] if all of them stay floats."""
        readers = [reader for name in PLACES[place] if (reader := self._linear(name)) is not None]
        return readers + (self.experts("gate_up_proj") if place == "post_attention_layernorm" else [])

    def experts(self, kind: str) -> list[Reader]:
        """Returns a reader for each expert, [] if experts stay floats; the inputs of ``down_proj`` are computed."""
        name, chosen_NC = f"{self.prefix}.{EXPERTS}.{kind}", self.inputs.chosen_NC
        if chosen_NC is None or name not in self.made.formats:
            return []
        x_ND, weights_ENK = self.inputs.linear[EXPERTS], self._weight(name)
        read = [x_ND[(chosen_NC == expert).any(-1)] for expert in range(len(weights_ENK))]
        if kind == "down_proj":
            ups = self._weight(f"{self.prefix}.{EXPERTS}.gate_up_proj")
            read = [swiglu(*(x @ up.mT).chunk(2, dim=-1)) for x, up in zip(read, ups, strict=True)]
        return [Reader(name, w, x, partial(self.made.round, name)) for w, x in zip(weights_ENK, read, strict=True)]

    def _linear(self, local: str) -> Reader | None:
        name = f"{self.prefix}.{local}.weight"
        if name not in self.made.formats or local not in self.inputs.linear:
            return None
        return Reader(name, self._weight(name), self.inputs.linear[local], partial(self.made.round, name))

    def _weight(self, name: str) -> Tensor:
        return self.made.state.unrounded(name).float()
