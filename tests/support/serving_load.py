"""Random load on a `PagedEngine` with every answer checked; the tests and ``benchmarks/serving_soak.py`` use it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.engine.errors import QueueFullError
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.engine.stream import Stream

State = Mapping[str, Tensor]


class OneInFour:
    """A `Matcher` that lets every fourth id through, from another one on at each place, and ends after `length`."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self.vocabulary, self.length, self.given = vocabulary, length, 0

    def allowed(self) -> Tensor:
        """Returns the mask of the present place."""
        return torch.arange(self.vocabulary) % 4 == self.given % 4

    def accept(self, token: int) -> None:
        """Counts an allowed token."""
        assert token % 4 == self.given % 4, f"{token} was not allowed"
        self.given += 1

    @property
    def finished(self) -> bool:
        """Whether there were enough."""
        return self.given == self.length


@dataclass(frozen=True)
class Case:
    """A request, and what it gives by state of the weights."""

    prompt: list[int]
    params: SamplingParams
    outputs: list[list[GenerationOutput]]


def make_cases(model: CausalLM, states: Sequence[State], count: int, longest: int, seed: int = 0) -> list[Case]:
    """Returns random requests, many of which begin alike, with what the simple engine gives; weights stay as they were.

    Args:
        model: answers.
        states: state dicts that the answers are wanted for.
        count: how many requests.
        longest: tokens that prompt and output have at most.
        seed: decides all of it.
    """
    rng, vocabulary = random.Random(seed), model.config.vocab_size
    stems = [[rng.randrange(vocabulary) for _ in range(longest // 2)] for _ in range(3)]
    requests = []
    for _ in range(count):
        stem = rng.choice(stems)[: rng.randrange(longest // 2)]
        prompt = [*stem, *(rng.randrange(vocabulary) for _ in range(rng.randint(1, longest // 4)))]
        params = SamplingParams(
            max_new_tokens=rng.randint(1, longest - len(prompt)),
            temperature=rng.choice([0.0, 1.0, 0.7]),
            top_p=rng.choice([1.0, 0.9]),
            seed=rng.randrange(1000),
            frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
            stop_token_ids=tuple(rng.sample(range(vocabulary), 2)),
            n=rng.choice([1, 1, 1, 2]),
            top_logprobs=rng.choice([0, 0, 2]),
            prompt_logprobs=rng.random() < 0.1,
            matcher=partial(OneInFour, vocabulary, rng.randint(1, 8)) if rng.random() < 0.2 else None,
        )
        requests.append((prompt, params))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    answers: list[list[list[GenerationOutput]]] = [[] for _ in requests]
    for state in states:
        engine = SimpleEngine(SimpleEngineConfig(), model)
        engine.update_weights(state)
        outputs = iter(engine.generate([prompt for prompt, _ in requests], [params for _, params in requests]))
        for answer, (_, params) in zip(answers, requests, strict=True):
            answer.append([next(outputs) for _ in range(params.n)])
    model.load_state_dict(before)
    return [Case(*request, answer) for request, answer in zip(requests, answers, strict=True)]


@dataclass
class Open:
    """A stream that is not checked yet; `state` is None when the weights changed while it ran."""

    stream: Stream
    case: Case
    index: int
    state: int | None


@dataclass
class RandomLoad:
    """Submits, cancels, preempts, flushes, pauses and updates weights at random.

    Attributes:
        engine: with ``states[0]`` loaded.
        cases: what is asked, answered for all `states`.
        states: weights that take turns.
        rng: decides.
        tolerance: how far log-probs may be from the answers'; tokens must be equal.
        limit: streams that are open at most.
        done: what has happened, by name.
    """

    engine: PagedEngine
    cases: Sequence[Case]
    states: Sequence[State]
    rng: random.Random
    tolerance: float = 0.0
    limit: int = 32
    done: Counter[str] = field(default_factory=Counter)
    state: int = 0
    open: list[Open] = field(default_factory=list)

    def act(self) -> None:
        """Does one thing."""
        weights = {"submit": 30, "nothing": 20, "cancel": 3, "preempt": 4, "flush": 1, "pause": 1, "update": 1}
        (name,) = self.rng.choices(list(weights), list(weights.values()))
        self.done[name] += 1
        getattr(self, f"_{name}")()
        self.collect()

    def collect(self) -> None:
        """Checks the streams that are done."""
        still = []
        for each in self.open:
            if each.stream.done:
                self._check(each)
            else:
                still.append(each)
        self.open = still

    def _nothing(self) -> None:
        pass

    def _submit(self) -> None:
        case = self.rng.choice(self.cases)
        if len(self.open) + case.params.n > self.limit:
            return
        try:
            streams = self.engine.submit(
                case.prompt, case.params, priority=self.rng.randrange(3), owner=self.rng.choice("abc")
            )
        except QueueFullError:
            self.done["refused"] += 1
            return
        self.open += [Open(stream, case, index, self.state) for index, stream in enumerate(streams)]

    def _cancel(self) -> None:
        if self.open:
            self.rng.choice(self.open).stream.cancel()

    def _preempt(self) -> None:
        self.engine.preempt(self.rng.randrange(1, 3))

    def _flush(self) -> None:
        self.engine.flush()

    def _pause(self) -> None:
        self.engine.pause(self.rng.choice(["abort", "wait", "keep"]))
        self.engine.resume()

    def _update(self) -> None:
        mode = self.rng.choice(["abort", "wait", "keep"])
        self.engine.pause(mode)
        self.collect()
        for each in self.open:
            each.state = None
        self.state = (self.state + 1) % len(self.states)
        self.engine.update_weights(self.states[self.state])
        self.engine.resume()

    def _check(self, each: Open) -> None:
        output = each.stream.result()  # raises what made it fail
        self.done[output.finish_reason] += 1
        assert sum(tokens for _, tokens in output.weight_versions) == len(output.token_ids) == len(output.logprobs)
        self.done["tokens"] += len(output.token_ids)
        if each.state is None:
            return
        wanted = each.case.outputs[each.state][each.index]
        length = len(output.token_ids)
        if output.finish_reason != "abort":
            assert output.finish_reason == wanted.finish_reason
            assert length == len(wanted.token_ids)
            assert len(output.prompt_logprobs) == len(wanted.prompt_logprobs)
        assert output.token_ids == wanted.token_ids[:length], f"{output} is not {wanted}"
        pairs = [*zip(output.logprobs, wanted.logprobs, strict=False)]
        pairs += zip(output.prompt_logprobs, wanted.prompt_logprobs, strict=False)
        assert all(abs(got - expected) <= self.tolerance for got, expected in pairs), f"{output} is not {wanted}"
