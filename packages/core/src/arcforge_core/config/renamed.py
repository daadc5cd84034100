"""Renamed, moved and removed options of the previous version, each with one line that names its replacement."""

from __future__ import annotations

FAULTS = "faults are injected by engine=faulty of tests/support/faulty_engine.py, see docs/studies/reasoning_rl.md"

RENAMED = {
    "rollout.engine_noise": f"write engine=faulty engine.noise=VALUE: {FAULTS}",
    "rollout.engine_logprob_noise": f"write engine=faulty engine.logprob_noise=VALUE: {FAULTS}",
    "rollout.engine_topk": f"write engine=faulty engine.topk_bits=BITS: {FAULTS}",
    "rollout.engine_topk_bits": f"write engine=faulty engine.topk_bits=BITS: {FAULTS}",
    "ablation.further_rate": "removed: it is 0.1 (arcforge_attention.ablation.stages.FURTHER_RATE)",
    "ablation.warmup_share": "removed: it is 0.3 (arcforge_attention.ablation.stages.WARMUP_SHARE)",
    "ablation.warmup_rate": "removed: it is 4 (arcforge_attention.ablation.stages.WARMUP_RATE)",
    "sandbox.disk_mb": "removed: sandboxes hold 256 MiB of files",
    "sandbox.output_kb": "removed: commands write 1024 KiB to standard output and to standard error at most",
    "engine.max_batch_size": "removed: engine=simple generates for 16 prompts at a time, engine=paged as memory allows",
    "engine.connect_seconds": "removed: a server has 10 seconds to accept a connection",
    "data.include_tests": "removed: data=stdlib leaves the library's own tests out",
    "optimizer.split_rope": "removed: a head's rotary rows belong to the same matrix as its other rows",
    "environment.factor_digits": "removed: the numbers in expressions have two digits",
}
"""Option, as written on a command line -> advice."""


def renamed(path: str) -> str | None:
    """Returns the advice for an option of the previous version in any section; None for all others."""
    return next((advice for old, advice in RENAMED.items() if f".{path}".endswith(f".{old}")), None)
