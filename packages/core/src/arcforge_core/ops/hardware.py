"""Selects the hardware backend; also the plain CPU backend, which needs only torch's own operators."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.config.schema import HardwareConfig
from arcforge_core.contracts.device import GENERAL, Capabilities, Identity
from arcforge_core.contracts.hardware import YES, Change, Hardware, Kernel, OpCall, Probe, Roofline, Verdict
from arcforge_core.errors import ConfigError, PluginError
from arcforge_core.ops.allocator import keep_freed_memory
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
    identity = Identity("cpu", "cpu", "CPU", "gloo")
    capabilities = replace(GENERAL, fp8=True, fast_bf16=None, compiler="aot_eager")  # inductor needs a C++ compiler

    def __init__(self, config: HardwareConfig) -> None:
        self.config = config

    def probe(self) -> Probe:
        """A CPU is always available."""
        return Probe(True, f"{allowed_cores()} CPU cores")

    def confirm(self) -> Probe:
        """As `probe`."""
        return self.probe()

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
    """Builds the configured backend; ``auto`` selects one. On the CPU the process keeps freed memory from then on.

    Raises:
        ConfigError: the backend's device is not usable here, with the reason.
    """
    hardware = upgraded(registry().get("hardware", config.name).load()(config))
    for probe in (hardware.probe, hardware.confirm):
        if not (answer := probe()).ok:
            raise ConfigError("hardware", config.name, f"not usable here: {answer.reason}")
    return _in_use(hardware)


def select_hardware(name: str) -> Hardware:
    """Returns the backend of that name; ``auto`` takes the accelerator of the only vendor here, or the CPU without one.

    Raises:
        ConfigError: accelerators of several vendors are usable, several backends drive one, or the named one is not
            usable.
    """
    if name != "auto":
        return build_hardware(registry().get("hardware", name).load_schema()())
    found: dict[str, tuple[Hardware, Probe]] = {}
    for candidate in registry().names("hardware"):
        if candidate == "auto":
            continue
        try:
            component = registry().get("hardware", candidate)
            hardware = upgraded(component.load()(component.load_schema()()))
        except PluginError as error:  # a broken or doubly registered backend only fails when it is named
            log.warning("hardware %s is skipped: %s", candidate, error)
            continue
        found[candidate] = hardware, hardware.probe()
    foreign = [h for h, probe in found.values() if probe.ok and h.identity.dispatch_key == "PrivateUse1"]
    if len(foreign) > 1:  # torch has one place: the first import would take it, and the second would fail
        raise _several(foreign)
    usable: list[Hardware] = []
    for candidate, (hardware, probe) in found.items():
        if probe.ok:  # only now are the vendor's modules imported
            probe = hardware.confirm()
            if not probe.ok:
                log.warning("hardware %s is there, but is not used: %s", candidate, probe.reason)
        log.info("hardware %s: %s (%s)", candidate, "usable" if probe.ok else "not usable", probe.reason)
        if probe.ok:
            usable.append(hardware)
    accelerators = [h for h in usable if h.identity.device != "cpu"]
    if len(accelerators) > 1:
        raise _several(accelerators)
    if accelerators:
        return _in_use(accelerators[0])
    by_name = {h.name: h for h in usable}
    for name in ("cpu", "torch_cpu"):
        if name in by_name:
            return _in_use(by_name[name])
    raise ConfigError("hardware", "auto", "no backend is usable: arcforge doctor shows why")


def _in_use(hardware: Hardware) -> Hardware:
    """Returns the hardware, once this process is set up for it."""
    if hardware.identity.device == "cpu":
        keep_freed_memory()
    return hardware


def _several(accelerators: Sequence[Hardware]) -> ConfigError:
    names = ", ".join(f"{h.name} of {h.identity.vendor}" for h in accelerators)
    return ConfigError("hardware", "auto", f"several accelerators are usable ({names}): name one")


def upgraded(hardware: Any) -> Hardware:
    """Returns a backend of version 2 of the contract, and one of version 1 with what it lacks, with a warning."""
    if not hasattr(hardware, "identity"):
        device = hardware.device_type
        warnings.warn(
            f"hardware {hardware.name}: device_type and distributed_backend are those of contract 1; declare identity, "
            "capabilities and confirm (arcforge_core.contracts.device)",
            FutureWarning,
            stacklevel=3,
        )
        key = {"cpu": "CPU", "cuda": "CUDA"}.get(device, "PrivateUse1")
        hardware.identity = Identity(hardware.name, device, key, getattr(hardware, "distributed_backend", "gloo"))
        hardware.capabilities = replace(GENERAL, fast_bf16=None if device == "cpu" else True, fused_adamw=key == "CPU")
        hardware.confirm = hardware.probe
    upgraded_one: Hardware = hardware
    return upgraded_one


@functools.cache
def capabilities_of(device_type: str) -> Capabilities:
    """Returns what devices of this torch type can do, as their backend says; those of an unknown chip without one."""
    if device_type == "cpu":
        return TorchCpu.capabilities
    found: list[Hardware] = []
    for name in registry().names("hardware"):
        if name == "auto":
            continue
        try:
            component = registry().get("hardware", name)
            hardware = upgraded(component.load()(component.load_schema()()))
        except PluginError as error:
            log.warning("hardware %s is skipped: %s", name, error)
            continue
        if hardware.identity.device == device_type:
            found.append(hardware)
    if len(found) > 1:  # vendors that share a device type
        found = [hardware for hardware in found if hardware.probe().ok] or found[:1]
    return found[0].capabilities if found else Capabilities()
