"""Run by test_model.py in a process with a simulated NPU: a whole run of ``hardware=ascend``, whose model is served.

The machine is a recording of one with NPUs. Prints JSON: losses of the NPU's run and the host's, log-probs, and calls.
"""

import csv
import json
import os
import sys
from pathlib import Path

import torch
from model_checks import CHIP, SIZES, calls

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.config.compose import compose
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.ops import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.train.run import train
from arcforge_core.train.state import checkpoints
from arcforge_hw.vendors import backend
from arcforge_hw.vendors.evidence import Evidence
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

FOLDER, TRACES = Path(sys.argv[1]), Path(__file__).parents[1] / "vendors" / "traces"
RECORDED = json.loads((TRACES / "ascend_a2.json").read_text())
backend.here = lambda: Evidence(**{name: RECORDED[name] for name in ("distributions", "paths", "tools")})
TRAINER = {
    "precision": "bf16", "max_steps": 3, "log_every": 1, "sequence_length": 64, "micro_batch_tokens": 128,
    "eval_tokens": 256, "sample_tokens": 8, "threads": 1,
}  # fmt: skip


def trained(hardware):
    """Trains with DSA and the indexer's loss; returns the run's folder, and its losses by step."""
    names = ["experiment=smoke", "attention=dsa", "attention.form=absorbed", "attention.indexer_training=sparse"]
    names += [f"hardware={hardware}", "optimizer=torch_adamw", f"output_dir={FOLDER / hardware}"]
    names += [f"data.cache_dir={FOLDER / 'cache'}", *(f"model.{name}={value}" for name, value in SIZES.items())]
    folder = train(compose([*names, *(f"trainer.{name}={value}" for name, value in TRAINER.items())])).dir
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return folder, [[float(row[name]) for name in ("loss", "indexer_loss", "mtp_loss_1")] for row in rows]


@torch.inference_mode()
def served(folder, hardware):
    """Returns tokens and log-probs of the run's model with W4A8 weights."""
    ops = Ops(None if hardware is None else select_hardware(hardware))
    model = load_pretrained(checkpoints(folder)[-1], ops=ops).eval().to(torch.bfloat16)
    model = model if hardware is None else model.to("npu")
    options = {"cache_tokens": 256, "max_batch_tokens": 24, "max_running": 8, "overlap": False}
    engine = PagedEngine(PagedEngineConfig(weights="w4a8", **options), model)
    outs = engine.generate([list(range(2, 40))], SamplingParams(max_new_tokens=4, temperature=0.0))
    engine.close()
    return outs[0].logprobs


CHIP.calls.clear()
folder, losses = trained("ascend")
found = {"npu": losses, "trained by": calls(), "npu served": served(folder, "ascend"), "served by": calls()}
found |= {"host": trained("torch_cpu")[1], "host served": served(folder, None)}
print(json.dumps(found), flush=True)
os._exit(0)  # torch's threads of the backward pass sometimes abort an interpreter that exits
