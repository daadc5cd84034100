"""Both sides of `rl_vs_trl.py --what reward`: a step of a reward model on pairs, ours and TRL's RewardTrainer."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

from _peers import Peer
from arcforge_core.config.compose import compose_config
from arcforge_core.config.reward import RewardTrainConfig

PAIRS = 32
"""Of a step."""
WORDS = [
    "the",
    "a",
    "list",
    "of",
    "file",
    "names",
    "to",
    "run",
    "this",
    "in",
    "other",
    "tests",
    "with",
    "value",
    "type",
    "error",
    "if",
    "not",
    "none",
    "for",
    "each",
    "line",
]


def make_pairs(folder: Path, count: int, longest: int) -> list[dict[str, str]]:
    """Writes and returns pairs whose replies have up to about `longest` tokens, of all lengths."""
    draw = random.Random(0)

    def reply() -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(4, longest)))

    pairs = [{"prompt": f"question {n}", "chosen": reply(), "rejected": reply()} for n in range(count)]
    part = folder / f"pairs.{os.getpid()}"  # of several processes, each of which writes the same
    part.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    part.replace(folder / "pairs.jsonl")
    return pairs


def ours(folder: Path, precision: str, threads: int, longest: int, steps: int) -> tuple[list[float], float]:
    """Runs `arcforge-train stage=reward`; returns the seconds of the steps but the first, and tokens of a step."""
    from arcforge_core.train.reward.run import train

    make_pairs(folder, PAIRS * (steps + 1), longest)
    config = compose_config(
        "reward",
        RewardTrainConfig,
        [
            f"init={folder}", f"pairs.files=[{folder / 'pairs.jsonl'}]", "pairs.heldout=0.0", "optimizer.lr=1e-6",
            f"trainer.batch={PAIRS}", f"trainer.max_steps={steps}", f"trainer.threads={threads}",
            f"trainer.precision={precision}", "trainer.checkpoint_every=1000", "logger=[]",
            f"output_dir={folder / 'runs'}",
        ],
    )  # fmt: skip
    train(config)
    if os.environ.get("RANK", "0") != "0":
        return [math.nan], math.nan  # the first process writes the metrics, and says how fast all were
    metrics = folder / "runs/latest/metrics.csv"
    names, *rows = [line.split(",") for line in metrics.read_text().splitlines()]
    clock = [float(row[names.index("seconds")]) for row in rows]
    tokens = int(rows[-1][names.index("tokens")])
    return [after - before for before, after in itertools.pairwise(clock)], tokens / len(rows)


def theirs(
    folder: Path, peer: Peer, processes: int, accumulate: int, longest: int, steps: int
) -> tuple[list[float], float]:
    """Runs TRL's trainer on the same conversations, likewise."""
    import datasets
    import transformers
    import trl

    from arcforge_core.chat.openai import messages_from_openai
    from arcforge_core.checkpoint.reward_model import conversation_encoder
    from arcforge_core.tokenizer.tokenizer import Tokenizer

    class Clock(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.times.append(time.perf_counter())

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    encode = conversation_encoder(Tokenizer.load(folder))
    rows: list[dict[str, list[int]]] = []
    for pair in make_pairs(folder, PAIRS * (steps + 1), longest):
        ids = {}
        for side in ("chosen", "rejected"):
            said = [{"role": "user", "content": pair["prompt"]}, {"role": "assistant", "content": pair[side]}]
            ids[f"{side}_ids"] = list(encode(messages_from_openai(said)))
        rows.append(ids)
    model = peer.load(folder, "AutoModelForSequenceClassification", num_labels=1)
    model.config.pad_token_id = tokenizer.pad_token_id
    clock = Clock()
    args = trl.RewardConfig(
        output_dir=str(folder / "trl"), use_cpu=True, report_to="none", save_strategy="no", logging_steps=10**6,
        per_device_train_batch_size=PAIRS // (accumulate * processes), gradient_accumulation_steps=accumulate,
        max_steps=steps, learning_rate=1e-6, gradient_checkpointing=False, bf16=peer.dtype == "autocast",
        disable_tqdm=True, torch_compile=peer.compiled, max_length=None,
    )  # fmt: skip
    trainer = trl.RewardTrainer(
        model, args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer, callbacks=[clock]
    )
    trainer.train()
    tokens = sum(len(row[side]) for row in rows for side in row) / len(rows) * PAIRS
    return [after - before for before, after in itertools.pairwise(clock.times)], tokens
