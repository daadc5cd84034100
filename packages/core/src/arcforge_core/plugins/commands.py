"""The commands ``arcforge NAME`` and ``arcforge-NAME`` of our own packages, installed or not."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """One command.

    Attributes:
        wheel: the distribution that contains it.
        summary: one line for ``arcforge --help``.
        main: import string of a function that reads ``sys.argv``; empty for a job, whose command line is its
            configuration.
    """

    wheel: str
    summary: str
    main: str = ""


COMMANDS = {
    "demo": Command(
        "arcforge-core",
        "chat with a small fine-tuned model; demo rl: teach it in four minutes",
        "arcforge_core.cli.demo:main",
    ),
    "doctor": Command(
        "arcforge-core",
        "test the installation and this machine",
        "arcforge_core.cli.doctor:main",
    ),
    "train": Command("arcforge-core", "train a language model and write a report", "arcforge_core.cli.train:main"),
    "eval": Command("arcforge-core", "evaluate a checkpoint on held-out text"),
    "convert": Command(
        "arcforge-core", "convert checkpoints from and to transformers and GGUF", "arcforge_core.cli.convert:main"
    ),
    "data": Command("arcforge-core", "prepare and inspect training data"),
    "pipeline": Command(
        "arcforge-core",
        "run jobs in order, each with the results of earlier ones",
        "arcforge_core.cli.pipeline:main",
    ),
    "report": Command("arcforge-core", "rewrite a run's report from its metrics", "arcforge_core.cli.report:main"),
    "plugins": Command("arcforge-core", "list plugins and components", "arcforge_core.cli.plugins:main"),
    "conformance": Command(
        "arcforge-core",
        "test a hardware backend's kernels against the reference",
        "arcforge_core.cli.conformance:main",
    ),
    "quantize": Command("arcforge-hw", "store a checkpoint's weights as integers, for serving"),
    "plan": Command("arcforge-hw", "what fits on which chips, how fast and at what cost, with sources"),
    "swa-search": Command("arcforge-attention", "search for layers that can use a sliding window"),
    "ablation": Command("arcforge-attention", "train and measure an attention variant at a fixed budget"),
    "env": Command("arcforge-rl", "list, check and play environments", "arcforge_rl.cli:main"),
    "conversations": Command("arcforge-rl", "generate conversations with checkable answers"),
    "sample": Command("arcforge-rl", "sample several answers per problem and keep the right ones for training"),
    "rl": Command("arcforge-rl", "train a model by reinforcement learning", "arcforge_rl.cli:rl"),
    "serve": Command("arcforge-serving", "serve a checkpoint over OpenAI's API"),
    "bench": Command("arcforge-serving", "load an OpenAI endpoint and measure latencies"),
}
SCRIPTLESS = ("demo", "doctor", "ablation")
"""Commands without a script ``arcforge-NAME``."""
