"""Reward files of Harbor's verifiers: ``reward.json``, else ``reward.txt``, below ``/logs/verifier``."""

from __future__ import annotations

import json
import math

from arcforge_core.contracts.sandbox import Sandbox, SandboxError, SandboxFault, SandboxUser
from arcforge_core.errors import DataError

FOLDER = "/logs/verifier"
JSON, TEXT = "reward.json", "reward.txt"
LARGEST = 1 << 16
REWARD = "reward"


async def read_rewards(sandbox: Sandbox) -> dict[str, float]:
    """Returns the rewards by name that a verifier wrote.

    Raises:
        SandboxFault: the sandbox broke.
        DataError: there is no file, or it is a link, a pipe, a folder, too long, or holds no finite numbers.
    """
    reasons = []
    for name, read in ((JSON, of_json), (TEXT, of_text)):
        try:
            data = await sandbox.read(f"{FOLDER}/{name}", LARGEST, SandboxUser.VERIFIER)
        except SandboxFault:
            raise
        except SandboxError as error:
            reasons.append(f"{name}: {error}")
            continue
        return read(data)
    raise DataError(f"the verifier left no reward: {'; '.join(reasons)}")


def of_text(data: bytes) -> dict[str, float]:
    """Returns the number of a ``reward.txt``; see `read_rewards`."""
    try:
        value = float(data.decode("ascii"))
    except ValueError as error:
        raise DataError(f"{TEXT}: {data[:40]!r} is no number") from error
    return {REWARD: _finite(value, TEXT)}


def of_json(data: bytes) -> dict[str, float]:
    """Returns the numbers of a ``reward.json``, an object or one number; see `read_rewards`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{JSON}: {data[:40]!r} is no JSON") from error
    found = found if isinstance(found, dict) else {REWARD: found}
    if not found:
        raise DataError(f"{JSON}: has no reward")
    return {str(name): _finite(value, f"{JSON}: {str(name)[:40]}") for name, value in found.items()}


def total(rewards: dict[str, float]) -> float:
    """Returns the number that counts: that called ``reward``, else the mean.

    Raises:
        DataError: it is not in [0, 1].
    """
    value = rewards[REWARD] if REWARD in rewards else sum(rewards.values()) / len(rewards)
    if not 0 <= value <= 1:
        raise DataError(f"reward={value:g}: must be in [0, 1]")
    return value


def _finite(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: {str(value)[:40]!r} is no number")
    if isinstance(value, int) and abs(value) > 1 << 53:
        raise DataError(f"{where}: the number is too large")
    if not math.isfinite(value):
        raise DataError(f"{where}: {value} is not finite")
    return float(value)
