"""``arcforge-pipeline``: runs jobs one after another."""

from __future__ import annotations

import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.help import render_help
from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import ConfigError
from arcforge_core.files.find import find_checkpoint
from arcforge_core.pipeline.plan import read_command_line

USAGE = """\
Usage: {script} pipeline=NAME [FIELD=VALUE ...] [stages.STAGE.FIELD=VALUE ...]

FIELD=VALUE and GROUP=OPTION are those of arcforge-train. They hold for all training stages; with stages.STAGE. before
them they are those of that stage's job. The pipeline's own fields are init=CHECKPOINT, check=true, which prints the
plan and stops, resume=latest or resume=FOLDER, output_dir and name. stages.GROUP.repeat=N repeats a group.
"""
MORE = """\
More:
  {script} pipeline=NAME check=true     the stages, their starts, and their commands
  {script} pipeline=NAME --cfg job      the recipe itself
  eval "$({script} -sc install=bash)"   Tab completion in this shell (also zsh, fish)
Fields of every section and component are listed in docs/config.md.
"""


@run_main
def main() -> int:
    """Runs the command line."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(render_help("pipeline", USAGE, MORE))
        return 0
    if {"-m", "--multirun"} & set(arguments):
        raise ConfigError("-m", "--multirun", "a pipeline cannot be swept; run it once for each value")
    line = read_command_line(arguments)
    chosen: list[PipelineConfig] = []
    sys.argv[1:] = line.own
    code = run_app("pipeline", PipelineConfig, chosen.append)
    sys.argv[1:] = arguments  # the command to resume is the whole one
    if chosen:
        if chosen[0].init is not None:
            find_checkpoint(chosen[0].init, "init")  # before torch is imported
        from arcforge_core.pipeline.run import run_pipeline

        run_pipeline(chosen[0], line)
    return code
