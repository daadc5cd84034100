"""Kernels in C++: compiled when they are first needed, and kept for the next process.

They are plain functions of pointers and sizes. They share torch's OpenMP threads, because the library that torch has
loaded is found under the same name; they know nothing else of torch, so that a build takes seconds and outlives it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from arcforge_core.cache import cache_folder
from arcforge_core.cli.progress import say
from arcforge_core.contracts.batch import Pages
from arcforge_core.contracts.hardware import YES, Verdict

log = logging.getLogger("arcforge.ops")

FOLDER = Path(__file__).parent
SOURCES = (
    "attention.cpp", "attention_pairs.cpp", "cross_entropy.cpp", "decode.cpp", "few_rows.cpp", "indexer_kl.cpp",
    "layer.cpp", "likeliest.cpp", "quant.cpp", "race.cpp", "record.cpp", "rms_norm.cpp", "select.cpp",
    "sparse_mla.cpp",
)  # fmt: skip
HEADERS = (
    "decode16.h", "few_rows.h", "pairs.h", "quant.h", "record.h", "routing.h", "rows.h", "rows16.h", "segments.h",
    "selected.h",
)  # fmt: skip
FLAGS = (
    "-std=gnu++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared",
)  # fmt: skip


@dataclass(frozen=True)
class Library:
    """The compiled kernels, or why there are none."""

    functions: ctypes.CDLL | None
    reason: str

    def verdict(self) -> Verdict:
        """Returns whether the kernels can be used."""
        return YES if self.functions is not None else Verdict(False, self.reason)


def compiler() -> str:
    """Returns the command of the C++ compiler, ``$CXX`` or ``g++``; it may not be there."""
    return os.environ.get("CXX") or "g++"


def missing_compiler() -> str:
    """Returns why nothing can be compiled, or nothing where there is a compiler."""
    if shutil.which(compiler()) is None:
        return f"no C++ compiler: {compiler()} is not found (install g++ or set CXX)"
    return ""


@functools.cache
def library() -> Library:
    """Returns the kernels, compiled now unless they have been; the answer holds for the process."""
    found = shutil.which(compiler())
    if found is None:
        return Library(None, missing_compiler())
    try:
        return Library(ctypes.CDLL(str(built(found))), "")
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        reason = f"{found} cannot build the C++ kernels: {next((x for x in lines if 'error' in x), lines[0])}"
        log.warning("%s; torch's operators run instead, slower", reason)
        return Library(None, reason)


def built(compiler: str) -> Path:
    """Returns the shared library of the sources as they are, for this compiler and this processor.

    Raises:
        OSError: there is no place to keep it.
        subprocess.CalledProcessError: it does not compile; ``stderr`` says why.
    """
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    parts = [(FOLDER / name).read_bytes() for name in (*HEADERS, *SOURCES)]
    parts += [text.encode() for text in (*FLAGS, version, processor())]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = cache_folder("native")
    path = folder / f"kernels-{digest}.so"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        say(f"compiling C++ kernels with {compiler}, once")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            unfinished = Path(scratch) / path.name
            command = [compiler, *FLAGS, *(str(FOLDER / name) for name in SOURCES), "-o", str(unfinished)]
            subprocess.run(command, capture_output=True, text=True, check=True)
            unfinished.replace(path)  # whoever else has compiled it meanwhile has made the same
    return path


def processor() -> str:
    """Returns what ``-march=native`` depends on: the processor's instructions where the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


@functools.cache
def function(name: str, arguments: Sequence[type]) -> Callable[..., None]:
    """Returns a C function that returns nothing; `arguments` are ctypes' types."""
    functions = library().functions
    assert functions is not None  # a kernel is only chosen when there is a library
    found = getattr(functions, name)
    found.argtypes, found.restype = list(arguments), None

    def call(*args: Any) -> None:
        if _listening.to is not None:
            _listening.to(name, arguments, args)
        found(*args)

    return call


Listener = Callable[[str, Sequence[type], tuple[Any, ...]], None]
"""Told the name, the types and the arguments of a C function that is about to be called."""


class _Listening(threading.local):
    to: Listener | None = None


_listening = _Listening()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tells this thread's calls to `listener`; what is checked before a call is not, as it may be made again."""
    _listening.to = listener
    try:
        yield
    finally:
        _listening.to = None


POINTER, SIZE, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


@functools.cache
def suffix(dtype: torch.dtype) -> str:
    """Returns the end of a function's name for tensors of this dtype."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def vector_bytes() -> int:
    """Returns the size of the vectors that the library was compiled for."""
    functions = library().functions
    assert functions is not None
    size: int = functions.arcforge_vector_bytes()
    return size


def padded(width: int, dtype: torch.dtype) -> int:
    """Returns the values of a row that is filled up to whole vectors of `dtype`."""
    lanes = vector_bytes() // dtype.itemsize
    return -(-width // lanes) * lanes


@functools.cache
def whole_vectors(width: int, dtype: torch.dtype) -> bool:
    """Says whether rows need no padding, in a dtype that products are computed in as it is."""
    return dtype in (torch.float32, torch.bfloat16, torch.float64) and padded(width, dtype) == width


def direct(*tensors: Tensor) -> bool:
    """Says whether C can be called without torch knowing: nothing is differentiated, traced or without memory."""
    if torch.compiler.is_compiling() or (is_in_torch_dispatch_mode() and _listening.to is None):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def pointers(*tensors: Tensor) -> list[int]:
    """Returns where tensors begin.

    Raises:
        ValueError: one is not contiguous, or not in this machine's memory: C would read something else.
    """
    for x in tensors:
        if not x.is_contiguous() or x.device.type != "cpu":
            raise ValueError(f"a C++ kernel needs contiguous tensors on the CPU, not {x.stride()} on {x.device}")
    return [x.data_ptr() for x in tensors]


def check_dtypes(*tensors: Tensor) -> None:
    """Raises `ValueError` unless all have the dtype of the first, after which the C function is chosen."""
    for x in tensors[1:]:
        if x.dtype != tensors[0].dtype:
            raise ValueError(f"a C++ kernel needs tensors of one dtype, not {tensors[0].dtype} and {x.dtype}")


def check_shape(name: str, x: Tensor, *shape: int) -> None:
    """Raises `ValueError` unless a tensor has this shape: C would read beyond its end, or the wrong values."""
    if x.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, not {list(x.shape)}")


def page_table(pages: Pages | None) -> tuple[int, int, int]:
    """Returns the C arguments of a page table: where it begins, pages of a segment, rows of a page."""
    if pages is None:
        return 0, 0, 0
    (table_at,) = pointers(pages.table_NP)
    return table_at, pages.table_NP.shape[1], pages.size


def check_segments(cu_query: Tensor, cu_key: Tensor, tokens: int, keys: int, pages: Pages | None = None) -> None:
    """Raises `ValueError` unless these are the segments of so many tokens and keys, each with a key for every token.

    With `pages`, of so many rows that hold the pages, and no segment has more keys than its pages hold.
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
    """Raises `IndexError` when a selected row is none of so many keys."""
    if _listening.to is None and rows_TK.numel() and int(rows_TK.max()) >= keys:
        raise IndexError(f"key {int(rows_TK.max())} is selected and there are {keys}")
