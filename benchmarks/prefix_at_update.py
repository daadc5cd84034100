"""Weights that are pushed while rollouts of several turns run: what `engine.prefix_at_update` costs and changes.

    python benchmarks/prefix_at_update.py [--rollouts 24] [--turns 12] [--every 40] [--change 0.002]

Rollouts of `--turns` turns run on the paged engine, each a session: a task of 64 tokens, then turns of 32 tokens more
that sample 16. After every `--every` samples the weights are updated: each is multiplied by 1 plus `--change` times a
normal draw. A rollout that ends is replaced until twice `--rollouts` have been played.

`cached` is the share of prompt tokens found, `computed` the prompt tokens computed for a sampled one, `cpu_s` processor
seconds. `gap` is the mean difference in nats between the reported log-probs of the last version's tokens and those of
the last weights alone, over the whole text: with `keep` entries of earlier weights take part.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Generator

import torch

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.testing.engine_suite import continuation_logits
from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

TASK, RESULT, OUTPUT, VOCABULARY = 64, 32, 16, 256


def turns_of(number: int, turns: int) -> Generator[tuple[list[int], int], list[int], None]:
    """Yields the prompts and seeds of a rollout; each output is sent back."""
    rng = random.Random(number)
    ids = [rng.randrange(VOCABULARY) for _ in range(TASK)]
    for _ in range(turns):
        sampled = yield ids, rng.randrange(2**31)
        ids = [*ids, *sampled, *(rng.randrange(VOCABULARY) for _ in range(RESULT))]


def play(mode: str, rollouts: int, turns: int, every: int, change: float) -> dict[str, float]:
    """Plays all rollouts with one mode."""
    model = small_model(vocab_size=VOCABULARY, max_position_embeddings=2048, hidden_size=128, intermediate_size=256)
    engine = PagedEngine(PagedEngineConfig(prefix_at_update=mode, cache_tokens=65536, overlap=False), model)
    generator = torch.Generator().manual_seed(0)
    waiting = iter(range(rollouts, 2 * rollouts))
    live = {number: turns_of(number, turns) for number in range(rollouts)}
    asked = {number: next(rollout) for number, rollout in live.items()}
    samples, last, start = 0, list[tuple[list[int], GenerationOutput]](), time.process_time()
    while asked:
        streams = {
            number: engine.submit(ids, SamplingParams(OUTPUT, seed=seed), session=f"{number}")[0]
            for number, (ids, seed) in asked.items()
        }
        while not all(stream.done for stream in streams.values()):
            engine.step()
        for number, stream in streams.items():
            output, (ids, _) = stream.result(), asked.pop(number)
            samples += 1
            last.append((ids, output))
            try:
                asked[number] = live[number].send(output.token_ids)
            except StopIteration:
                if (fresh := next(waiting, None)) is not None:
                    live[fresh] = turns_of(fresh, turns)
                    asked[fresh] = next(live[fresh])
        if samples >= every * (engine.weight_version + 1) and asked:
            state = {
                name: value * (1.0 + change * torch.randn(value.shape, generator=generator))
                if value.is_floating_point() else value
                for name, value in model.state_dict().items()
            }  # fmt: skip
            engine.update_weights(state)
            last = []
    seconds, stats = time.process_time() - start, engine.stats()
    gaps = [
        (torch.tensor(output.logprobs) - logprobs_S).abs().mean().item()
        for ids, output in last
        for logprobs_S in [present(engine, ids, output)]
    ]
    return {
        "cached": stats.cached_tokens / stats.prompt_tokens,
        "computed": (stats.prompt_tokens - stats.cached_tokens) / stats.generated_tokens,
        "cpu_s": seconds, "updates": engine.weight_version, "gap": sum(gaps) / len(gaps),
    }  # fmt: skip


def present(engine: PagedEngine, prompt: list[int], output: GenerationOutput) -> torch.Tensor:
    """Returns the log-probs [S] of an output by the present weights alone."""
    logprobs_SV = continuation_logits(engine.model, prompt, output.token_ids).log_softmax(-1)
    return logprobs_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]


def main() -> None:
    """Plays with both modes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=24)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--change", type=float, default=0.002)
    options = parser.parse_args()
    for mode in ("drop", "keep"):
        found = play(mode, options.rollouts, options.turns, options.every, options.change)
        print(f"{mode:5}", *(f"{name} {value:.3g}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
