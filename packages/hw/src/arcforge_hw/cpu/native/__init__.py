"""C++ kernels, compiled on first use and cached for later processes.

They are plain functions of pointers and sizes. They use torch's OpenMP threads, because the loader finds the library
that torch has loaded under the same name, but depend on nothing else in torch: builds take seconds and outlive it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import platform
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from arcforge_core.console.progress import say
from arcforge_core.contracts.batch import Pages
from arcforge_core.contracts.hardware import YES, Verdict
from arcforge_core.files.cache import cache_folder
from arcforge_core.ops.calibration import calibrated, source_of
from arcforge_core.ops.cxx import cxx, missing_cxx

log = logging.getLogger("arcforge.ops")

FOLDER = Path(__file__).parent
SOURCES = (
    "argmax_logprob.cpp", "attention.cpp", "attention_pairs.cpp", "cross_entropy.cpp", "decode.cpp", "experts.cpp",
    "few_rows.cpp", "indexer_kl.cpp", "layer.cpp", "quant.cpp", "record.cpp", "rms_norm.cpp", "sample.cpp",
    "select.cpp", "sparse_mla.cpp", "swiglu.cpp",
)  # fmt: skip
HEADERS = (
    "decode16.h", "few_rows.h", "packed.h", "pairs.h", "parts.h", "products.h", "quant.h", "quant_integer.h",
    "quant_part.h", "quant_wide.h", "record.h", "routing.h", "rows.h", "rows16.h", "segments.h", "selected.h",
    "turned.h",
)  # fmt: skip
FLAGS = (
    "-std=gnu++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared",
)  # fmt: skip

PAIR_RATES = ("pairs", "wide_pairs")
"""Figures of calibration: products of pairs of bfloat16 numbers a second, by their instruction and in fp32."""

FEW_ROWS = 64
"""Maximum rows for which one C++ call is faster than separate ops, and a replayed step than the interpreter. Plain
products have the same limit, so that a replayed step has the bits of one that is run."""
QUANT_ROWS = 16
"""Maximum rows for which unpacking quantised weights in registers is faster than whole products."""
DIRECT = (torch.float32, torch.bfloat16, torch.float64)
"""Dtypes that products use directly."""


@dataclass(frozen=True)
class Library:
    """The compiled kernels, or the reason why there are none."""

    functions: ctypes.CDLL | None
    reason: str

    def verdict(self) -> Verdict:
        """Returns whether the kernels can be used."""
        return YES if self.functions is not None else Verdict(False, self.reason)


@functools.cache
def library() -> Library:
    """Returns the kernels, compiled on the first call; the result is cached for the process."""
    reason = missing_cxx()
    if not reason:
        try:
            return Library(ctypes.CDLL(str(built(cxx(), measured_flags()))), "")
        except (OSError, subprocess.CalledProcessError) as error:
            lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            said = next((x for x in lines if "error" in x), lines[0])
            reason = f"{' '.join(cxx())} cannot build the C++ kernels: {said}"
    log.warning("%s; torch's operators run instead, slower", reason)
    return Library(None, reason)


def built(compiler: Sequence[str], further: Sequence[str] = (), sources: Sequence[str] = ()) -> Path:
    """Returns the shared library of the current sources for this processor.

    Args:
        compiler: words of its command.
        further: options besides `FLAGS`.
        sources: files of this folder; those of all kernels if empty.

    Raises:
        OSError: no directory to store it is writable.
        subprocess.CalledProcessError: it does not compile; ``stderr`` has the reason.
    """
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    sources = sources or SOURCES
    parts = [(FOLDER / name).read_bytes() for name in (*HEADERS, *sources)]
    flags = (*FLAGS, *further)
    parts += [text.encode() for text in (*flags, version, processor())]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = cache_folder("native")
    path = folder / f"kernels-{digest}.so"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        if sources is SOURCES:
            say(f"compiling C++ kernels with {' '.join(compiler)}, once")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            unfinished = Path(scratch) / path.name
            command = [*compiler, *flags, *(str(FOLDER / name) for name in sources), "-o", str(unfinished)]
            subprocess.run(command, capture_output=True, text=True, check=True)
            unfinished.replace(path)  # a concurrent compilation has the same result
    return path


def measured_flags() -> list[str]:
    """Returns the compiler's options that a measurement chooses: whether bfloat16 numbers are multiplied in pairs.

    Raises:
        ConfigError: `arcforge_core.ops.calibration.forced`.
        OSError, subprocess.CalledProcessError: as `built`.
    """
    if "avx512_bf16" not in processor():
        return []
    rates = calibrated("pairs", PAIR_RATES, measure_pairs, " ".join(cxx()))  # it may know no such instruction
    return ["-DWIDE_PAIRS"] if rates["wide_pairs"] > rates["pairs"] else []


def measure_pairs() -> dict[str, float]:
    """Measures `PAIR_RATES` on one core."""
    rates = ctypes.CDLL(str(built(cxx(), sources=("pair_rates.cpp",)))).arcforge_pair_rates
    found = [ctypes.c_double() for _ in PAIR_RATES]
    rates(*(ctypes.byref(rate) for rate in found))
    return {name: rate.value for name, rate in zip(PAIR_RATES, found, strict=True)}


def explained() -> str:
    """Returns the measured choice in words; empty where the processor has none."""
    if "avx512_bf16" not in processor() or not library().verdict().ok:
        return ""
    return f"C++ multiplies bf16 {'in fp32' if measured_flags() else 'in pairs'} ({source_of(*PAIR_RATES)})"


def processor() -> str:
    """Returns the input of ``-march=native``: the processor's instructions, if the system reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_double}
REAL = TYPES["d"]


def types(signature: str) -> list[type]:
    """Returns the ctypes of a signature such as ``"3p i d"``: three pointers, an int64 and a double."""
    return [TYPES[part[-1]] for part in signature.split() for _ in range(int(part[:-1] or 1))]


@functools.cache
def function(name: str, signature: str) -> Callable[..., None]:
    """Returns a C function without a return value; `types` parses the signature."""
    functions = library().functions
    assert functions is not None  # kernels are only selected if there is a library
    found = getattr(functions, name)
    arguments = types(signature)
    found.argtypes, found.restype = arguments, None

    def call(*args: Any) -> None:
        if _listening.to is not None:
            _listening.to(name, arguments, args)
        found(*args)

    return call


def by_dtype(name: str, signature: str) -> Callable[[torch.dtype], Callable[..., None]]:
    """Returns a function from the dtype of the tensors to the C function ``arcforge_{name}_{dtype}``."""

    @functools.cache
    def of(dtype: torch.dtype) -> Callable[..., None]:
        return function(f"arcforge_{name}_{suffix(dtype)}", signature)

    return of


Listener = Callable[[str, Sequence[type], tuple[Any, ...]], None]
"""Called with the name, the types and the arguments of a C function before its call."""


class _Listening(threading.local):
    to: Listener | None = None


_listening = _Listening()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Reports this thread's C calls to `listener`; skips checks of values, which may differ on replay."""
    _listening.to = listener
    try:
        yield
    finally:
        _listening.to = None


@functools.cache
def suffix(dtype: torch.dtype) -> str:
    """Returns the suffix of a C function's name for tensors of this dtype."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def vector_bytes() -> int:
    """Returns the vector size that the library was compiled for, in bytes."""
    functions = library().functions
    assert functions is not None
    size: int = functions.arcforge_vector_bytes()
    return size


def padded(width: int, dtype: torch.dtype) -> int:
    """Returns the length of a row padded to whole vectors of `dtype`."""
    lanes = vector_bytes() // dtype.itemsize
    return -(-width // lanes) * lanes


@functools.cache
def whole_vectors(width: int, dtype: torch.dtype) -> bool:
    """Returns whether rows need no padding, in a dtype that products use directly."""
    return dtype in DIRECT and padded(width, dtype) == width


def direct(*tensors: Tensor) -> bool:
    """Returns whether C can be called without a torch op: no tensor is differentiated, traced or without memory."""
    if torch.compiler.is_compiling() or (is_in_torch_dispatch_mode() and _listening.to is None):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def pointers(*tensors: Tensor) -> list[int]:
    """Returns the addresses of tensors.

    Raises:
        ValueError: one is not contiguous, or not in this machine's memory, so C would read other bytes.
    """
    for x in tensors:
        if not x.is_contiguous() or x.device.type != "cpu":
            raise ValueError(f"a C++ kernel needs contiguous tensors on the CPU, not {x.stride()} on {x.device}")
    return [x.data_ptr() for x in tensors]


def output(kernel: Callable[[torch.dtype], Callable[..., None]], given: Iterable[Tensor], *numbers: Any) -> Tensor:
    """Returns the output of a kernel, of the shape and dtype of its first input.

    Args:
        kernel: of `by_dtype`; its arguments are the inputs, the output, `numbers` and the number of threads.
        given: inputs in order; made contiguous.
    """
    tensors = [x.contiguous() for x in given]
    out = torch.empty_like(tensors[0])
    kernel(out.dtype)(*pointers(*tensors, out), *numbers, torch.get_num_threads())
    return out


def check_dtypes(*tensors: Tensor) -> None:
    """Raises `ValueError` unless all have the dtype of the first, which selects the C function."""
    for x in tensors[1:]:
        if x.dtype != tensors[0].dtype:
            raise ValueError(f"a C++ kernel needs tensors of one dtype, not {tensors[0].dtype} and {x.dtype}")


def check_shape(name: str, x: Tensor, *shape: int) -> None:
    """Raises `ValueError` unless a tensor has this shape: C would read out of bounds, or the wrong values."""
    if x.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, not {list(x.shape)}")


def page_table(pages: Pages | None) -> tuple[int, int, int]:
    """Returns the C arguments of a page table: its address, pages per segment, rows per page."""
    if pages is None:
        return 0, 0, 0
    (table_at,) = pointers(pages.table_NP)
    return table_at, pages.table_NP.shape[1], pages.size


def check_segments(cu_query: Tensor, cu_key: Tensor, tokens: int, keys: int, pages: Pages | None = None) -> None:
    """Raises `ValueError` unless the segments have this many tokens and keys, and each a key for every token.

    With `pages`, there must be this many rows for the pages, and no segment may have more keys than its pages hold.
    """
    if _listening.to is not None:
        return
    if pages is not None:
        longest = int(cu_key.diff().max())
        fits = pages.rows <= keys and longest <= pages.table_NP.shape[1] * pages.size
        if not fits or len(pages.table_NP) != len(cu_key) - 1:
            accepted = f"{keys} rows, {longest} keys of the longest of {len(cu_key) - 1} segments"
            raise ValueError(f"pages {list(pages.table_NP.shape)} of {pages.size} up to row {pages.rows}: {accepted}")
        keys = int(cu_key[-1])
    query_ends, key_ends = cu_query.tolist(), cu_key.tolist()
    pasts = [key - query for query, key in zip(query_ends, key_ends, strict=True)]
    ordered = query_ends == sorted(query_ends) and pasts == sorted(pasts)
    if not ordered or query_ends[0] != 0 or key_ends[0] != 0 or query_ends[-1] != tokens or key_ends[-1] > keys:
        accepted = f"{tokens} tokens, {keys} keys, and no segment has fewer keys"
        raise ValueError(f"segments of {query_ends} and {key_ends}: {accepted}")


def check_rows(rows_TK: Tensor, keys: int) -> None:
    """Raises `ValueError` for indices that are not int64, `IndexError` for one that is not below the number of keys."""
    if rows_TK.dtype != torch.int64:
        raise ValueError(f"a C++ kernel needs selected keys as int64, not {rows_TK.dtype}")
    if _listening.to is None and rows_TK.numel() and int(rows_TK.max()) >= keys:
        raise IndexError(f"selected key {int(rows_TK.max())}: must be below {keys}, the number of keys")
