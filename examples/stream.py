"""Streams several requests from the engine concurrently, and cancels the slowest one.

python examples/stream.py
"""

from __future__ import annotations

from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving import Engine, SamplingParams

TEXTS = ("def add(", "import ", "class Tree:")


def main() -> list[str]:
    """Prints each text as it comes; returns the reasons for which the requests ended."""
    folder = find_checkpoint("demo")
    tokenizer, engine = Tokenizer.load(folder), Engine(folder)
    engine.start()
    prompts = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in TEXTS]
    streams = [
        engine.submit(prompt, SamplingParams(max_new_tokens=24, seed=seed))[0] for seed, prompt in enumerate(prompts)
    ]
    (endless,) = engine.submit(prompts[0], SamplingParams(max_new_tokens=2000))
    for text, stream in zip(TEXTS, streams, strict=True):
        print(text, end="")
        for delta in stream:
            print(tokenizer.decode([token.id for token in delta.tokens]), end="", flush=True)
        print()
    endless.cancel()
    reasons = [stream.result().finish_reason for stream in (*streams, endless)]
    engine.close()
    return reasons


if __name__ == "__main__":
    print(main())
