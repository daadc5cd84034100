"""Selects the sandbox: never a weaker one without a warning, and an error instead of none."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

from arcforge_core.config.schema import SandboxConfig
from arcforge_core.contracts.sandbox import SandboxBackend
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.commands import AutoSandboxConfig, BubblewrapConfig, LandlockConfig, LocalSandboxConfig
from arcforge_rl.sandbox.bubblewrap import Bubblewrap
from arcforge_rl.sandbox.landlock import Landlock

log = logging.getLogger("arcforge.sandbox")


def build_sandboxes(config: SandboxConfig) -> SandboxBackend:
    """Builds the configured backend.

    Raises:
        ConfigError: the backend cannot run untrusted code here, with the reason.
    """
    backend: SandboxBackend = registry().get("sandbox", config.name).load()(config)
    if config.name != "auto":  # auto probes the backend that it returns
        probe = backend.probe()
        if not probe.ok:
            raise ConfigError("sandbox", config.name, f"not usable here: {probe.reason}")
    return backend


def auto_sandbox(config: AutoSandboxConfig) -> SandboxBackend:
    """Target of ``sandbox=auto``.

    Raises:
        ConfigError: neither backend works on this machine; untrusted code is then not run at all.
    """
    shared: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(LocalSandboxConfig) if f.name != "name"}
    first = Bubblewrap(BubblewrapConfig(**shared))
    probe = first.probe()
    if probe.ok:
        return first
    second = Landlock(LandlockConfig(**shared))
    fallback = second.probe()
    if fallback.ok:
        log.warning("using sandbox landlock instead of bubblewrap, which does not work here: %s", probe.reason)
        return second
    reasons = f"bubblewrap: {probe.reason}; landlock: {fallback.reason}"
    raise ConfigError(
        "sandbox", "auto", f"untrusted code is not run here: {reasons}. arcforge doctor sandbox shows more"
    )
