"""The C++ compiler of kernels and of torch.compile."""

from __future__ import annotations

import os
import shlex
import shutil


def cxx() -> list[str]:
    """Returns the command of the C++ compiler, ``$CXX`` or ``g++``, as words, such as ``ccache``, ``g++``."""
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def missing_cxx() -> str:
    """Returns the reason why nothing can be compiled; empty if there is a compiler."""
    name = cxx()[0]
    return "" if shutil.which(name) else f"no C++ compiler: {name} not found (install g++ or set CXX)"
