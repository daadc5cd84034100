"""The Lightning module of reinforcement learning, independent of the algorithm: streams and losses.

A Lightning batch is a step: take a batch of scored rollouts from the source, train, hand the weights over. With several
processes, each samples and trains on its part; see `arcforge_rl.processes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from arcforge_core.console.progress import say
from arcforge_core.contracts.algorithm import Algorithm, PolicyTokens, Trace
from arcforge_core.contracts.engine import Engine
from arcforge_core.errors import ArcforgeError, CheckpointError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.train.module import StepRecord, TrainingModule
from arcforge_core.train.processes import add_gradients, first, gather, part, place
from arcforge_core.train.step import NonFiniteError, clip_gradients
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.processes import share_stream
from arcforge_rl.rewards.hybrid import Hybrid
from arcforge_rl.rollouts.collect import Collected, why_all_failed
from arcforge_rl.rollouts.gaps import GapCurriculum
from arcforge_rl.rollouts.sampler import Sampler
from arcforge_rl.rollouts.source import Source
from arcforge_rl.rollouts.thinning import thin
from arcforge_rl.trainer.anchors import Anchors
from arcforge_rl.trainer.critic import Critic
from arcforge_rl.trainer.figures import explained_variance, hybrid_figures, rollout_figures
from arcforge_rl.trainer.prefixes import Alike, by_ids
from arcforge_rl.trainer.routing import RoutingReplay
from arcforge_rl.trainer.streams import add_logprobs, add_stream
from arcforge_rl.trainer.sums import Gaps, Sums
from arcforge_rl.trainer.teachers import Teachers, teacher_figures
from arcforge_rl.trainer.tokens import PolicyMicro, Read, pack, read, write_stream
from arcforge_rl.trainer.weight_sync import hand_over

STREAMS = ("reference", "teacher", "teacher_others", "values", "returns")
"""Streams available to losses besides the fields of `PolicyTokens`."""


GAPS = {"fp32": 1e-4, "bf16": 0.05}
"""Default limits of the mean log-probability difference between trainer and engine."""


class PolicyModule(TrainingModule):
    """Trains a policy on what it samples.

    Args:
        model: the policy.
        config: the run.
        algorithm: scores traces and makes losses.
        sampler: rolls out held-out tasks with the engine.
        source: gives the batches, and takes the weights.
        reference: the initial policy; required if the algorithm uses it.
        teachers: required if the algorithm uses them.
        critic: required if the algorithm uses the stream ``values``.
        anchors: expert-written replies whose likelihood every update raises, too.
    """

    def __init__(
        self,
        model: CausalLM,
        config: RlConfig,
        algorithm: Algorithm,
        sampler: Sampler,
        source: Source,
        reference: CausalLM | None = None,
        teachers: Teachers | None = None,
        critic: Critic | None = None,
        anchors: Anchors | None = None,
    ) -> None:
        super().__init__(model, config)
        self.config, self.algorithm, self.sampler, self.source = config, algorithm, sampler, source
        self.teachers = teachers
        self.reference = [reference]  # in a list, so that it is not trained, moved or saved as a submodule
        self.critic, self.anchors = critic, anchors
        replayed = config.trainer.replay_routing
        self._routing = None if replayed == "none" else RoutingReplay(model, of_engine=replayed == "engine")
        self._shares = by_ids if config.trainer.share_prefixes else None
        self._mine: set[str] = set()  # rollouts that this process learns from
        self.record: StepRecord[Collected] | None = None
        self._weight_version: int | None = None
        self._idle = 0
        self._moved = False  # whether an update of this step is done

    @property
    def weight_version(self) -> int:
        """Version of the policy's weights, recorded with their sampled tokens; the engine's version before a step."""
        if self._weight_version is None:
            self._weight_version = self.engine.weight_version
        return self._weight_version

    @property
    def engine(self) -> Engine:
        """The engine that samples."""
        return self.sampler.engine

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Takes one step.

        Raises:
            NonFiniteError: names the step and the tensor; the weights are those of the previous update.
            ArcforgeError: trainer and engine disagree by more than `trainer.max_gap`, a reward is not finite, every
                rollout failed since the run began or was resumed, or no token was trained in `monitor.idle_steps`
                steps.
        """
        version = self.weight_version
        collected = self.source.take(self.progress.step)
        thin(collected, self.config.rollout.thin_by, self.config.rollout.thin_share)
        figures, clock = rollout_figures(collected), collected.clock
        figures |= hybrid_figures(self.sampler.training, collected)
        if collected.kept:
            parts = parts_of(collected, self.config.trainer.updates, self.config.trainer.spread_groups)
            with clock("streams"):
                self._prepare(collected.traces, parts[0])
            with clock("training"):
                if self.critic is not None:
                    figures |= explained_variance(collected.traces)
                weights = [weight_of(traces) for traces in parts]
                updates = [self._update(of, sum(weights) / weight) for of, weight in zip(parts, weights, strict=True)]
                share_stream(collected.traces, "factor")
            figures |= means_of(updates)
            if self.teachers is not None:
                share_stream(collected.traces, "current")
                figures |= self._taught(collected.traces)
        self._check_idle(collected)
        self.progress.step += 1
        with clock("handover"):
            self._weight_version = version + 1
            pushed = self.source.publish(self.progress.step, lambda: self.sync_weights(self._weight_version))
        if pushed and self.source.resets_optimizer:
            self._reset_optimizers()
        self.progress.tokens += sum(trace.num_sampled for trace in collected.traces)
        self.share_clock()
        self.record = StepRecord(figures | self.sampler.curriculum.figures | clock.figures, collected)

    def begin(self, folder: Path, restored: Mapping[str, Any] | None) -> None:
        """Gives the engine the weights that the run begins or resumes with, and lets the source begin.

        Args:
            folder: of the run.
            restored: the `extra_state` of the checkpoint that the weights are of; None in a new run. The source and the
                curriculum continue from it before the first rollout.
        """
        if restored is not None:
            self.sampler.curriculum.state = restored["curriculum"]
            self.source.restore(restored.get("source", {}))
        # a server may have the weights of an earlier run, or later ones of this run
        if restored is not None or self.engine.weight_version:
            if isinstance(self.source, Sampler):
                self.sync_weights()
            else:  # staleness is counted in versions
                self.sync_weights(self.progress.step, reset=True)
        self._weight_version = None
        self.source.begin(self.progress.step, folder, self.catch_up)

    def _reset_optimizers(self) -> None:
        """Forgets momenta and counts of steps; learning rates stay."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.optimizer.state.clear()

    def sync_weights(self, version: int | None = None, reset: bool = False) -> None:
        """Gives the engine the weights of this step; with several processes all call it.

        Raises:
            CheckpointError: the engine refuses them.
        """
        refresh = getattr(self.engine, "refresh", None)
        if refresh is None or place()[1] == 1:
            hand_over(self.model, self.engine, version, reset)
            return
        refused: Exception | None = None  # a server that all processes ask: the first one gives
        if place()[0] == 0:
            try:
                hand_over(self.model, self.engine, version, reset)
            except ArcforgeError as error:
                refused = error
        said = gather(None if refused is None else str(refused))[0]
        if said is not None:
            raise refused or CheckpointError(said)
        if place()[0]:
            refresh()

    def pin(self) -> None:
        """Gives the engine of the evaluations, if it has one of its own, the weights of this step."""
        if self.sampler.evaluator is not None:
            hand_over(self.model, self.sampler.evaluator)

    def catch_up(self) -> None:
        """Gives the engine the weights of this step if its last ones are older: of an earlier step
        (`collection.push_every`), or those of a server that was restarted."""
        if self.engine.weight_version < self.weight_version:
            self.sync_weights(self.weight_version)

    def _prepare(self, traces: Sequence[Trace], first: Sequence[Trace]) -> None:
        """Computes the streams that the algorithm requires, and lets it score the traces.

        Args:
            traces: of the step.
            first: those of its first update, which computes the log-probs of the old policy itself.
        """
        needs, most, mine = self.algorithm.needs, self.config.trainer.micro_batch_tokens, part(traces)
        self._mine = {trace.rollout_id for trace in mine}
        if self._routing is not None:
            self._routing.forget()
        if "reference" in needs:
            assert self.reference[0] is not None
            add_logprobs(mine, "reference", self.reference[0], most, self._temperature, self._shares)
        if "teacher" in needs:
            assert self.teachers is not None
            self.teachers.add(mine, most, self._temperature)
        if self.critic is not None:
            add_stream(mine, "values", most, self.model.device, self._values, self._alike(first=True))
        self._moved = False
        old = getattr(self.algorithm, "uses_old", True) or self._routing is not None
        if self.config.trainer.updates > 1 and old:
            known = set() if self._records else {trace.rollout_id for trace in first}
            later = [trace for trace in mine if trace.rollout_id not in known]
            add_stream(later, "old", most, self.model.device, self._old, self._alike(first=True))
        for name in ("reference", "teacher", "values", "old"):
            share_stream(traces, name)
        if hasattr(self.algorithm, "step"):
            self.algorithm.step = self.progress.step
        self.algorithm.score(traces)

    @property
    def _records(self) -> bool:
        """Whether the first pass of a step records the experts of all tokens."""
        return self._routing is not None and not self._routing.of_engine

    def _alike(self, first: bool) -> Alike | None:
        """Returns what tokens must have in common to be shared, before the first update or in updates."""
        critic_shares = self.critic is None or self.critic.shares_prefixes
        if self._shares is None or not self.model.shares_prefixes or not critic_shares:
            return None
        replays = self._routing is not None and not (first and self._records)
        return self._routing.alike if self._routing is not None and replays else by_ids

    @property
    def _temperature(self) -> float:
        return self.config.rollout.temperature

    def _read(self, micro: PolicyMicro) -> Read:
        return read(self.model, micro, self._temperature, micro.streams.get("teacher_ids", 0))

    def _values(self, micro: PolicyMicro) -> Tensor:
        assert self.critic is not None
        value_S: Tensor = self.critic(micro, lambda: self._read_first(micro).hidden_SD)
        return value_S

    def _old(self, micro: PolicyMicro) -> Tensor:
        return self._read_first(micro).logprobs_S

    def _read_first(self, micro: PolicyMicro) -> Read:
        """Reads with the weights of the beginning of the step."""
        with self._routing.first(micro) if self._routing is not None else nullcontext():
            return self._read(micro)

    def _update(self, traces: Sequence[Trace], scale: float) -> dict[str, float]:
        """Takes one optimizer step on some of a step's traces; returns its figures.

        Args:
            traces: part of the step's traces.
            scale: factor that makes their weights sum to that of the step.
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
            norms = {"grad_norm": clip_gradients(self.model.named_parameters(), self.config.trainer.clip_norm)}
            if self.critic is not None:
                norms["critic_grad_norm"] = self.critic.clip(self.config.trainer.clip_norm)
        except NonFiniteError as error:
            raise NonFiniteError(f"step {self.progress.step + 1}: {error}") from error
        figures = total.figures
        self._check_gap(figures.get("logprob_gap", 0.0))
        optimizer.step()
        optimizer.zero_grad()
        self._moved = True
        if self.critic is not None:
            self.critic.step()
        return {**figures, **norms, "lr": optimizer.param_groups[0]["lr"]}

    def _accumulate_all(self, traces: Sequence[Trace], scale: float) -> Sums | str:
        """Adds the gradient of this process's traces; returns its figures, or an error if a value is not finite."""
        found = Sums()
        strategy = self.trainer.strategy
        alone = strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) else nullcontext()
        try:
            with alone:  # processes have different numbers of micro-batches: gradients are reduced at the end
                split = getattr(self.algorithm, "splits", False)
                for micro in pack(traces, self.config.trainer.micro_batch_tokens, split, self._alike(first=False)):
                    found.add(len(micro.target_S), *self._accumulate(micro.to(self.model.device), scale))
                    found.merge(Sums(read=micro.num_read, computed=micro.batch.num_tokens))
                if self.anchors is not None:
                    found.merge(Sums({"anchor_loss": self.anchors.accumulate(self.model, self.manual_backward)}))
        except NonFiniteError as error:
            return str(error)
        return found

    def _accumulate(self, micro: PolicyMicro, scale: float) -> tuple[dict[str, float], dict[str, float], Gaps]:
        """Adds a micro-batch's gradient; returns its losses, its means over tokens, and its log-prob gaps."""
        with self._routing.replaying(micro) if self._routing is not None else nullcontext():
            found = self._read(micro)
            tokens = policy_tokens(micro, found, self.critic)
            loss = self.algorithm.loss(tokens)
            parts = {name: scale * value for name, value in loss.parts.items()}
            for name, value in parts.items():
                if not torch.isfinite(value):
                    raise NonFiniteError(f"the loss {name} is {float(value.detach())}")
            # inside the block: with activation checkpointing, layers run again in the backward pass
            self.manual_backward(sum(parts.values(), torch.zeros((), device=found.logprobs_S.device)))
        write_stream(micro, "factor", loss.factor_T)
        if self.teachers is not None:
            write_stream(micro, "current", found.logprobs_S.detach())
        gap_S = (tokens.old_T - tokens.rollout_T).abs()
        means = {name: float(value) for name, value in loss.metrics.items()}
        means["entropy"] = float(found.entropy_S.mean())
        kept = getattr(self.config.engine, "prefix_at_update", "drop") == "keep"  # a rollout's prefixes, over updates
        begun_S = micro.oldest_S if kept else micro.begun_S
        gaps = Gaps.of(gap_S, micro.version_S, begun_S, self.weight_version)
        if self._moved and "old" not in micro.streams:  # not the weights that sampled
            gaps = Gaps(mixed_count=len(gap_S))
        return {f"{name}_loss": float(value.detach()) for name, value in parts.items()}, means, gaps

    def _taught(self, traces: Sequence[Trace]) -> dict[str, float]:
        """Returns the figures of each teacher; the curriculum learns the gaps if it divides prompts by them."""
        figures = teacher_figures(traces, getattr(self.config.algorithm, "reward_weight", 0.0))
        if isinstance(self.sampler.curriculum, GapCurriculum):
            ends = [name for name in figures if name.endswith("_gap")]
            gaps = {name.removeprefix("teacher_").removesuffix("_gap"): figures[name] for name in ends}
            self.sampler.curriculum.learn_gaps(gaps)
        return figures

    def _check_gap(self, gap: float) -> None:
        limit = gap_limit(self.config)
        if limit is not None and not gap <= limit:
            raise ArcforgeError(
                f"step {self.progress.step + 1}: trainer and engine disagree by {gap:.2g} nats a token on average; "
                f"trainer.max_gap is {limit:g}. They compute different models: check engine, weights and precision"
            )

    def _check_idle(self, collected: Collected) -> None:
        self._idle = 0 if any(trace.num_sampled for trace in collected.traces) else self._idle + 1
        why, step, most = why_all_failed(collected.everything), self.progress.step + 1, self.config.monitor.idle_steps
        if not 0 < most <= self._idle:
            if why and first():
                say(f"step {step}: nothing is learnt: {why}")
            return
        if not why:
            left_out = ", ".join(f"{count} {name}" for name, count in collected.counts.items() if count)
            why = f"left out in this step: {left_out}. Check the task's difficulty, the rewards and rollout.drop_equal"
        raise ArcforgeError(f"step {step}: no token was trained in {self._idle} steps (monitor.idle_steps); {why}")

    def extra_state(self) -> dict[str, Any]:
        """Returns additional state for checkpoints: of the curriculum, the critic, the rewards and the anchors."""
        critic = None if self.critic is None else self.critic.state()
        rewards = getattr(self.sampler.training, "reward_state", {})
        state = {"curriculum": self.sampler.curriculum.state, "critic": critic, "source": dict(self.source.state)}
        cursor = 0 if self.anchors is None else self.anchors.cursor
        return {**state, "rewards": rewards, "anchors": cursor}

    def restore_extra(self, state: Mapping[str, Any]) -> None:
        """Restores the rest of `extra_state`, after `begin`."""
        if isinstance(self.sampler.training, Hybrid):
            self.sampler.training.reward_state = state.get("rewards", {})
        if self.anchors is not None:
            self.anchors.cursor = state.get("anchors", 0)
        if self.critic is not None:
            self.critic.restore(state["critic"])


def policy_tokens(micro: PolicyMicro, found: Read, critic: Critic | None) -> PolicyTokens:
    """Returns the tokens for the loss. Without a stream ``old`` the policy has not changed since the step began."""
    streams = micro.streams
    return PolicyTokens(
        logprobs_T=found.logprobs_S,
        old_T=streams.get("old", found.logprobs_S.detach()),
        rollout_T=micro.rollout_S,
        advantages_T=streams["advantages"],
        weights_T=streams["weights"],
        trace_T=micro.trace_S,
        streams={name: streams[name] for name in STREAMS if name in streams},
        values_T=critic(micro, lambda: found.hidden_SD) if critic is not None else None,
        others_TK=found.others_SK,
    )


def means_of(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each figure over the updates that have it."""
    values: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.items():
            values.setdefault(name, []).append(value)
    return {name: sum(of) / len(of) for name, of in values.items()}


def parts_of(collected: Collected, updates: int, spread: bool = False) -> list[list[Trace]]:
    """Returns the traces of each update: whole groups, round-robin. Fewer groups than updates give fewer updates.

    Args:
        collected: rollouts of a step.
        updates: number of parts.
        spread: gives each part rollouts of every group instead, round-robin through all of them.
    """
    units = [[rollout] for group in collected.kept for rollout in group] if spread else collected.kept
    parts = [[rollout for unit in units[n::updates] for rollout in unit] for n in range(updates)]
    return [[trace for rollout in part for trace in rollout.traces] for part in parts if part]


def weight_of(traces: Sequence[Trace]) -> float:
    """Returns the sum of the weights of all sampled tokens."""
    return sum(float(b.streams["weights"][b.index_T].sum()) for trace in traces for b in trace.branches)


def gap_limit(config: RlConfig) -> float | None:
    """Returns the largest accepted mean log-prob gap; None is no limit."""
    if config.trainer.max_gap is not None:
        return config.trainer.max_gap
    quantised = getattr(config.engine, "weights", "none") != "none"
    exact = {config.trainer.precision, config.sampling_precision} == {"fp32"}
    return None if quantised else GAPS["fp32" if exact else "bf16"]
