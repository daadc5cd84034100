"""What benchmarks of generation share: requests, our engine and transformers' three ways, and whether outputs agree.

Every arm is called with a list of requests and returns the tokens that it generated for each, greedily, without an end
token. Static batches continue until their longest request has its tokens; only tokens that were asked for count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

Ids = list[int]


@dataclass(frozen=True)
class Request:
    """A prompt and how many tokens are wanted."""

    prompt: Ids
    tokens: int


Arm = Callable[[Sequence[Request]], list[Ids]]
"""Generates. An attribute `seconds`, where it has one, is what is to be counted of the call."""


def mixed(
    count: int, source: int | Sequence[int], prompts: tuple[int, int], outputs: tuple[int, int], seed: int
) -> list[Request]:
    """Returns requests whose lengths are spread evenly over two ranges, in an order of chance.

    Args:
        count: how many.
        source: a vocabulary, of which prompts are drawn, or the ids of a text, of which they are pieces.
        prompts, outputs: least and most tokens.
        seed: of all that is drawn.
    """
    draw = torch.Generator().manual_seed(seed)

    def lengths(low: int, high: int) -> Ids:
        found: Ids = torch.linspace(low, high, count).round().long()[torch.randperm(count, generator=draw)].tolist()
        return found

    def prompt(length: int) -> Ids:
        if isinstance(source, int):
            found: Ids = torch.randint(source, (length,), generator=draw).tolist()
            return found
        start = int(torch.randint(len(source) - length, (1,), generator=draw))
        return list(source[start : start + length])

    pairs = zip(lengths(*prompts), lengths(*outputs), strict=True)
    return [Request(prompt(length), tokens) for length, tokens in pairs]


def ours(model: CausalLM, before: Request | None = None, **settings: Any) -> Arm:
    """Returns our engine; a new one for each call, so that no call finds the prefixes of another.

    Args:
        model: what generates.
        before: a request that each engine has answered already.
        settings: fields of `PagedEngineConfig`.
    """

    def arm(requests: Sequence[Request]) -> list[Ids]:
        engine = PagedEngine(PagedEngineConfig(**settings), model)
        if before is not None:
            engine.generate([before.prompt], SamplingParams(before.tokens, temperature=0.0))
        start = time.perf_counter(), time.process_time()
        params = [SamplingParams(request.tokens, temperature=0.0) for request in requests]
        outputs = engine.generate([request.prompt for request in requests], params)
        arm.seconds, arm.cpu = time.perf_counter() - start[0], time.process_time() - start[1]  # type: ignore[attr-defined]
        engine.close()
        return [output.token_ids for output in outputs]

    return arm


def static(model: Any, size: int) -> Arm:
    """Returns transformers' `generate` for batches of `size`, padded on the left, of requests of like lengths."""

    @torch.inference_mode()
    def arm(requests: Sequence[Request]) -> list[Ids]:
        order = sorted(range(len(requests)), key=lambda n: (requests[n].tokens, len(requests[n].prompt)))
        found: dict[int, Ids] = {}
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            width = max(len(requests[n].prompt) for n in chosen)
            ids = torch.zeros(len(chosen), width, dtype=torch.long)
            mask = torch.zeros(len(chosen), width, dtype=torch.long)
            for row, n in enumerate(chosen):
                prompt = requests[n].prompt
                ids[row, width - len(prompt) :] = torch.tensor(prompt)
                mask[row, width - len(prompt) :] = 1
            most = max(requests[n].tokens for n in chosen)
            out = model.generate(ids, attention_mask=mask, max_new_tokens=most, do_sample=False, pad_token_id=0)
            for row, n in enumerate(chosen):
                found[n] = out[row, width : width + requests[n].tokens].tolist()
        return [found[n] for n in range(len(requests))]

    return arm


def continuous(model: Any, page_size: int, max_batch_tokens: int) -> Arm:
    """Returns transformers' continuous batching, its cache as large as the requests need; its start does not count.

    Raises:
        RuntimeError: it does not take the model, or loses requests.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    def arm(requests: Sequence[Request]) -> list[Ids]:
        blocks = sum(-(-(len(request.prompt) + request.tokens) // page_size) for request in requests)
        settings = ContinuousBatchingConfig(
            page_size=page_size, num_blocks=blocks, max_batch_tokens=max_batch_tokens, allow_block_sharing=False
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
        outputs: dict[str, Ids] = {}
        with model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=settings, block=True, timeout=5
        ) as manager:
            start = time.perf_counter(), time.process_time()
            names = [manager.add_request(list(r.prompt), max_new_tokens=r.tokens) for r in requests]
            while len(outputs) < len(requests):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    if result.error:
                        raise RuntimeError(result.error)
                    outputs[result.request_id] = list(result.generated_tokens)
                elif result is None and not manager.is_running():
                    raise RuntimeError(f"it ended with {len(outputs)} of {len(requests)} requests")
            arm.seconds, arm.cpu = time.perf_counter() - start[0], time.process_time() - start[1]  # type: ignore[attr-defined]
        return [outputs[name] for name in names]

    return arm


@dataclass
class Times:
    """What the rounds of one arm took."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def report(self, tokens: int) -> dict[str, float]:
        """Returns medians, and tokens per second."""
        wall, cpu = statistics.median(self.wall), statistics.median(self.cpu)
        return {"seconds": wall, "processor_seconds": cpu, "tokens_per_s": tokens / wall}


def take_turns(
    arms: dict[str, Arm], requests: Sequence[Request], rounds: int, warm: int
) -> tuple[dict[str, Times], dict[str, list[Ids]]]:
    """Runs the arms in turns; the first `warm` requests alone warm each up. Returns times and the last outputs."""
    times = {name: Times() for name in arms}
    outputs: dict[str, list[Ids]] = {}
    for arm in arms.values():
        arm(requests[:warm])
    for _ in range(rounds):
        for name, arm in arms.items():
            start = time.perf_counter(), time.process_time()
            outputs[name] = arm(requests)
            took = time.perf_counter() - start[0], time.process_time() - start[1]
            times[name].wall.append(getattr(arm, "seconds", took[0]))
            times[name].cpu.append(getattr(arm, "cpu", took[1]))
            wanted = [request.tokens for request in requests]
            if [len(ids) for ids in outputs[name]] != wanted:
                raise SystemExit(f"{name} gave {[len(ids) for ids in outputs[name]]} tokens instead of {wanted}")
    return times, outputs


Judge = Callable[[Ids], Tensor]
"""Returns the logits [V] after some tokens."""


@torch.inference_mode()
def logits_of(model: Any, ids: Ids) -> Tensor:
    """Returns a model's logits after some tokens; ours or transformers'."""
    logits_V: Tensor = model(torch.tensor([ids])).logits[0, -1]
    return logits_V.double()


def compare(judge: Judge, requests: Sequence[Request], a: list[Ids], b: list[Ids], tie: float) -> dict[str, Any]:
    """Holds two arms' tokens against each other, by the near-tie rule.

    Where two outputs part, the judge's logits after the shared part must hold both tokens within `tie` standard
    deviations of the logits; what comes after that has another past and is not compared.

    Args:
        judge: decides what is a tie.
        requests: what was asked.
        a, b: tokens of both.
        tie: how much is a tie.

    Returns:
        Tokens that were compared and all tokens, outputs that part, and the largest gap that was taken for a tie.

    Raises:
        SystemExit: a difference is no tie.
    """
    compared = parted = 0
    widest = 0.0
    for request, left, right in zip(requests, a, b, strict=True):
        same = next((n for n, (x, y) in enumerate(zip(left, right, strict=True)) if x != y), None)
        compared += len(left) if same is None else same
        if same is None:
            continue
        parted += 1
        logits_V = judge([*request.prompt, *left[:same]])
        gap = float((logits_V[left[same]] - logits_V[right[same]]).abs() / logits_V.std())
        if gap > tie:
            raise SystemExit(f"outputs part by {gap:.2e} standard deviations at token {same}: nothing to compare")
        widest = max(widest, gap)
    return {"compared": compared, "of": sum(map(len, a)), "outputs_that_part": parted, "widest_tie": widest}
