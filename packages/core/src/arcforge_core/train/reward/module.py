"""The Lightning module of a reward model: pairs to scores, loss and update. P: pairs; S: scored conversations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, optim

from arcforge_core.checkpoint.scalar import HEAD
from arcforge_core.config.reward import RewardTrainConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.model.scalar import ScalarModel
from arcforge_core.plugins.loader import registry
from arcforge_core.train.module import StepRecord, TrainingModule
from arcforge_core.train.reward.loss import Measured, length_bias, measure, preference_loss
from arcforge_core.train.reward.pairs import EncodedPair
from arcforge_core.train.step import NonFiniteError, clip_gradients


class RewardModule(TrainingModule):
    """Trains scores on preferences; one Lightning batch has the places of a step's pairs.

    Args:
        scalar: the model with its head.
        config: the run.
        training: the pairs that are trained on.
    """

    def __init__(self, scalar: ScalarModel, config: RewardTrainConfig, training: Sequence[EncodedPair]) -> None:
        super().__init__(scalar.model, config)
        self.scalar, self.config, self.training_pairs = scalar, config, training
        self.bias = length_bias([pair.longer for pair in training]) if config.objective.length_control else 0.0
        self.record: StepRecord[None] | None = None

    def configure_optimizers(self) -> optim.Optimizer:
        """Builds the optimizer of model and head."""
        factory = registry().get("optimizer", self.settings.optimizer.name).load()
        optimizer: optim.Optimizer = factory(self.settings.optimizer, collect_roles(self.scalar))
        return optimizer

    def tensor_files(self) -> dict[str, dict[str, Tensor]]:
        """Returns the head, for checkpoints."""
        return {HEAD: {name: tensor.detach() for name, tensor in self.scalar.head.state_dict().items()}}

    def extra_state(self) -> dict[str, Any]:
        """Returns the head, for resumption."""
        return {"head": self.scalar.head.state_dict()}

    def restore_extra(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `extra_state`."""
        self.scalar.head.load_state_dict(state["head"])

    def training_step(self, places: Sequence[int], batch_idx: int) -> None:
        """Takes one step.

        Raises:
            NonFiniteError: a score, the loss or a gradient is not finite; the weights are unchanged.
        """
        pairs = [self.training_pairs[int(place)] for place in places]
        optimizer = self.scheduled_optimizer()
        try:
            loss, right = self._backward(pairs)
            self.share_gradients()
            grad_norm = clip_gradients(self.scalar.named_parameters(), self.config.trainer.clip_norm)
        except NonFiniteError as error:
            raise NonFiniteError(f"step {self.progress.step + 1}: {error}") from error
        optimizer.step()
        optimizer.zero_grad()
        self.progress.step += 1
        tokens, _ = self.sum_over_processes([float(sum(pair.num_tokens for pair in pairs))])
        self.progress.tokens += int(tokens[0])
        figures = {"lr": optimizer.param_groups[0]["lr"], "loss": loss, "accuracy": right, "grad_norm": grad_norm}
        self.record = StepRecord(figures, None)
        self.share_clock()

    def _backward(self, pairs: Sequence[EncodedPair]) -> tuple[float, float]:
        """Adds the gradient of the loss of all pairs together; returns the loss and the accuracy.

        Where the pairs need several passes and the loss is no mean over pairs, the first passes only score: the loss's
        gradient with respect to the scores then weights those of the passes that differentiate.
        """
        micros, objective = pack(pairs, self.config.trainer.micro_batch_tokens), self.config.objective
        cached_P2: Tensor | None = None
        if objective.length_control and len(micros) > 1:
            with torch.no_grad():
                scored_P2 = torch.cat([self._score(micro) for micro in micros])
            leaf_P2 = scored_P2.requires_grad_()
            self._loss(leaf_P2, pairs).backward()
            assert leaf_P2.grad is not None
            cached_P2 = leaf_P2.grad
        total, right, begun = 0.0, 0.0, 0
        for micro in micros:
            scored_P2 = self._score(micro)
            if not torch.isfinite(scored_P2).all():
                raise NonFiniteError("a score is not finite")
            share = len(micro) / len(pairs)
            own = self._loss(scored_P2, micro)
            if not torch.isfinite(own):
                raise NonFiniteError(f"the loss is {float(own.detach())}")
            part = own * share
            if cached_P2 is not None:
                part = (scored_P2 * cached_P2[begun : begun + len(micro)]).sum()
            self.manual_backward(part)
            total += float(own.detach()) * share
            right += float((scored_P2[:, 0] > scored_P2[:, 1]).float().mean()) * share
            begun += len(micro)
        return total, right

    def _loss(self, scored_P2: Tensor, pairs: Sequence[EncodedPair]) -> Tensor:
        margin_P, longer_P = (
            torch.tensor(values, dtype=torch.float32, device=scored_P2.device)
            for values in ([pair.margin for pair in pairs], [float(pair.longer) for pair in pairs])
        )
        chosen_P, rejected_P = scored_P2.unbind(1)
        return preference_loss(chosen_P, rejected_P, margin_P, longer_P, self.config.objective, self.bias)

    def _score(self, pairs: Sequence[EncodedPair]) -> Tensor:
        """Returns the scores of the chosen and the rejected replies, fp32 [P, 2]."""
        texts = [ids for pair in pairs for ids in (pair.chosen, pair.rejected)]
        return scores(self.scalar, texts).view(-1, 2)

    @torch.no_grad()
    def evaluate(self, pairs: Sequence[EncodedPair]) -> Measured:
        """Measures the model on pairs; its mode is restored."""
        training = self.scalar.training
        self.scalar.eval()
        try:
            found = [self._score(micro) for micro in pack(pairs, self.config.trainer.micro_batch_tokens)]
        finally:
            self.scalar.train(training)
        chosen, rejected = torch.cat(found).float().cpu().unbind(1)
        return measure(chosen.tolist(), rejected.tolist(), [pair.longer for pair in pairs])


def scores(scalar: ScalarModel, texts: Sequence[Sequence[int]]) -> Tensor:
    """Returns the numbers after the last tokens of some texts, in one pass, fp32 [S]."""
    lengths, device = [len(ids) for ids in texts], scalar.model.device
    tokens_T = torch.tensor([token for ids in texts for token in ids], device=device)
    last_S = torch.tensor(lengths, device=device).cumsum(0) - 1
    found_S: Tensor = scalar(tokens_T, SequenceBatch.build(lengths, device=device), last_S)
    return found_S


def pack(pairs: Iterable[EncodedPair], most: int) -> list[list[EncodedPair]]:
    """Returns the pairs in order, in passes of at most `most` tokens; a longer pair has a pass of its own."""
    micros: list[list[EncodedPair]] = []
    room = 0
    for pair in pairs:
        if not micros or pair.num_tokens > room:
            micros.append([])
            room = most
        micros[-1].append(pair)
        room -= pair.num_tokens
    return micros


class PairLoader:
    """Yields the places of the pairs of this process's steps without end: all of them in an order of each round.

    Args:
        count: of the pairs that are trained on.
        batch: pairs of a step, of all processes together.
        seed: of the orders.
        step: the first one.
        rank, world: this process and their number; world divides the batch.
    """

    def __init__(self, count: int, batch: int, seed: int, step: int = 0, rank: int = 0, world: int = 1) -> None:
        self.count, self.batch, self.seed, self.step, self.rank, self.world = count, batch, seed, step, rank, world

    def __iter__(self) -> Iterator[list[int]]:
        place, order, count = self.step * self.batch, list[int](), self.count
        known = -1
        while True:
            found = []
            for one in range(place + self.rank, place + self.batch, self.world):
                if one // count != known:
                    known = one // count
                    order = list(range(count))
                    random.Random(f"{self.seed}/{known}").shuffle(order)
                found.append(order[one % count])
            place += self.batch
            yield found
