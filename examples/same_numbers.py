"""Compares the engine's log-probs with a full forward pass of the trainer's model, and with quantised weights.

python examples/same_numbers.py
"""

from __future__ import annotations

import torch

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving import Engine, SamplingParams
from arcforge_serving.configs import PagedEngineConfig


def main() -> dict[str, float]:
    """Returns the largest difference of a sampled token's log-prob, in nats, by the weights of the engine."""
    folder = find_checkpoint("demo")
    tokenizer = Tokenizer.load(folder)
    model = load_pretrained(folder, dtype=torch.float32)
    prompt = [tokenizer.bos_id, *tokenizer.encode("def add(a, b):")]
    found = {}
    for weights in ("none", "w8a8"):
        engine = Engine(load_pretrained(folder, dtype=torch.float32), PagedEngineConfig(weights=weights))
        [output] = engine.generate([prompt], SamplingParams(max_new_tokens=32, seed=3))
        with torch.no_grad():
            logprobs_SV = model(torch.tensor([prompt + output.token_ids])).logits[0].log_softmax(-1)
        full = [logprobs_SV[len(prompt) - 1 + n, token].item() for n, token in enumerate(output.token_ids)]
        found[weights] = max(abs(a - b) for a, b in zip(full, output.logprobs, strict=True))
        print(f"engine.weights={weights}: at most {found[weights]:.1e} nats")
    return found


if __name__ == "__main__":
    main()
