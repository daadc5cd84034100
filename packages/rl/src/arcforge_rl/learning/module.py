"""The Lightning module of reinforcement learning: it knows streams and losses, and no algorithm.

A Lightning batch is a step: sample, score, train, hand the weights to the engine. Of several processes each samples and
learns from its part; see `arcforge_rl.processes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from arcforge_core.contracts.algorithm import Algorithm, PolicyTokens, Trace
from arcforge_core.contracts.engine import Engine
from arcforge_core.errors import ArcforgeError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.train.module import Progress, TrainingModule
from arcforge_core.train.step import NonFiniteError, clip_gradients
from arcforge_rl.configs_learning import RlConfig
from arcforge_rl.learning.figures import rollout_figures
from arcforge_rl.learning.policy import Critic, Read, read
from arcforge_rl.learning.routing import RoutingReplay
from arcforge_rl.learning.streams import Teachers, add_logprobs, add_stream
from arcforge_rl.learning.sync import hand_over
from arcforge_rl.learning.tokens import PolicyMicro, pack, write_stream
from arcforge_rl.processes import add_gradients, gather, part, share_stream
from arcforge_rl.rollouts.collect import Collected
from arcforge_rl.rollouts.sampler import Sampler

STREAMS = ("reference", "teacher", "values", "returns")
"""What losses may ask for besides the fields of `PolicyTokens`."""


GAPS = {"fp32": 1e-4, "bf16": 0.05}
"""Largest mean differences of log-probabilities between trainer and engine, where nothing else is said."""


@dataclass
class StepRecord:
    """What a step showed, for the callbacks.

    Attributes:
        collected: its rollouts, with the streams of those that were learnt from.
        figures: by name.
    """

    collected: Collected
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class Sums:
    """What the micro-batches of an update come to.

    Attributes:
        sums: losses, and means times tokens.
        count: tokens.
        widest: largest log-prob gap.
    """

    sums: dict[str, float] = field(default_factory=dict)
    count: int = 0
    widest: float = 0.0

    def add(self, count: int, losses: Mapping[str, float], means: Mapping[str, float], widest: float) -> None:
        """Adds those of a micro-batch."""
        self.merge(Sums({**losses, **{name: value * count for name, value in means.items()}}, count, widest))

    def merge(self, other: Sums) -> None:
        """Adds those of others."""
        self.count, self.widest = self.count + other.count, max(self.widest, other.widest)
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    @property
    def figures(self) -> dict[str, float]:
        """Returns losses, and means over tokens."""
        return {n: value if n.endswith("loss") else value / self.count for n, value in self.sums.items()}


class PolicyModule(TrainingModule):
    """Trains a policy on what it samples.

    Args:
        model: the policy.
        config: the run.
        algorithm: scores traces and makes losses.
        sampler: rolls out with the engine.
        reference: the policy as it began; needed where the algorithm asks for it.
        teachers: likewise.
    """

    def __init__(
        self,
        model: CausalLM,
        config: RlConfig,
        algorithm: Algorithm,
        sampler: Sampler,
        reference: CausalLM | None = None,
        teachers: Teachers | None = None,
    ) -> None:
        super().__init__(model, config, Progress())
        self.config, self.algorithm, self.sampler = config, algorithm, sampler
        self.teachers = teachers
        self._reference = [reference]  # in a list: it is no part of what is trained, moved or saved
        self.critic: Critic | None = None
        self._critic_optimizer: torch.optim.Optimizer | None = None
        if "values" in algorithm.needs:
            self.critic = Critic(model.config.hidden_size)
            self._critic_optimizer = torch.optim.AdamW(self.critic.parameters(), config.critic.lr, weight_decay=0.0)
        self._routing = RoutingReplay(model) if config.trainer.replay_routing else None
        self._mine: set[str] = set()  # rollouts that this process learns from
        self.record: StepRecord | None = None

    @property
    def engine(self) -> Engine:
        """What samples."""
        return self.sampler.engine

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Takes one step.

        Raises:
            NonFiniteError: names the step and the tensor; the weights are those of the update before.
            ArcforgeError: trainer and engine disagree by more than `trainer.max_gap`, or a reward is not finite.
        """
        collected = self.sampler.collect(self.progress.step)
        figures, clock = rollout_figures(collected), collected.clock
        if collected.kept:
            with clock("training"):
                self._prepare(collected.traces)
                parts = parts_of(collected, self.config.trainer.updates)
                weights = [weight_of(traces) for traces in parts]
                updates = [self._update(of, sum(weights) / weight) for of, weight in zip(parts, weights, strict=True)]
                share_stream(collected.traces, "factor")
            figures |= {name: sum(of[name] for of in updates) / len(updates) for name in updates[0]}
        self.progress.step += 1
        with clock("handover"):
            noise, seed = self.config.rollout.engine_noise, noise_seed(self.config, self.progress.step)
            hand_over(self.model, self.engine, noise, seed)
        self.progress.tokens += sum(trace.num_sampled for trace in collected.traces)
        self.share_clock()
        self.record = StepRecord(collected, figures | self.sampler.curriculum.figures | clock.figures)

    def _prepare(self, traces: Sequence[Trace]) -> None:
        """Computes the streams that the algorithm asks for, and has it score."""
        needs, most, mine = self.algorithm.needs, self.config.trainer.micro_batch_tokens, part(traces)
        self._mine = {trace.rollout_id for trace in mine}
        if self._routing is not None:
            self._routing.forget()
        if "reference" in needs:
            assert self._reference[0] is not None
            add_logprobs(mine, "reference", self._reference[0], most)
        if "teacher" in needs:
            assert self.teachers is not None
            self.teachers.add(mine, most)
        if self.critic is not None:
            critic = self.critic
            add_stream(mine, "values", most, self.model.device, lambda micro: critic(read(self.model, micro).hidden_SD))
        if self.config.trainer.updates > 1:
            add_stream(mine, "old", most, self.model.device, self._old)
        for name in ("reference", "teacher", "values", "old"):
            share_stream(traces, name)
        self.algorithm.score(traces)

    def _old(self, micro: PolicyMicro) -> Tensor:
        if self._routing is None:
            return read(self.model, micro).logprobs_S
        with self._routing.recording(micro):
            return read(self.model, micro).logprobs_S

    def _update(self, traces: Sequence[Trace], scale: float) -> dict[str, float]:
        """Takes one optimizer step on some of a step's traces; returns its figures.

        Args:
            traces: theirs is a part of the step's weight.
            scale: makes it the whole.
        """
        optimizer = self.scheduled_optimizer()
        total = Sums()
        try:
            mine = [trace for trace in traces if trace.rollout_id in self._mine]
            for found in gather(self._accumulate_all(mine, scale)):
                if isinstance(found, str):
                    raise NonFiniteError(found)
                total.merge(found)
            add_gradients(self.named_parameters())
            norm = clip_gradients(self.model.named_parameters(), self.config.trainer.clip_norm)
        except NonFiniteError as error:
            raise NonFiniteError(f"step {self.progress.step + 1}: {error}") from error
        figures = total.figures
        self._check_gap(figures["logprob_gap"])
        for one in (optimizer, self._critic_optimizer):
            if one is not None:
                one.step()
                one.zero_grad()
        return {**figures, "logprob_gap_max": total.widest, "grad_norm": norm, "lr": optimizer.param_groups[0]["lr"]}

    def _accumulate_all(self, traces: Sequence[Trace], scale: float) -> Sums | str:
        """Adds the gradient of this process's traces; returns its figures, or what is not finite."""
        found = Sums()
        strategy = self.trainer.strategy
        alone = strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) else nullcontext()
        try:
            with alone:  # processes have different numbers of micro-batches: gradients are added at the end
                for micro in pack(traces, self.config.trainer.micro_batch_tokens):
                    found.add(len(micro.target_S), *self._accumulate(micro.to(self.model.device), scale))
        except NonFiniteError as error:
            return str(error)
        return found

    def _accumulate(self, micro: PolicyMicro, scale: float) -> tuple[dict[str, float], dict[str, float], float]:
        """Adds a micro-batch's gradient; returns its losses, its means over tokens, and its largest log-prob gap."""
        with self._routing.replaying(micro) if self._routing is not None else nullcontext():
            found = read(self.model, micro)
        tokens = policy_tokens(micro, found, self.critic)
        loss = self.algorithm.loss(tokens)
        parts = {name: scale * value for name, value in loss.parts.items()}
        for name, value in parts.items():
            if not torch.isfinite(value):
                raise NonFiniteError(f"the loss {name} is {float(value.detach())}")
        self.manual_backward(sum(parts.values(), torch.zeros((), device=found.logprobs_S.device)))
        write_stream(micro, "factor", loss.factor_T)
        gap_S = (tokens.old_T - tokens.rollout_T).abs()
        means = {name: float(value) for name, value in loss.metrics.items()}
        means |= {"entropy": float(found.entropy_S.mean()), "logprob_gap": float(gap_S.mean())}
        return {f"{name}_loss": float(value.detach()) for name, value in parts.items()}, means, float(gap_S.max())

    def _check_gap(self, gap: float) -> None:
        limit = gap_limit(self.config)
        if limit is not None and not gap <= limit:
            raise ArcforgeError(
                f"step {self.progress.step + 1}: trainer and engine disagree by {gap:.2g} nats a token on average; "
                f"trainer.max_gap is {limit:g}. They compute different models: check engine, weights and precision"
            )

    def extra_state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps besides: the curriculum, and the critic."""
        critic = None
        if self.critic is not None and self._critic_optimizer is not None:
            critic = {"head": self.critic.state_dict(), "optimizer": self._critic_optimizer.state_dict()}
        return {"curriculum": self.sampler.curriculum.state, "critic": critic}

    def restore_extra(self, state: Mapping[str, Any]) -> None:
        """Takes what `extra_state` returned; the engine gets the weights that were restored."""
        self.sampler.curriculum.state = state["curriculum"]
        if self.critic is not None and self._critic_optimizer is not None:
            self.critic.load_state_dict(state["critic"]["head"])
            self._critic_optimizer.load_state_dict(state["critic"]["optimizer"])


def policy_tokens(micro: PolicyMicro, found: Read, critic: Critic | None) -> PolicyTokens:
    """Returns what a loss sees. Without a stream ``old`` the policy is still what it was when the step began."""
    streams = micro.streams
    return PolicyTokens(
        logprobs_T=found.logprobs_S,
        old_T=streams.get("old", found.logprobs_S.detach()),
        rollout_T=micro.rollout_S,
        advantages_T=streams["advantages"],
        weights_T=streams["weights"],
        trace_T=micro.trace_S,
        streams={name: streams[name] for name in STREAMS if name in streams},
        values_T=critic(found.hidden_SD) if critic is not None else None,
    )


def parts_of(collected: Collected, updates: int) -> list[list[Trace]]:
    """Returns the traces of each update: whole groups, in turn. Where fewer are left, there are fewer updates."""
    parts = [[rollout.trace for group in collected.kept[n::updates] for rollout in group] for n in range(updates)]
    return [part for part in parts if part]


def noise_seed(config: RlConfig, step: int) -> str:
    """Returns the seed of the noise on the weights that the engine has from a step on."""
    return f"{config.seed}/{step}"


def weight_of(traces: Sequence[Trace]) -> float:
    """Returns the sum of the weights of all sampled tokens."""
    return sum(float(b.streams["weights"][b.index_T].sum()) for trace in traces for b in trace.branches)


def gap_limit(config: RlConfig) -> float | None:
    """Returns the largest mean log-prob gap that is taken."""
    if config.trainer.max_gap is not None or config.rollout.faulty:
        return config.trainer.max_gap
    quantised = getattr(config.engine, "weights", "none") != "none"
    return None if quantised else GAPS.get(config.trainer.precision, GAPS["bf16"])
