"""Records a router's decisions: rollouts through `engine=arcforge` to `arcforge-serve dp=N` of a tiny model.

    python benchmarks/routing_record.py LOG [--engines 2] [--sessions 64] [--turns 24] [--width 24]

`--width` rollouts are played at a time, each with a session of its own: a task of 40 to 120 tokens, then turns that
bring a tool's result of 8 to 60 tokens, sample 4 to 16, and wait for a tool whose time is log-normal (median 0.25 s,
sigma 1.0, at most 8 s). `benchmarks/routing.py --log LOG` replays the decisions with any number of engines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_serving.configs import ArcforgeEngineConfig
from arcforge_serving.remote.arcforge import ArcforgeEngine

KEY = "admin-key-of-the-benchmark"
TASK, RESULT, OUTPUT = (40, 120), (8, 60), (4, 16)


async def play(engine: ArcforgeEngine, number: int, turns: int, places: asyncio.Semaphore) -> tuple[int, int]:
    """Plays a rollout; returns its prompt tokens, and those that were cached."""
    rng = random.Random(number)
    ids = [rng.randrange(4, 250) for _ in range(rng.randint(*TASK))]
    prompt = cached = 0
    async with places:
        for _ in range(rng.randint(turns // 3, turns)):
            params = SamplingParams(rng.randint(*OUTPUT), seed=rng.randrange(2**31))
            (stream,) = engine.submit(ids, params, session=f"rollout-{number}")
            output = await asyncio.to_thread(stream.result)
            prompt, cached = prompt + len(ids), cached + output.cached_tokens
            ids += [*output.token_ids, *(rng.randrange(4, 250) for _ in range(rng.randint(*RESULT)))]
            await asyncio.sleep(min(8.0, 0.25 * rng.lognormvariate(0.0, 1.0)))
    return prompt, cached


async def play_all(engine: ArcforgeEngine, sessions: int, turns: int, width: int) -> tuple[int, int]:
    """Plays all rollouts; returns the sums."""
    places = asyncio.Semaphore(width)
    found = await asyncio.gather(*(play(engine, number, turns, places) for number in range(sessions)))
    return sum(prompt for prompt, _ in found), sum(cached for _, cached in found)


def main() -> None:
    """Starts the server, plays, and stops it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--width", type=int, default=24)
    options = parser.parse_args()
    os.environ["ARCFORGE_ENGINE_KEY"] = KEY
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=2048)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, Path(folder) / "model", small_tokenizer())
        command = [
            sys.executable, "-m", "arcforge_serving", "serve", f"checkpoint={folder}/model", "port=0",
            "hardware=torch_cpu", f"dp={options.engines}", f"router.log={options.log}",
        ]  # fmt: skip
        environment = {**os.environ, "ARCFORGE_SERVE_ADMIN_KEYS": KEY}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
            assert server.stdout is not None
            found = re.search(r"http://[\d.:]+", server.stdout.readline())
            assert found, "the server has not started"
            engine = ArcforgeEngine(ArcforgeEngineConfig(url=found[0], stream=False), model)
            try:
                prompt, cached = asyncio.run(play_all(engine, options.sessions, options.turns, options.width))
            finally:
                engine.close()
                server.send_signal(signal.SIGTERM)
                server.wait(60)
    print(f"{prompt} prompt tokens, {cached} of them cached ({cached / prompt:.3f})")


if __name__ == "__main__":
    main()
