"""``arcforge``: lists the commands, runs ``doctor``, and passes ``arcforge NAME ...`` on to ``arcforge-NAME``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

from arcforge_core import __version__
from arcforge_core.cli.errors import run_main
from arcforge_core.errors import ArcforgeError, PluginError, nearest

COMMANDS = {
    "train": ("arcforge-core", "train a language model and write a report"),
    "eval": ("arcforge-core", "evaluate a checkpoint on held-out text"),
    "convert": ("arcforge-core", "convert checkpoints from and to transformers and GGUF"),
    "data": ("arcforge-core", "prepare and look at training data"),
    "pipeline": ("arcforge-core", "run training stages one after another, each from the weights of the one before"),
    "report": ("arcforge-core", "write a run's report again from its metrics"),
    "plugins": ("arcforge-core", "list plugins and components"),
    "conformance": ("arcforge-core", "hold a hardware backend's kernels against the reference"),
    "swa-search": ("arcforge-attention", "search which layers need no more than a sliding window"),
    "env": ("arcforge-rl", "list, check and play environments"),
    "conversations": ("arcforge-rl", "make conversations whose answers can be checked"),
    "sample": ("arcforge-rl", "try problems several times and keep the right tries to train on"),
    "rl": ("arcforge-rl", "improve a model by what it samples itself"),
    "serve": ("arcforge-serving", "serve a checkpoint over OpenAI's API"),
    "bench": ("arcforge-serving", "put load on an OpenAI endpoint and measure its answers"),
}
"""Our console scripts ``arcforge-NAME``: the wheel that brings each, and what it does."""


def usage() -> str:
    """Returns the list of commands; those whose wheel is absent say so."""
    lines = [f"arcforge {__version__}", "Usage: arcforge COMMAND ...   (the same as arcforge-COMMAND ...)", ""]
    lines.append(f"  {'doctor':<12} say what is installed, what works here and what is missing")
    for name, (wheel, summary) in COMMANDS.items():
        note = "" if _script(name) else f"  [not installed: pip install {wheel}]"
        lines.append(f"  {name:<12} {summary}{note}")
    return "\n".join([*lines, "", "arcforge COMMAND --help tells more."])


def _script(name: str) -> metadata.EntryPoint | None:
    """Returns the entry point of ``arcforge-NAME``, wherever its script file may lie."""
    return next(iter(metadata.entry_points(group="console_scripts", name=f"arcforge-{name}")), None)


@run_main
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Raises:
        PluginError: the command's wheel is not installed.
        ArcforgeError: there is no such command.
    """
    name, *rest = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(__version__)
        return 0
    if name == "doctor":
        from arcforge_core.cli import doctor

        return doctor.main(rest)
    script = _script(name)
    if script is None and name in COMMANDS:
        raise PluginError(f"arcforge-{name} needs the package {COMMANDS[name][0]!r}: pip install {COMMANDS[name][0]}")
    if script is None:
        known = ["doctor", *COMMANDS]
        raise ArcforgeError(f"no command {name!r}; commands: {', '.join(known)}{nearest(name, known)}")
    sys.argv = [f"arcforge-{name}", *rest]
    code: int | None = script.load()()
    return code or 0
