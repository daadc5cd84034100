"""Teachers: frozen models whose log-probabilities of the policy's tokens are the stream ``teacher``.

A teacher is a model in this process or a server. It is chosen by the prompt's stage of origin, else by its domain.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np
import torch
from numpy.typing import NDArray

from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.console.progress import say
from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.contracts.engine import Engine, SamplingParams
from arcforge_core.contracts.environment import Environment
from arcforge_core.episodes.rollout import FailedTask, stage_of, take_task
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError
from arcforge_core.generation.engine import build_engine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.algorithms.opd import teacher_of as counted_as
from arcforge_rl.configs.entries import entry_of
from arcforge_rl.configs.teachers import TeacherConfig
from arcforge_rl.trainer.prefixes import by_ids
from arcforge_rl.trainer.streams import check_tokenizer
from arcforge_rl.trainer.tokens import pack, read, write_stream

DEFAULT = "default"
STREAM = "teacher"
PROBE = "The quick brown fox jumps over 13 lazy dogs; (a + b) * c == 42?\n"
"""Text whose log-probs tell a teacher's weights from others."""
CACHED_TOKENS = 4_000_000
CHECKED = 128
"""Prompts whose teachers are looked up before work starts."""
PAUSE = 1.0
"""Seconds before the second attempt at a server, doubled for each further one."""
KEY = "ARCFORGE_ENGINE_KEY"
"""Environment variable with the key of served teachers, as of engines."""
Array = NDArray[np.float32]


class Teacher(Protocol):
    """Scores tokens with one frozen model."""

    def add(self, traces: Sequence[Trace], max_tokens: int, temperature: float) -> None:
        """Writes the stream ``teacher`` into traces.

        Raises:
            ArcforgeError: it does not answer, or its weights have changed.
        """


class LocalTeacher:
    """A model in this process, on the policy's device.

    Args:
        model: scores.
        top_k: likeliest tokens in each place whose ids and log-probs are the streams ``teacher_ids`` and
            ``teacher_others``, [len, K].
        shares: whether branches share tokens that they begin with, if the model can.
    """

    def __init__(self, model: CausalLM, top_k: int = 0, shares: bool = False) -> None:
        self.model, self.top_k = model.requires_grad_(False), top_k
        self.alike = by_ids if shares and model.shares_prefixes else None

    @torch.no_grad()
    def add(self, traces: Sequence[Trace], max_tokens: int, temperature: float) -> None:
        """Computes; see `Teacher`."""
        for micro in pack(traces, max_tokens, split=True, alike=self.alike):
            found = read(self.model, micro.to(self.model.device), temperature, self.top_k)
            write_stream(micro, STREAM, found.logprobs_S)
            if self.top_k:
                write_stream(micro, "teacher_ids", found.other_SK)
                write_stream(micro, "teacher_others", found.others_SK)


class ServedTeacher:
    """A model on a server. Log-probs are kept by content as long as the server's weights have the same version.

    Args:
        name: of the teacher.
        engine: reaches the server.
        probe: tokens that are scored after every request; other log-probs than at first are those of other weights.
        attempts, max_change: see `TeacherConfig`.
        sleep: waits between two attempts.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        probe: Sequence[int],
        attempts: int,
        max_change: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name, self.engine, self.probe, self.attempts, self.sleep = name, engine, list(probe), attempts, sleep
        self.max_change = max_change
        self._cache: OrderedDict[bytes, Array] = OrderedDict()
        self._cached = 0
        self._first: tuple[int, Array] | None = None

    def add(self, traces: Sequence[Trace], max_tokens: int, temperature: float) -> None:
        """Asks the server for the prompts that it has not scored yet; see `Teacher`."""
        branches = [branch for trace in traces for branch in trace.branches if branch.num_sampled]
        wanted = {key_of(branch): branch for branch in branches}
        found = {key: self._cache[key] for key in wanted if key in self._cache}
        missing = [key for key in wanted if key not in found]
        scored = self._ask([wanted[key].ids.tolist() for key in missing])
        found |= dict(zip(missing, scored, strict=True))
        for branch in branches:
            logprobs_T = torch.zeros(len(branch.ids))
            logprobs_T[1:] = torch.from_numpy(found[key_of(branch)])
            branch.streams[STREAM] = logprobs_T * torch.from_numpy(branch.sampled.copy())
        self._keep(found)

    def _ask(self, prompts: Sequence[Sequence[int]]) -> list[Array]:
        """Returns the log-probs of each prompt's tokens from the second on, float32.

        Raises:
            ArcforgeError: the server did not answer, `attempts` times, or its weights have changed.
        """
        params = SamplingParams(max_new_tokens=1, temperature=0.0, prompt_logprobs=True)
        for attempt in range(self.attempts):
            try:
                answers = self.engine.generate(prompts, params) if prompts else []
                # last: a server that restarted between two of the prompts has its new weights by now
                outputs = [*answers, *self.engine.generate([self.probe], params)]
            except (ConfigError, CheckpointError) as error:
                raise ArcforgeError(f"teachers.{self.name}: {error}") from error
            except ArcforgeError as error:
                if attempt + 1 == self.attempts:
                    raise ArcforgeError(f"teachers.{self.name}: {error}") from error
                say(f"teachers.{self.name}: {error}; asked again")
                self.sleep(PAUSE * 2**attempt)
                continue
            break
        versions = {output.weight_version for output in outputs}
        scored = [np.asarray(output.prompt_logprobs, np.float32) for output in outputs]
        for logprobs, prompt in zip(scored, [*prompts, self.probe], strict=True):
            if len(logprobs) != len(prompt) - 1 or not np.isfinite(logprobs).all():
                raise ArcforgeError(f"teachers.{self.name}: the server gives no finite log-prob for every token")
        self._check_same(versions, scored[-1])
        return scored[:-1]

    def _check_same(self, versions: set[int], probed: Array) -> None:
        if self._first is None:
            self._first = (min(versions), probed)
        version, first = self._first
        moved = float(np.abs(probed - first).max())
        if versions != {version} or moved > self.max_change:
            raise ArcforgeError(
                f"teachers.{self.name}: its weights changed during the run: version {version}, then "
                f"{', '.join(map(str, sorted(versions)))}; log-probs of a fixed text moved by {moved:.2g} nats"
            )

    def _keep(self, found: Mapping[bytes, Array]) -> None:
        for key, logprobs in found.items():
            if key in self._cache:
                self._cache.move_to_end(key)
                continue
            self._cache[key] = logprobs
            self._cached += len(logprobs)
        while self._cached > CACHED_TOKENS:
            _, oldest = self._cache.popitem(last=False)
            self._cached -= len(oldest)


def key_of(branch: Branch) -> bytes:
    """Returns the content of a branch."""
    return np.asarray(branch.ids, np.int64).tobytes()


class Teachers:
    """The teachers of a run.

    Args:
        by_name: teachers by stage or domain; ``default`` for all others.

    Attributes:
        models: those in this process.

    Raises:
        ConfigError: there is no teacher.
    """

    def __init__(self, by_name: Mapping[str, Teacher]) -> None:
        if not by_name:
            raise ConfigError("teachers", {}, "algorithm=opd needs one: +teachers.default=CHECKPOINT")
        self.by_name = dict(by_name)
        local = [teacher for teacher in by_name.values() if isinstance(teacher, LocalTeacher)]
        self.models = [teacher.model for teacher in dict.fromkeys(local)]

    def add(self, traces: Sequence[Trace], max_tokens: int, temperature: float) -> None:
        """Writes the stream ``teacher`` into all traces.

        Raises:
            ConfigError: a trace has no teacher.
            ArcforgeError: see `Teacher.add`.
        """
        by_teacher: dict[int, tuple[Teacher, list[Trace]]] = {}
        for trace in traces:
            teacher = self.of(trace)
            by_teacher.setdefault(id(teacher), (teacher, []))[1].append(trace)
        for teacher, of_teacher in by_teacher.values():
            teacher.add(of_teacher, max_tokens, temperature)

    def of(self, trace: Trace) -> Teacher:
        """Returns the teacher of a trace: that of its stage, of its domain, or the default.

        Raises:
            ConfigError: there is none.
        """
        for name in (trace.stage, trace.teacher, DEFAULT):
            if name in self.by_name:
                return self.by_name[name]
        wanted = trace.stage or trace.teacher
        accepted = f"none for {wanted!r}: add +teachers.{wanted} or +teachers.{DEFAULT}"
        raise ConfigError("teachers", sorted(self.by_name), accepted)


def check_prompts(names: Collection[str], environment: Environment) -> None:
    """Checks that the first prompts of an environment have teachers; a mixture's parts come within them.

    Args:
        names: of the teachers.
        environment: of the training tasks.

    Raises:
        ConfigError: a prompt has none.
    """
    if not names or DEFAULT in names:
        return
    for task in (take_task(environment, number) for number in range(environment.num_tasks or CHECKED)[:CHECKED]):
        if isinstance(task, FailedTask):
            continue
        stage, domain = stage_of(environment, task), environment.domain_of(task)
        if stage not in names and domain not in names:
            accepted = f"none for prompts of {stage or domain}: add +teachers.{stage or domain} or +teachers.{DEFAULT}"
            raise ConfigError("teachers", sorted(names), accepted)


def teacher_figures(traces: Sequence[Trace], reward_weight: float) -> dict[str, float]:
    """Returns tokens, share of the weights, loss and gap of each teacher, and writes the advantages that were used.

    The gap is the mean of the policy's log-prob minus the teacher's: an estimate of the KL divergence that is left. The
    loss is that of the step's beginning, where every ratio is 1.

    Args:
        traces: with the streams ``teacher``, ``current``, ``weights``, ``advantages`` and ``factor``.
        reward_weight: of the reward's advantage.
    """
    sums: dict[str, list[float]] = {}
    for trace in traces:
        of_teacher = sums.setdefault(counted_as(trace), [0.0] * 4)
        for branch in trace.branches:
            stream, index_T = branch.streams, branch.index_T
            gap_T = (stream["current"] - stream["teacher"]).double()
            stream["advantages"] = (reward_weight * stream["advantages"] - gap_T).float()
            weight_T = stream["weights"].double()
            loss_T = -weight_T * stream["factor"] * stream["advantages"]
            parts = (torch.ones_like(gap_T), weight_T, loss_T, gap_T)
            for place, part_T in enumerate(parts):
                of_teacher[place] += float(part_T[index_T].sum())
    found: dict[str, float] = {}
    whole = sum(weight for _, weight, _, _ in sums.values())
    for name, (tokens, weight, loss, gap) in sorted(sums.items()):
        values = {"tokens": tokens, "weight": weight / whole, "loss": loss, "gap": gap / tokens}
        found |= {f"teacher_{name}_{figure}": value for figure, value in values.items()}
    return found


def build_teachers(
    configs: Mapping[str, TeacherConfig],
    tokenizer: Tokenizer,
    policy: CausalLM,
    temperature: float,
    load: Callable[[Path], CausalLM],
    top_k: int = 0,
    shares: bool = False,
) -> Teachers:
    """Builds the teachers of a run.

    Args:
        configs: by stage or domain.
        tokenizer: of the policy.
        policy: says which ids and lengths there are.
        temperature: of the rollouts.
        load: loads a checkpoint on the policy's device.
        top_k, shares: see `LocalTeacher`.

    Raises:
        ConfigError: there is no teacher, or one has another tokenizer or vocabulary, or cannot score these tokens.
        CheckpointError: a checkpoint cannot be read.
    """
    found: dict[str, Teacher] = {}
    loaded: dict[Path, LocalTeacher] = {}
    if top_k > policy.config.vocab_size:
        raise ConfigError("algorithm.top_k", top_k, f"must be at most the vocabulary's {policy.config.vocab_size:,}")
    for name, config in configs.items():
        if config.init is not None:
            folder = find_checkpoint(config.init)
            check_tokenizer(f"teachers.{name}", folder, tokenizer)
            if folder not in loaded:
                loaded[folder] = LocalTeacher(load(folder), top_k, shares)
                check_vocabulary(f"teachers.{name}", loaded[folder].model, policy)
            found[name] = loaded[folder]
        elif top_k:
            accepted = f"must be a checkpoint (init) with algorithm.top_k={top_k}: servers score the given tokens alone"
            raise ConfigError(f"teachers.{name}.engine", config.engine, accepted)
        else:
            found[name] = _served(name, config, tokenizer, policy, temperature)
    return Teachers(found)


def _served(
    name: str, config: TeacherConfig, tokenizer: Tokenizer, policy: CausalLM, temperature: float
) -> ServedTeacher:
    if temperature != 1.0:
        accepted = f"must be 1.0: teachers.{name} is a server, which gives log-probs of prompts at temperature 1"
        raise ConfigError("rollout.temperature", temperature, accepted)
    schema = registry().get("engine", str(config.engine)).load_schema()
    options: Any = entry_of(schema, config.options, f"teachers.{name}.options", f"engine={config.engine}")
    if not hasattr(options, "url"):
        raise ConfigError(f"teachers.{name}.engine", config.engine, "must be one of a server, or name init instead")
    try:
        engine: Any = build_engine(options, policy)
    except ConfigError as error:
        field = f"teachers.{name}.options.{error.field.removeprefix('engine.')}"
        raise ConfigError(field, error.value, error.accepted) from error
    check_served_tokenizer(f"teachers.{name}", options, tokenizer)
    teacher = ServedTeacher(name, engine, tokenizer.encode(PROBE), config.attempts, config.max_change)
    teacher.add([], 0, temperature)  # its weights are those of now
    return teacher


def check_vocabulary(field: str, model: CausalLM, policy: CausalLM) -> None:
    """Checks that a model has as many token ids as the policy; rows that no token uses take probability, too.

    Raises:
        ConfigError: it has not.
    """
    if model.config.vocab_size != policy.config.vocab_size:
        accepted = f"must have the policy's vocabulary of {policy.config.vocab_size:,}"
        raise ConfigError(field, f"{model.config.vocab_size:,} ids", accepted)


def check_served_tokenizer(field: str, options: Any, tokenizer: Tokenizer) -> None:
    """Checks that a server encodes texts as the policy's tokenizer does, by its ``/tokenize``.

    Raises:
        ConfigError: it does not, or does not say.
    """
    key = os.environ.get(KEY)
    body = {"prompt": PROBE, "add_special_tokens": False}
    body |= {"model": options.served_name} if getattr(options, "served_name", None) else {}
    try:
        answer = httpx.post(
            f"{options.url.rstrip('/')}/tokenize",
            json=body,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=30.0,
        )
        answer.raise_for_status()
        ids = [int(token) for token in answer.json()["tokens"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        accepted = f"does not say how it encodes texts (POST /tokenize: {error})"
        raise ConfigError(field, options.url, accepted) from error
    if ids != tokenizer.encode(PROBE):
        raise ConfigError(
            field, options.url, "has another tokenizer than the policy: log-probabilities cannot be compared"
        )
