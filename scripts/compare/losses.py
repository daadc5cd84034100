"""Losses: one training run, and the golden recipes and variants."""

from __future__ import annotations

import email
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from compare.policy import Case, Inputs
from compare.trees import Tree, UserError
from compare.values import Row, read_rows

QUIET = (
    "trainer.minutes=null",
    "trainer.log_every=1",
    "trainer.eval_every=1000000",
    "trainer.checkpoint_every=1000000",
    "trainer.samples=0",
)
CASES = {
    **{f"experiment={name}": () for name in ("mini", "mtp_sharing_ablation", "small_base", "smoke")},
    **{f"attention={name}": ("model=tiny",) for name in ("dsa", "gqa", "mla", "reference")},
    **{f"attention={name}": ("model=tiny", "attention.pattern=LFL") for name in ("gdn", "simple_gdn")},
    **{f"attention={name}": ("model=tiny", "attention.pattern=SFS") for name in ("swa", "swa_pattern")},
    "attention=pattern": ("model=tiny", "attention.pattern=R", "+attention@attention.kinds.R=reference"),
    **{f"optimizer={name}": ("model=tiny",) for name in ("adamw", "muon", "muon_split", "torch_adamw")},
}
"""Case, which is an override itself -> further overrides; the cases of tests/golden/losses.json."""
SMALL = (
    "data=files",
    "data.tokenizer.vocab_size=400",
    "trainer.sequence_length=128",
    "trainer.micro_batch_tokens=256",
    "trainer.precision=fp32",
    "trainer.threads=1",
    "hardware=cpu",
    "seed=0",
)


def train(tree: Tree, output: Path, steps: int, overrides: list[str]) -> list[Row]:
    """Trains until `steps` rows of metrics are written, and returns them."""
    settings = [*overrides, *QUIET, f"trainer.max_steps={steps}", f"output_dir={output}"]
    metrics = output / "latest" / "metrics.csv"
    with tempfile.TemporaryFile() as log:
        command = tree.command("arcforge-train", *settings)
        process = subprocess.Popen(command, env=tree.variables, cwd=tree.folder, stdout=log, stderr=log)
        try:
            while process.poll() is None and len(read_rows(metrics)) < steps:
                time.sleep(0.1)
        finally:
            process.kill()  # evaluation and report follow the last step; they do not change losses
            process.wait()
        rows = read_rows(metrics)
        if len(rows) < steps:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()
            ended = f"{tree.folder}: the run ended after {len(rows)} of {steps} steps:"
            raise UserError("\n".join([ended, *said[-15:]]))
    return rows


def losses(inputs: Inputs, tree: Tree, folder: Path) -> Iterator[Case]:
    """The rows of each golden case. The corpus is the source of the standard library's `email`."""
    data = [f"data.paths=[{Path(email.__file__).parent}]", f"data.cache_dir={folder / 'cache'}"]
    steps = inputs.steps or 10
    for number, (name, more) in enumerate(CASES.items()):
        settings = [name, *more, *SMALL, *data, *inputs.overrides]
        yield name, partial(train, tree, folder / f"losses-{number}", steps, settings)
