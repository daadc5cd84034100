"""Transformers at its best: the settings that every benchmark sweeps, and the sweep itself.

A setting is measured only if it runs and gives our results; the others are listed with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

ATTENTION = ("sdpa", "eager", "flex_attention")
EXPERTS = ("grouped_mm", "eager")
"""Not ``batched_mm``: it copies expert weights for every token, minutes a step of `small`."""
TOO_SLOW = 4.0
"""A first call that takes this many times the fastest is no warm-up, and its setting is left out."""

S = TypeVar("S")
Run = Callable[[], float]
"""Does a piece of work and returns its seconds; comparable among settings."""


class Unfit(Exception):
    """A setting gives other results than ours; the message says by how much."""


@dataclass(frozen=True)
class Peer:
    """Settings of transformers.

    Attributes:
        attention: ``attn_implementation``.
        experts: ``experts_implementation``; None for models without experts.
        dtype: ``fp32``, ``bf16``, or ``autocast``, bf16 products with fp32 weights.
        compiled: by `torch.compile`.
        batch: sequences of one call; 0 where the benchmark has nothing to split.
    """

    attention: str = "sdpa"
    experts: str | None = None
    dtype: str = "fp32"
    compiled: bool = False
    batch: int = 0

    def __str__(self) -> str:
        named = (self.attention, self.experts, self.dtype, "compile" * self.compiled, self.batch and f"by {self.batch}")
        return "+".join(str(part) for part in named if part)

    def load(self, folder: str | Path, kind: str = "AutoModelForCausalLM", **options: Any) -> Any:
        """Returns the model of a folder, in eval mode; `options` are further ones of its class."""
        import transformers

        transformers.logging.set_verbosity_error()
        experts = {} if self.experts is None else {"experts_implementation": self.experts}
        model: nn.Module = (
            getattr(transformers, kind)
            .from_pretrained(folder, dtype=dtype_of(self), attn_implementation=self.attention, **experts, **options)
            .eval()
        )
        if self.compiled:
            model.forward = torch.compile(model.forward)  # type: ignore[method-assign]
        return model

    def casting(self) -> AbstractContextManager[object]:
        """Returns the context of forward passes."""
        return torch.autocast("cpu", torch.bfloat16) if self.dtype == "autocast" else nullcontext()


def dtype_of(peer: Peer) -> torch.dtype:
    """Returns the dtype of the weights."""
    return torch.bfloat16 if peer.dtype == "bf16" else torch.float32


def peers(dtypes: Sequence[str], experts: Sequence[str | None] = (None,), batch: int = 0) -> list[Peer]:
    """Returns all combinations of attention, experts and dtype, not compiled."""
    return [Peer(*options, batch=batch) for options in itertools.product(ATTENTION, experts, dtypes)]


@dataclass(frozen=True)
class Swept(Generic[S]):
    """The result of a sweep.

    Attributes:
        best: the fastest setting.
        run: its work, warmed up.
        tried: seconds of each setting, or why it was left out.
    """

    best: S
    run: Run
    tried: dict[str, float | str]


def sweep(
    candidates: Iterable[S],
    prepare: Callable[[S], Run],
    further: Callable[[S], Iterable[S]] = lambda best: (),
    repeats: int = 2,
) -> Swept[S]:
    """Returns the fastest of the settings.

    Args:
        candidates: settings to measure.
        prepare: builds what a setting measures.
        further: variations of the fastest candidate, measured too: settings that take long to try, such as compiling.
        repeats: measured calls after the first, of which the fastest counts; 0 counts the first call, except that of
            further settings, which may be compiling.

    Raises:
        SystemExit: no setting can be measured.
    """
    seconds: dict[S, float] = {}
    tried: dict[str, float | str] = {}
    fastest: tuple[S, Run] | None = None

    def measure(setting: S, patient: bool) -> None:
        nonlocal fastest
        try:
            run = prepare(setting)
            took = run()
            if not patient and seconds and took > TOO_SLOW * min(seconds.values()):
                raise Unfit(f"too slow, {took:.2f} s at first")
            again = max(1, repeats) if patient else repeats
            took = min((run() for _ in range(again)), default=took)
        except Exception as error:  # what this machine, this model or this version refuses
            tried[str(setting)] = f"left out: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        else:
            tried[str(setting)] = took
            if not seconds or took < min(seconds.values()):
                fastest = setting, run
            seconds[setting] = took
        shown = tried[str(setting)]
        print(f"  {setting}: {shown if isinstance(shown, str) else f'{shown * 1e3:,.1f} ms'}", flush=True)

    for setting in candidates:
        measure(setting, patient=False)
    if fastest is not None:
        for setting in further(fastest[0]):
            measure(setting, patient=True)
    if fastest is None:
        raise SystemExit("no setting of the peer runs and gives our results: nothing to compare with")
    return Swept(fastest[0], fastest[1], tried)
