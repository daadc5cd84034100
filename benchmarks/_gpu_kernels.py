"""Each kernel's time beside its peers and the floor; a peer counts only if its result is ours."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch

import _gpu_attention
import _gpu_cases
from _gpu_cases import OWN, Case
from _gpu_clock import Job, device, difference, median_ms, rates

CASES: Mapping[str, Callable[[bool], Case]] = {**_gpu_cases.CASES, **_gpu_attention.CASES}


def names(quick: bool) -> list[str]:
    """Returns the items."""
    return list(CASES)


def run(name: str, quick: bool, tell: Callable[[dict[str, Any]], None], warm: bool = False) -> dict[str, Any]:
    """Returns milliseconds of ours and of every peer that runs, with the difference of its result.

    Args:
        name: the case.
        quick: small sizes.
        tell: takes the figures known so far.
        warm: only compile and compare.
    """
    torch.manual_seed(0)
    case = CASES[name](quick)
    found: dict[str, Any] = {"shape": case.shape, "notes": case.notes, "peers": {}}
    found |= {"flops": case.flops, "bytes": case.bytes, "tolerance": case.tolerance}
    expected = case.ours()
    if not warm:
        found["floor_ms"] = rates().floor_ms(case.flops, case.bytes)
        found["ms"] = median_ms(case.ours)
    if device() == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case.ours()
        found["memory_mb"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    tell(found)
    for peer, build in case.peers.items():
        if device() == "cpu" and peer in ("compile", "flex_attention"):  # a minute each, and nothing learnt
            continue
        try:
            found["peers"][peer] = _measure(build(), expected, warm)
        except Exception as fault:  # this version or this machine refuses it
            if "CUDA error" in str(fault):
                raise
            found["peers"][peer] = {"error_text": f"{type(fault).__name__}: {str(fault).strip()[:300]}"}
        torch._dynamo.reset()
        gc.collect()
        if device() == "cuda":
            torch.cuda.empty_cache()
        tell(found)
    return found


def _measure(job: Job, expected: Any, warm: bool) -> dict[str, float]:
    apart = difference(job(), expected)
    return {"difference": apart, **({} if warm else {"ms": median_ms(job)})}


def best_peer(result: Mapping[str, Any]) -> tuple[str, float] | None:
    """Returns the fastest third-party peer whose result is ours, and its milliseconds."""
    fit = [
        (peer["ms"], name)
        for name, peer in result.get("peers", {}).items()
        if "ms" in peer and peer["difference"] <= result["tolerance"] and not name.startswith(OWN)
    ]
    return None if not fit else (min(fit)[1], min(fit)[0])


HEADING = f"{'kernel':<28}{'ours ms':>9}{'peer ms':>9}  {'peer':<17}{'floor ms':>9}{'peer/ours':>10}{'ours/floor':>11}"


def row(name: str, result: Mapping[str, Any]) -> str:
    """Returns a line of the table, and one for every peer that is left out."""
    best, ours, floor = best_peer(result), result.get("ms"), result.get("floor_ms")
    text = f"{name:<28}" + (f"{ours:9.3f}" if ours else f"{'-':>9}")
    text += f"{best[1]:9.3f}  {best[0]:<17}" if best else f"{'-':>9}  {'-':<17}"
    text += f"{floor:9.3f}" if floor is not None else f"{'-':>9}"
    text += f"{best[1] / ours:10.2f}" if best and ours else f"{'-':>10}"
    text += f"{ours / floor:11.2f}" if ours and floor else f"{'-':>11}"
    if result.get("error_text"):
        text += f"\n    ours: {result['error_text'][:200]}"
    for peer, about in result.get("peers", {}).items():
        if "error_text" in about:
            text += f"\n    {peer} left out: {about['error_text'].splitlines()[0][:160]}"
        elif not about["difference"] <= result["tolerance"]:
            text += f"\n    {peer} left out: its result differs by {about['difference']:.1e}"
    return text


def ratios(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Returns peer/ours by kernel, and ours over the floor."""
    found = {}
    for name, result in results.items():
        key, best = name.replace(" ", "_"), best_peer(result)
        if best and result.get("ms"):
            found[f"{key}_vs_peer"] = best[1] / result["ms"]
        if result.get("ms") and result.get("floor_ms"):
            found[f"{key}_over_floor"] = result["ms"] / result["floor_ms"]
    return found
