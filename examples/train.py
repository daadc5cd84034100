"""Trains a small model on a folder of texts, with the options of ``arcforge-train``, and continues one of them.

python examples/train.py [FOLDER] [STEPS]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from arcforge_core import load_pretrained
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.config.compose import compose
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.run import train


def main(folder: str = str(Path(json.__file__).parent), steps: int = 20) -> str:
    """Returns the continuation."""
    config = compose([
        "model=tiny", "data=files", f"data.paths=['{folder}']", "data.heldout=0.2", "data.tokenizer.vocab_size=512",
        f"trainer.max_steps={steps}", "trainer.sequence_length=128", "trainer.micro_batch_tokens=1024",
        "optimizer.lr=5e-3", "trainer.eval_tokens=2048", "name=example",
    ])  # fmt: skip
    run = train(config)
    print({name: value for name, value in run.figures.items() if name in ("loss", "bits_per_byte", "tokens_per_s")})
    checkpoint = find_checkpoint(run.dir)
    tokenizer, model = Tokenizer.load(checkpoint), load_pretrained(checkpoint, dtype=torch.float32)
    prompt = torch.tensor([[tokenizer.bos_id, *tokenizer.encode("def ")]])
    text = tokenizer.decode(model.generate(prompt, max_new_tokens=24, temperature=0.6, seed=1)[0].tolist())
    print(text)
    return text


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
