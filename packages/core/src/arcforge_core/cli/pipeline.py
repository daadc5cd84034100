"""``arcforge-pipeline``: runs training stages one after another."""

from __future__ import annotations

import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.help import render_help
from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import ConfigError
from arcforge_core.pipeline.plan import read_command_line

USAGE = """\
Usage: {script} pipeline=NAME [FIELD=VALUE ...] [stages.STAGE.FIELD=VALUE ...]

FIELD=VALUE and GROUP=OPTION are those of arcforge-train. They hold for all stages, and with stages.STAGE. before
them for one. The pipeline's own fields are check=true, which prints the plan and stops, resume=latest or
resume=FOLDER, which goes on with a run, output_dir and name.
"""
MORE = """\
More:
  {script} pipeline=NAME check=true     the stages, what each starts from, and their commands
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
        raise ConfigError("-m", "--multirun", "a pipeline is no sweep; run it once for each value")
    line = read_command_line(arguments)
    chosen: list[PipelineConfig] = []
    sys.argv[1:] = line.own
    code = run_app("pipeline", PipelineConfig, chosen.append)
    sys.argv[1:] = arguments  # what is told to go on with a run is the whole command
    if chosen:
        from arcforge_core.pipeline.run import run_pipeline

        run_pipeline(chosen[0], line)
    return code
