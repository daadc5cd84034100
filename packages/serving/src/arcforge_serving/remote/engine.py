"""Base of the HTTP engines: checks, concurrent requests, outputs, and weight updates through a folder."""

from __future__ import annotations

import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from arcforge_core.checkpoint.hf.folder import write_hf
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams, TopLogprobs
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.files.atomic import replacing
from arcforge_core.files.find import CONFIG
from arcforge_core.generation.engine import params_per_prompt
from arcforge_core.generation.weights import next_version, stage_weights
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import RemoteEngineConfig
from arcforge_serving.engine.errors import RemoteError
from arcforge_serving.remote.client import KEY, Client

NEVER = -9999.0
"""What both servers write for a log-prob that is no number."""
Span = Mapping[str, Any]
"""``version``, ``start`` and ``end`` over the generated tokens, in both servers' words."""


@dataclass(frozen=True)
class Answer:
    """What a server said to one sequence.

    Attributes:
        ids, logprobs: of the generated tokens.
        top: the likeliest of each position.
        stopped: whether a token ended it; else its length did, or an abort.
        aborted: whether somebody ended it.
        label: version of the weights at its end, in the server's words.
        spans: of versions; empty where the server knows of one alone.
        prompt, prompt_top: log-probs of the prompt's tokens from the second on.
        cached: tokens of the prompt that were found.
    """

    ids: list[int]
    logprobs: list[float]
    top: list[TopLogprobs]
    stopped: bool
    aborted: bool
    label: str
    spans: Sequence[Span] = ()
    prompt: list[float] = field(default_factory=list)
    prompt_top: list[TopLogprobs] = field(default_factory=list)
    cached: int = 0


class RemoteEngine(ABC):
    """Generates on a server; implements `arcforge_core.contracts.engine.Engine`.

    A sequence is a request of its own, so that seeds, log-probs and errors are. When one fails, the others are aborted.

    Args:
        config: where the server is.
        model: what it serves: says which ids and lengths there are, and how weights are written. Never changed.

    Raises:
        ConfigError: the server cannot be asked.
    """

    bounds: ClassVar[Mapping[str, tuple[float, float]]]
    """Fields of `SamplingParams` and the range that the server takes."""

    def __init__(self, config: RemoteEngineConfig, model: CausalLM) -> None:
        self.config, self.model = config, model
        self._client = Client(config, os.environ.get(KEY, ""))
        self._folder: Path | None = None
        self.weight_version = number_of(self._label())

    @abstractmethod
    def _label(self) -> str:
        """Returns the version of the weights that the server says it has."""

    @abstractmethod
    def _ask(self, prompt: Sequence[int], params: SamplingParams, request: str) -> Answer:
        """Generates one sequence; ``request`` is the name under which it can be aborted."""

    @abstractmethod
    def _abort(self, requests: Sequence[str]) -> None:
        """Ends requests."""

    @abstractmethod
    def _install(self, folder: Path, version: int) -> None:
        """Has the server read new weights, and name them by their version."""

    # ---- the contract ------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt, in order; see the contract.

        Raises:
            ConfigError: a request that cannot be served, by this kind of server or at all.
            CheckpointError: the logits are not finite.
            RemoteError: the server failed.
        """
        per_prompt = params_per_prompt(self.model.config, prompts, params)
        for each in per_prompt:
            self.check(each)
        jobs = [
            (prompt, replace(each, n=1, seed=each.seed + index))
            for prompt, each in zip(prompts, per_prompt, strict=True)
            for index in range(each.n)
        ]
        if not jobs:
            return []
        names = [uuid.uuid4().hex for _ in jobs]
        with ThreadPoolExecutor(min(self.config.concurrency, len(jobs))) as pool:
            futures = [pool.submit(self._one, *job, name) for job, name in zip(jobs, names, strict=True)]
            try:
                return [future.result() for future in futures]
            except BaseException:
                running = [name for future, name in zip(futures, names, strict=True) if not future.cancel()]
                with suppress(ConfigError, RemoteError):  # the server that failed may not be there to be told
                    self._abort(running)
                raise

    def update_weights(
        self, state: Mapping[str, Tensor], *, version: int | None = None, checksum: str | None = None
    ) -> None:
        """Writes a state dict below ``engine.weights_dir`` and has the server read it; see the contract.

        Raises:
            ConfigError: see the contract; there is no such folder; the architecture has no name among others.
            CheckpointError: see the contract. One that says that the server failed leaves open which weights it has.
        """
        version = next_version(self.weight_version, version)
        root = self.config.weights_dir
        if root is None or not Path(root).is_dir():
            raise ConfigError(
                "engine.weights_dir", root, "must be a folder that the server reads too, to hand it weights"
            )
        staged = stage_weights(self.model, state, f"weight update {version}", checksum)
        folder = Path(root).resolve() / f"version-{version}"
        with replacing(folder, marker=CONFIG) as partial:
            write_hf(partial, self.model.config, self.model.attention, staged)
        self._install(folder, version)
        self.weight_version = version
        if self._folder is not None and self._folder != folder:
            shutil.rmtree(self._folder)  # the one before: the server has read the new one
        self._folder = folder

    def close(self) -> None:
        """Closes the connections to the server."""
        self._client.close()

    # ---- one sequence ------------------------------------------------------------------------------------------------

    def check(self, params: SamplingParams) -> None:
        """Refuses what the server cannot do, by name.

        Raises:
            ConfigError: such a field.
        """
        kind = self.config.name
        if params.matcher is not None:
            raise ConfigError("matcher", "given", f"engine={kind} follows no grammar of this process")
        for name, (low, high) in self.bounds.items():
            value = getattr(params, name)
            if not low <= value <= high:
                raise ConfigError(name, value, f"engine={kind} takes {low:g} to {high:g}")
        for token, bias in params.logit_bias.items():
            if abs(bias) > 100:
                raise ConfigError(f"logit_bias[{token}]", bias, f"engine={kind} takes -100 to 100")

    def _one(self, prompt: Sequence[int], params: SamplingParams, name: str) -> GenerationOutput:
        try:
            answer = self._ask(prompt, params, name)
        except ConfigError:  # which is a ValueError too
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RemoteError(f"{self.config.url} answers with another shape: {error!r}") from error
        count = len(answer.ids)
        if not count or len(answer.logprobs) != count:
            raise CheckpointError(f"{self.config.url} gave {count} tokens with {len(answer.logprobs)} log-probs")
        if not all(value > NEVER for value in [*answer.logprobs, *answer.prompt]):
            raise CheckpointError(f"the logits of {self.config.url} are not finite for this sequence")
        reason = "stop" if answer.stopped else "abort" if answer.aborted else "length"
        if params.should_stop is not None:
            stop = next((n for n in range(1, count + 1) if params.should_stop(answer.ids[:n])), None)
            count, reason = (count, reason) if stop is None else (stop, "stop")
        versions = spans_of(answer, count)
        return GenerationOutput(
            answer.ids[:count], answer.logprobs[:count], reason, versions[-1][0], versions,
            [top[: params.top_logprobs] for top in answer.top[:count]] if params.top_logprobs else [],
            answer.prompt if params.prompt_logprobs else [],
            [top[: params.top_logprobs] for top in answer.prompt_top]
            if params.prompt_logprobs and params.top_logprobs else [],
            answer.cached,
        )  # fmt: skip


def number_of(label: str) -> int:
    """Returns the version that a label names; servers begin with one in words, which counts as 0."""
    return int(label) if label.isdecimal() else 0


def spans_of(answer: Answer, count: int) -> list[tuple[int, int]]:
    """Returns (version, tokens) spans of the first `count` tokens."""
    if not answer.spans:
        return [(number_of(answer.label), count)]
    found = [(number_of(str(s["version"])), min(s["end"], count) - min(s["start"], count)) for s in answer.spans]
    return [(version, tokens) for version, tokens in found if tokens]
