"""``arcforge-convert SRC DST``: between our checkpoints and those of transformers."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.cli.errors import Parser, run_main
from arcforge_core.configs import ARCHITECTURES, DTYPES, ConvertConfig


@run_main
def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = Parser(
        prog="arcforge-convert",
        description="Convert a checkpoint and check the result against its source.",
    )
    parser.add_argument("checkpoint", metavar="SRC", help="a model, a run, a directory of transformers, a .gguf")
    parser.add_argument("output_dir", metavar="DST", help="the directory to create")
    parser.add_argument("--to", help=f"{', '.join(ARCHITECTURES)}; default: that of the source")
    parser.add_argument("--dtype", help=f"of parameters: {', '.join(DTYPES)}; else as stored (GGUF: bfloat16)")
    parser.add_argument("--max-shard-size", default="5GB", help="maximum size of a file")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint in DST")
    config = ConvertConfig(**vars(parser.parse_args(argv)))

    from arcforge_core.checkpoint.convert import run

    run(config)
