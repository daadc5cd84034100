"""``arcforge-convert SRC DST``: between our checkpoints and those of transformers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from arcforge_core.cli.errors import run_main
from arcforge_core.config.schema import check_choice
from arcforge_core.errors import ConfigError

ARCHITECTURES = ("arcforge", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "llama")
DTYPES = ("float32", "bfloat16", "float16")
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def number_of_bytes(text: str) -> int:
    """Returns the bytes that ``5GB``, ``500MB`` and the like stand for.

    Raises:
        ConfigError: it is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]B)?", text.strip().upper())
    size = float(match[1]) * UNITS[match[2] or ""] if match else 0
    if size < 1:
        raise ConfigError("--max-shard-size", text, "must be a number with KB, MB or GB, e.g. 5GB")
    return int(size)


@run_main
def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="arcforge-convert",
        description="Convert a checkpoint and check the result against its source.",
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="a model, a run, a directory of transformers, a .gguf")
    parser.add_argument("target", type=Path, metavar="DST", help="the directory to make")
    parser.add_argument("--to", help=f"{', '.join(ARCHITECTURES)}; as the source if not given")
    parser.add_argument("--dtype", help=f"of parameters: {', '.join(DTYPES)}; else as stored (GGUF: bfloat16)")
    parser.add_argument("--max-shard-size", default="5GB", help="size of a file, before the next is begun")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint in DST")
    options = parser.parse_args(argv)
    if options.to is not None:
        check_choice("--to", options.to, ARCHITECTURES)
    if options.dtype is not None:
        check_choice("--dtype", options.dtype, DTYPES)
    max_shard_bytes = number_of_bytes(options.max_shard_size)

    import torch

    from arcforge_core.checkpoint.convert import convert

    written = convert(
        options.source,
        options.target,
        to=options.to,
        dtype=None if options.dtype is None else getattr(torch, options.dtype),
        max_shard_bytes=max_shard_bytes,
        overwrite=options.overwrite,
    )
    values = sum(shape.numel() for shape in written.state.shapes.values())
    print(f"{written.path}: {written.architecture}, {len(written.state.shapes)} tensors, {values:,} values")
