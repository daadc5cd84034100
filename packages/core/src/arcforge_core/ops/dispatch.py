"""Selects a kernel for each op, once per module, and logs the reasons.

An op is bound when a module is built (and again after a change of dtype or device), never per call.
``ARCFORGE_DISPATCH=reference`` forces the naive references; with ``safe`` the reference runs where a kernel raises.
A kernel with `Kernel.limits` leaves single calls to the next one.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from arcforge_core.contracts.hardware import Hardware, Kernel, OpCall, PreparesWeights, Recorder, Verdict
from arcforge_core.errors import ConfigError, nearest
from arcforge_core.ops import invariant
from arcforge_core.ops.prepared import preferring, restoring
from arcforge_core.ops.specs import SPECS

log = logging.getLogger("arcforge.ops")

RENAMED = {"race": "sample", "likeliest": "argmax_logprob"}
"""Op names that kernels of plugin API 1 may still use, for one version."""


@dataclass(frozen=True)
class Choice:
    """The kernel selected for a call, and the rejected ones with their reasons."""

    call: OpCall
    kernel: str
    rejected: tuple[tuple[str, str], ...]


class Ops:
    """A hardware backend's kernels, with the references as fallback.

    Args:
        hardware: the backend, or None for the references only.
        deterministic: use the ops of `invariant` instead, whose results do not depend on the rest of the batch.
    """

    def __init__(self, hardware: Hardware | None = None, deterministic: bool = False) -> None:
        self.hardware, self.deterministic = hardware, deterministic
        self.kernels: dict[str, list[Kernel]] = {}
        self.choices: dict[tuple[Any, ...], Choice] = {}
        self.mode = dispatch_mode()
        if self.mode != "reference" and hardware is not None:
            for kernel in hardware.kernels():
                kernel = renamed(kernel)
                if reason := fault_of(kernel, load=False):
                    log.warning("hardware %s: kernel %s is not used: %s", hardware.name, kernel.name, reason)
                else:
                    self.kernels.setdefault(kernel.op, []).append(kernel)
            for candidates in self.kernels.values():
                candidates.sort(key=lambda k: -k.priority)

    def bind(self, call: OpCall) -> Callable[..., Any]:
        """Returns the function to call for `call`; the first choice of each kind is logged."""
        if self.deterministic and call.op in invariant.OPS:
            self._note(call, "invariant", ())
            return invariant.OPS[call.op]
        kernel = self.kernel(call)
        plain = SPECS[call.op].reference if kernel is None else kernel.function
        return self._preferring_prepared(call, restoring(plain)) if self.prepares else plain

    def _preferring_prepared(self, call: OpCall, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls the best kernel with layouts for weights that are in them, and else `plain`."""
        candidates = [k for k in self.kernels.get(call.op, []) if k.layouts] if SPECS[call.op].weights else []
        prepared, rejected = self._best(replace(call, needs_grad=False), candidates)
        if prepared is None:
            return plain
        self._note(replace(call, needs_grad=False), f"{prepared.name} with prepared weights", rejected)
        tokens = getattr(getattr(self.hardware, "capabilities", None), "tokens", None)
        function = guarded(prepared, call, spare=False)
        return preferring(prepared, function, plain, tokens, safe=self.mode == "safe")

    @property
    def prepares(self) -> bool:
        """Whether the backend keeps weights in layouts of its own."""
        backend: object = self.hardware
        return isinstance(backend, PreparesWeights) and any(k.layouts for ks in self.kernels.values() for k in ks)

    def kernel(self, call: OpCall) -> Kernel | None:
        """Returns the kernel of highest priority that supports `call`; None falls back to the reference.

        Several of the same priority would leave the choice to the order of a list: they are reported, and none is used.
        """
        found, rejected = self._best(call, [k for k in self.kernels.get(call.op, []) if not k.layouts])
        self._note(call, "reference" if found is None else found.name, rejected)
        safe = found and self._safe(found, call)
        return replace(safe, fn=restoring(safe.function)) if safe and self.prepares else safe

    def fused(self, call: OpCall) -> Kernel | None:
        """As `kernel`, and its function takes prepared weights in the layouts of another kernel of the op."""
        kernel = self.kernel(call)
        if kernel is None or not self.prepares:
            return kernel
        return replace(kernel, fn=self._preferring_prepared(call, kernel.function))

    def _best(self, call: OpCall, candidates: list[Kernel]) -> tuple[Kernel | None, tuple[tuple[str, str], ...]]:
        rejected: list[tuple[str, str]] = []
        for _, equals in groupby(candidates, key=lambda kernel: kernel.priority):
            able = []
            for kernel in equals:
                verdict = verdict_of(kernel, call)
                if verdict.ok and isinstance(kernel.fn, str) and (fault := fault_of(kernel)):
                    log.warning("kernel %s is not used: %s", kernel.name, fault)
                    verdict = Verdict(False, fault)
                if verdict.ok:
                    able.append(kernel)
                else:
                    rejected.append((kernel.name, verdict.reason))
            if len(able) == 1:
                return able[0], tuple(rejected)
            for tie in ties(able):
                log.warning("%s: none of them is used", tie)
                rejected += [(kernel.name, tie) for kernel in able]
        return None, tuple(rejected)

    def _safe(self, kernel: Kernel, call: OpCall) -> Kernel:
        """Returns a kernel whose failures are named, and which leaves calls beyond its limits to the next."""
        function = guarded(kernel, call, self.mode == "safe")
        capabilities = getattr(self.hardware, "capabilities", None)
        tokens = None if capabilities is None else capabilities.tokens
        if kernel.limits is not None or tokens is not None:
            rest = [k for k in self.kernels[call.op] if k.priority < kernel.priority and not k.layouts]
            after = None if kernel.limits is None else self._best(call, rest)[0]
            spare = SPECS[call.op].reference if after is None else self._safe(after, call).function
            function = limited(kernel, call, function, spare, tokens)
        return replace(kernel, fn=function)

    def _note(self, call: OpCall, name: str, rejected: tuple[tuple[str, str], ...]) -> None:
        key = (call.op, call.device_type, call.dtype, call.needs_grad, *sorted(call.sizes.items()))
        if key not in self.choices:
            self.choices[key] = Choice(call, name, rejected)
            why = "".join(f"; rejected {n}: {reason}" for n, reason in rejected)
            log.info("%s [%s, %s] -> %s%s", call.op, call.device_type, call.dtype, name, why)

    @property
    def recorder(self) -> Recorder | None:
        """The backend's recorder of decoding steps; None if it has none or its kernels must not be used."""
        usable = self.kernels and self.mode == "auto" and not self.deterministic and isinstance(self.hardware, Recorder)
        return self.hardware if usable else None  # type: ignore[return-value]

    def binder(self, dtype: torch.dtype, device: torch.device | str, needs_grad: bool = True) -> Binder:
        """Returns a binder for modules that compute in `dtype` on `device`."""
        return Binder(self, dtype, torch.device(device).type, needs_grad)


@dataclass(frozen=True)
class Binder:
    """Binds ops by name for one dtype and device: ``bind("rms_norm", width=256)``."""

    ops: Ops
    dtype: torch.dtype
    device_type: str
    needs_grad: bool = True

    @property
    def deterministic(self) -> bool:
        """Whether a token's result must be independent of the rest of the batch and of the cache."""
        return self.ops.deterministic

    def __call__(self, op: str, **sizes: int) -> Callable[..., Any]:
        """Returns the function for `op` with these fixed sizes."""
        return self.ops.bind(OpCall(op, self.device_type, self.dtype, self.needs_grad, sizes))

    def fused(self, op: str, **sizes: int) -> Kernel | None:
        """Returns a kernel without gradients for an op that fuses several others; None if none supports it.

        Where the weights are in its layouts, another kernel of the op runs.
        """
        if self.deterministic:
            return None
        return self.ops.fused(OpCall(op, self.device_type, self.dtype, False, sizes))


def guarded(kernel: Kernel, call: OpCall, spare: bool) -> Callable[..., Any]:
    """Returns the kernel's function; its errors get a note that names the op, the sizes, the chip and the shapes.

    Args:
        kernel: the kernel.
        call: the call that it is bound to.
        spare: leave a call to the reference where the kernel raises, and say so each time.
    """
    fn, reference = kernel.function, SPECS[call.op].reference
    sizes = ", ".join(f"{name}={size}" for name, size in call.sizes.items())
    which = f"kernel {kernel.name} of {call.op} ({sizes}) on {call.device_type}"

    @functools.wraps(fn)
    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:  # whatever a vendor's library raises
            shapes = shapes_of(args)
            if not spare:
                error.add_note(f"{which} raised this for shapes {shapes}; ARCFORGE_DISPATCH=safe uses the reference")
                raise
            kind = type(error).__name__
            log.warning("%s raised %s: %s; the reference runs for shapes %s", which, kind, error, shapes)
            return reference(*args, **kwargs)

    return function


def limited(
    kernel: Kernel, call: OpCall, fn: Callable[..., Any], spare: Callable[..., Any], tokens: int | None
) -> Callable[..., Any]:
    """Returns a function that calls `fn` within the kernel's limits and the chip's `tokens`, and `spare` beyond.

    The first refusal for each reason is logged.
    """
    limits, told = kernel.limits, set[str]()
    reference = SPECS[call.op].reference

    @functools.wraps(fn)
    def function(*args: Any, **kwargs: Any) -> Any:
        chosen, reason = fn, ""
        if tokens is not None and len(args[0]) > tokens:
            chosen, reason = reference, f"the chip's kernels take {tokens} rows"
        elif limits is not None and not (verdict := limits(*args, **kwargs)).ok:
            chosen, reason = spare, verdict.reason
        if reason and reason not in told:
            told.add(reason)
            log.info("%s: %s leaves shapes %s to another: %s", call.op, kernel.name, shapes_of(args), reason)
        return chosen(*args, **kwargs)

    return function


def shapes_of(args: Iterable[Any]) -> str:
    """Returns the shapes of the tensors among arguments."""
    return ", ".join(str(tuple(x.shape)) for x in args if isinstance(x, torch.Tensor))


def verdict_of(kernel: Kernel, call: OpCall) -> Verdict:
    """Returns whether a kernel supports a call; one that fails to say so is reported, and does not."""
    try:
        verdict: object = kernel.supports(call)
        if isinstance(verdict, Verdict):
            return verdict
        reason = f"its supports returned {verdict!r} instead of a Verdict"
    except Exception as error:  # of a third party
        reason = f"its supports raised {type(error).__name__}: {error}"
    log.warning("kernel %s is not used for %s: %s", kernel.name, call.op, reason)
    return Verdict(False, reason)


def fault_of(kernel: Kernel, load: bool = True) -> str:
    """Returns why a kernel cannot be used, or an empty string: core must have its op, and call it as its reference.

    Args:
        kernel: the kernel.
        load: import the function of one that is given by an import string; without, its signature is not compared.
    """
    if kernel.op not in SPECS:
        return f"core has no op {kernel.op!r}{nearest(kernel.op, SPECS)}"
    function: object = kernel.fn
    if isinstance(function, str):
        if function.count(":") != 1:
            return f"its function {function!r} is not of the form 'package.module:attribute'"
        try:
            function = kernel.function if load else callable
        except Exception as error:  # whatever a third party's module raises
            return f"cannot import {kernel.fn!r}: {type(error).__name__}: {error}"
    if unknown := sorted(set(kernel.layouts) - set(SPECS[kernel.op].weights)):
        weights = ", ".join(SPECS[kernel.op].weights) or "none"
        return f"its layouts are of {', '.join(unknown)}, and weights of {kernel.op} that have layouts are: {weights}"
    priority: object = kernel.priority  # a third party's types are unchecked
    if not callable(function):
        return f"its function is {function!r}"
    if not isinstance(priority, int):
        return f"its priority is {priority!r}, and not a whole number"
    if isinstance(kernel.fn, str) and not load:
        return ""
    wanted, given = parameters(SPECS[kernel.op].reference), parameters(kernel.function)
    if wanted is None or given is None:
        return ""
    fitting = len(given) >= len(wanted) and all(p.default is not p.empty for p in given[len(wanted) :])
    fitting = fitting and all(
        (theirs.default is not theirs.empty or ours.default is ours.empty)
        and (theirs.kind is not theirs.KEYWORD_ONLY or ours.kind is ours.KEYWORD_ONLY)
        for ours, theirs in zip(wanted, given, strict=False)
    )
    ours, theirs = [p.name for p in wanted], [p.name for p in given]
    if fitting and not moved(ours, theirs) and not moved([*map(unshaped, ours)], [*map(unshaped, theirs)]):
        return ""
    by_name = [p.name for p in given if p.kind is p.KEYWORD_ONLY]
    listed = [*theirs[: len(theirs) - len(by_name)], *(["*"] if by_name else []), *by_name]
    return f"it takes ({', '.join(listed)}), and the op is called with ({', '.join(ours)})"


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Returns a function's parameters; None if they are unknown, or any."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return None
    return None if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found) else found


def unshaped(name: str) -> str:
    """Returns the name of a tensor without the suffix that says its shape."""
    return re.sub("_[A-Z0-9]+$", "", name)


def moved(wanted: list[str], given: list[str]) -> bool:
    """Whether a name of both lists, unique in each, has another place in the second."""
    both = [name for name in wanted if wanted.count(name) == given.count(name) == 1]
    return any(wanted.index(name) != given.index(name) for name in both)


def ties(kernels: Iterable[Kernel]) -> list[str]:
    """Returns a line for each op and priority that several kernels have, those with layouts apart: no call has both."""
    found: dict[tuple[str, int, bool], list[str]] = {}
    for kernel in kernels:
        found.setdefault((kernel.op, kernel.priority, bool(kernel.layouts)), []).append(kernel.name)
    return [
        f"{op}: {' and '.join(sorted(names))} have the same priority, {priority}"
        for (op, priority, _), names in found.items()
        if len(names) > 1
    ]


def renamed(kernel: Kernel) -> Kernel:
    """Returns a kernel under the current name of its op, with a warning if it uses an old one."""
    if kernel.op not in RENAMED:
        return kernel
    new = RENAMED[kernel.op]
    warnings.warn(f"kernel {kernel.name}: the op {kernel.op!r} is now called {new!r}", FutureWarning, stacklevel=3)
    return replace(kernel, op=new)


def dispatch_mode() -> str:
    """Returns ``auto``, ``safe`` or ``reference`` from ARCFORGE_DISPATCH."""
    mode = os.environ.get("ARCFORGE_DISPATCH", "auto")
    if mode not in ("auto", "safe", "reference"):
        raise ConfigError("ARCFORGE_DISPATCH", mode, "must be auto, safe or reference")
    return mode


@functools.cache
def default_ops() -> Ops:
    """Returns the ops of ``hardware=auto``, for models built outside a run."""
    from arcforge_core.ops.hardware import select_hardware

    return Ops(select_hardware("auto"))
