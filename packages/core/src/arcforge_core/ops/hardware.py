"""Selects the hardware backend; also the plain CPU backend, which needs only torch's own operators."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.config.schema import HardwareConfig
from arcforge_core.contracts.hardware import YES, Change, Hardware, Kernel, OpCall, Probe, Roofline, Verdict
from arcforge_core.errors import ConfigError, PluginError
from arcforge_core.ops.processor import allowed_cores, memory_bytes
from arcforge_core.plugins.loader import registry

log = logging.getLogger("arcforge.ops")


def sdpa_attention_varlen(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float
) -> Tensor:
    """`attention_varlen` by torch's own SDPA, one call per segment."""
    outs = []
    starts_q, starts_k = cu_query.tolist(), cu_key.tolist()
    for n in range(len(starts_q) - 1):
        q_HTK = q_THK[starts_q[n] : starts_q[n + 1]].transpose(0, 1)
        k_GSK = k_SGK[starts_k[n] : starts_k[n + 1]].transpose(0, 1)
        v_GSV = v_SGV[starts_k[n] : starts_k[n + 1]].transpose(0, 1)
        queries, keys = q_HTK.shape[1], k_GSK.shape[1]
        mask = None
        if queries != keys:  # SDPA's is_causal is aligned top-left: wrong after cached tokens
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q_HTK.device).tril(keys - queries)
        out = F.scaled_dot_product_attention(
            q_HTK[None], k_GSK[None], v_GSV[None], mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


def _cpu_only(call: OpCall) -> Verdict:
    return YES if call.device_type == "cpu" else Verdict(False, f"device {call.device_type} is not cpu")


class TorchCpu:
    """The plain CPU backend of core: torch's own operators where they are faster than a reference."""

    name = "torch_cpu"
    device_type = "cpu"
    distributed_backend = "gloo"

    def __init__(self, config: HardwareConfig) -> None:
        self.config = config

    def probe(self) -> Probe:
        """A CPU is always available."""
        return Probe(True, f"{allowed_cores()} CPU cores")

    def kernels(self) -> Sequence[Kernel]:
        """Returns SDPA for attention."""
        return [Kernel("attention_varlen", "torch_cpu.sdpa", sdpa_attention_varlen, _cpu_only)]

    def roofline(self) -> Roofline:
        """Throughput is None, because only a measurement gives a CPU's; capacity is the system's."""
        return Roofline(memory_bytes=memory_bytes())

    def adjust_config(self, config: Any) -> list[Change]:
        """Changes nothing: ``trainer.precision=auto`` selects the number format the processor multiplies faster."""
        return []


def auto_hardware(config: HardwareConfig) -> Hardware:
    """Target of ``hardware=auto``."""
    return select_hardware("auto")


def build_hardware(config: HardwareConfig) -> Hardware:
    """Builds the configured backend; ``auto`` selects one.

    Raises:
        ConfigError: the backend's device is not usable here, with the reason.
    """
    hardware: Hardware = registry().get("hardware", config.name).load()(config)
    probe = hardware.probe()
    if not probe.ok:
        raise ConfigError("hardware", config.name, f"not usable here: {probe.reason}")
    return hardware


def select_hardware(name: str) -> Hardware:
    """Returns the backend of that name; ``auto`` takes the only usable accelerator, or the CPU if there is none.

    Raises:
        ConfigError: several accelerators are usable, or the named one is not.
    """
    if name != "auto":
        return build_hardware(registry().get("hardware", name).load_schema()())
    usable: list[Hardware] = []
    for candidate in registry().names("hardware"):
        if candidate == "auto":
            continue
        try:
            component = registry().get("hardware", candidate)
            hardware: Hardware = component.load()(component.load_schema()())
        except PluginError as error:  # a broken or doubly registered backend only fails when it is named
            log.warning("hardware %s is skipped: %s", candidate, error)
            continue
        probe = hardware.probe()
        log.info("hardware %s: %s (%s)", candidate, "usable" if probe.ok else "not usable", probe.reason)
        if probe.ok:
            usable.append(hardware)
    accelerators = [h for h in usable if h.device_type != "cpu"]
    if len(accelerators) > 1:
        names = ", ".join(h.name for h in accelerators)
        raise ConfigError("hardware", "auto", f"several accelerators are usable ({names}): name one")
    if accelerators:
        return accelerators[0]
    by_name = {h.name: h for h in usable}
    for name in ("cpu", "torch_cpu"):
        if name in by_name:
            return by_name[name]
    raise ConfigError("hardware", "auto", "no backend is usable: arcforge doctor shows why")
