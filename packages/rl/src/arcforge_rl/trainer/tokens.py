"""Whole traces as micro-batches of ragged tokens, and the log-probabilities of their sampled tokens under a model.

T: tokens of a micro-batch; S: sampled tokens; N: branches; R: traces; D: hidden; V: vocabulary; K: tokens of a
vocabulary that are looked at besides the sampled one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.generation.sampling import log_probs
from arcforge_core.model.causal_lm import CausalLM
from arcforge_rl.trainer.prefixes import Alike, common, laid_out

CHUNK = 1 << 24
"""Maximum logits in memory at a time."""
KEYS = 4
"""Maximum keys of a micro-batch with shared tokens, in multiples of its maximum tokens: each branch has its own copy of
the keys of shared tokens. Without sharing a micro-batch has as many keys as tokens."""


@dataclass(frozen=True)
class PolicyMicro:
    """Whole traces as one ragged batch, or part of the branches of one.

    Attributes:
        tokens_T: int64, every branch up to the token before its last sampled one; shared tokens once.
        batch: its segments, one per branch unless branches share tokens.
        rows: int64, of each branch the rows of `tokens_T` that it reads, on the host.
        row_S: int64, the row of `tokens_T` whose hidden state predicts each sampled token.
        target_S: int64, the sampled tokens.
        rollout_S: fp32, log-probabilities recorded while sampling.
        version_S: int64, weight versions that sampled the tokens.
        begun_S: int64, weight versions that sampled the first token of each token's reply.
        trace_S: int64, indices into `traces`.
        streams: [S], or [S, K], by name; fp32, token ids int64.
        traces: the traces in order.
        segments: the branches in order.
    """

    tokens_T: Tensor
    batch: SequenceBatch
    rows: Sequence[Tensor]
    row_S: Tensor
    target_S: Tensor
    rollout_S: Tensor
    version_S: Tensor
    begun_S: Tensor
    trace_S: Tensor
    streams: Mapping[str, Tensor]
    traces: Sequence[Trace]
    segments: Sequence[Branch]

    def to(self, device: torch.device | str) -> PolicyMicro:
        """Returns a copy with its tensors on a device."""
        moved = {name: getattr(self, name).to(device) for name in ("tokens_T", "row_S", "target_S")}
        moved |= {name: getattr(self, name).to(device) for name in ("rollout_S", "version_S", "begun_S", "trace_S")}
        streams = {name: stream_S.to(device) for name, stream_S in self.streams.items()}
        return replace(self, batch=self.batch.to(device), streams=streams, **moved)

    @property
    def oldest_S(self) -> Tensor:
        """Oldest weight version that sampled a token of each token's trace, int64 [S]."""
        return torch.tensor([trace.oldest_version for trace in self.traces], device=self.trace_S.device)[self.trace_S]

    def branches(self) -> list[Branch]:
        """Returns the branches with sampled tokens, in the order of their tokens."""
        return [*self.segments]

    @property
    def num_read(self) -> int:
        """Tokens of all branches; more than `tokens_T` has where branches share some."""
        return sum(map(len, self.rows))


def pack(
    traces: Sequence[Trace], max_tokens: int, split: bool = False, alike: Alike | None = None
) -> list[PolicyMicro]:
    """Returns micro-batches of at most `max_tokens` tokens; a longer trace gets its own.

    With `split` one of several branches, such as the contexts of a long conversation, gets several of its own, none of
    them longer than `max_tokens` or one branch. Branches are never cut.

    Args:
        traces: the traces.
        max_tokens: of a micro-batch; tokens that its branches share count once.
        split: whether branches of a trace may be in several micro-batches.
        alike: says which tokens branches may share (`arcforge_rl.trainer.prefixes`); None shares none.
    """
    parts: list[Part] = []
    room = Room(max_tokens, alike)
    for trace in traces:
        branches = [branch for branch in trace.branches if branch.num_sampled]
        for piece in room.pieces(branches) if split and not room.holds(branches) else [branches]:
            if not parts or not room.takes(piece):
                parts.append([])
                room = Room(max_tokens, alike)
            room.add(piece)
            parts[-1].append((trace, piece))
    return [micro for part in parts for micro in _micros(part, max_tokens, split, alike)]


Part = list[tuple[Trace, Sequence[Branch]]]
"""Traces of a micro-batch with the branches that it reads."""


class Room:
    """The room that is left in a micro-batch. Of shared tokens only those are seen that neighbours share."""

    def __init__(self, max_tokens: int, alike: Alike | None) -> None:
        self.max_tokens, self.alike = max_tokens, alike
        self.tokens = self.keys = 0
        self.last: Branch | None = None

    def size(self, branches: Sequence[Branch], last: Branch | None = None) -> tuple[int, int]:
        """Returns tokens to compute and keys of branches after another branch."""
        tokens = keys = 0
        for branch in branches:
            length, seen = _length(branch), 0
            if self.alike is not None and last is not None:
                seen = common(self.alike, (last, _length(last)), (branch, length))
            tokens, keys, last = tokens + length - seen, keys + length, branch
        return tokens, keys

    def holds(self, branches: Sequence[Branch]) -> bool:
        """Returns whether branches fit into an empty micro-batch."""
        return self._fits(*self.size(branches))

    def takes(self, branches: Sequence[Branch]) -> bool:
        """Returns whether branches fit in here."""
        tokens, keys = self.size(branches, self.last)
        return self._fits(self.tokens + tokens, self.keys + keys)

    def add(self, branches: Sequence[Branch]) -> None:
        """Takes the room of branches."""
        tokens, keys = self.size(branches, self.last)
        self.tokens, self.keys = self.tokens + tokens, self.keys + keys
        self.last = branches[-1] if branches else self.last

    def pieces(self, branches: Sequence[Branch]) -> list[list[Branch]]:
        """Returns branches in order, in lists that each fit into an empty micro-batch or have one branch."""
        found: list[list[Branch]] = []
        room = self
        for branch in branches:
            if not found or not room.takes([branch]):
                found.append([])
                room = Room(self.max_tokens, self.alike)
            room.add([branch])
            found[-1].append(branch)
        return found

    def _fits(self, tokens: int, keys: int) -> bool:
        return tokens <= self.max_tokens and keys <= (1 if self.alike is None else KEYS) * self.max_tokens


@dataclass(frozen=True)
class Read:
    """Output of a model for the sampled tokens of a micro-batch, fp32.

    Attributes:
        logprobs_S: natural-log probabilities at the temperature of the rollouts.
        entropy_S: entropy of the distribution of each token, detached.
        hidden_SD: hidden states that predict the tokens.
        other_SK: other tokens in the place of each sampled one, int64; K is 0 if none were asked for.
        others_SK: their log-probabilities.
    """

    logprobs_S: Tensor
    entropy_S: Tensor
    hidden_SD: Tensor
    other_SK: Tensor
    others_SK: Tensor


def read(model: CausalLM, micro: PolicyMicro, temperature: float, others: Tensor | int = 0) -> Read:
    """Runs a model on a micro-batch. Logits of more than one chunk are recomputed for the gradient, never S x V.

    Args:
        model: the policy, or another one that is compared with it.
        micro: the tokens.
        temperature: divides the logits.
        others: tokens whose log-probabilities are returned besides those of the sampled ones, int64 [S, K]; or K: the
            model's K likeliest ones.
    """
    hidden_SD = model.hidden(micro.tokens_T, micro.batch).hidden_TD[micro.row_S]
    rows = max(1, CHUNK // model.config.vocab_size)
    parts = []
    for begin in range(0, max(1, len(hidden_SD)), rows):
        taken = slice(begin, begin + rows)
        asked = others if isinstance(others, int) else others[taken]
        given = (model, hidden_SD[taken], micro.target_S[taken], temperature, asked)
        if torch.is_grad_enabled() and len(hidden_SD) > rows:
            parts.append(checkpoint(_score, *given, use_reentrant=False))
        else:
            parts.append(_score(*given))
    logprobs, entropies, ids, of_others = (torch.cat(each) for each in zip(*parts, strict=True))
    return Read(logprobs, entropies, hidden_SD, ids, of_others)


def _score(
    model: CausalLM, hidden_SD: Tensor, target_S: Tensor, temperature: float, others: Tensor | int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logprobs_SV = log_probs(model.logits(hidden_SD), [temperature])
    with torch.no_grad():
        entropy_S = -logprobs_SV.exp().mul_(logprobs_SV).sum(-1)
    other_SK = logprobs_SV.topk(others).indices if isinstance(others, int) else others
    return logprobs_SV.gather(1, target_S[:, None]).squeeze(1), entropy_S, other_SK, logprobs_SV.gather(1, other_SK)


def write_stream(micro: PolicyMicro, name: str, value_S: Tensor) -> None:
    """Writes values of the sampled tokens of a micro-batch, [S] or [S, K], into its branches: fp32, or token ids."""
    branches = micro.branches()
    value_S = (value_S.float() if value_S.is_floating_point() else value_S).cpu()
    for branch, part_S in zip(branches, value_S.split([branch.num_sampled for branch in branches]), strict=True):
        whole = part_S.new_zeros(len(branch.ids), *part_S.shape[1:])
        branch.streams[name] = whole.index_copy_(0, branch.index_T, part_S)


def begun_with(index_S: Tensor, version_S: Tensor) -> Tensor:
    """Returns the version of the first token of each token's reply, int64 [S].

    A reply is a run of sampled tokens, so two replies without a token between them count as one.

    Args:
        index_S: positions of the sampled tokens of a branch.
        version_S: weight versions that sampled them.
    """
    first_S = torch.ones_like(index_S, dtype=torch.bool)
    first_S[1:] = index_S[1:] != index_S[:-1] + 1
    return version_S[first_S][first_S.cumsum(0) - 1]


def _length(branch: Branch) -> int:
    """Returns the number of input tokens needed to predict the branch's last sampled token."""
    return int(branch.index_T[-1]) if branch.num_sampled else 0


def _micros(part: Part, max_tokens: int, split: bool, alike: Alike | None) -> list[PolicyMicro]:
    """Returns a micro-batch of the part, or of its halves where it has more tokens than neighbours let expect."""
    micro = _micro(part, alike)
    if micro.batch.num_tokens <= max_tokens or (len(part) == 1 and (not split or len(part[0][1]) == 1)):
        return [micro]
    if len(part) == 1:
        trace, branches = part[0]
        halves = [[(trace, some)] for some in (branches[: len(branches) // 2], branches[len(branches) // 2 :])]
    else:
        halves = [part[: len(part) // 2], part[len(part) // 2 :]]
    return [micro for half in halves for micro in _micros(half, max_tokens, split, alike)]


def _micro(part: Part, alike: Alike | None) -> PolicyMicro:
    rows, targets, rollout, versions, begun, owners = [], [], [], [], [], []
    streams: dict[str, list[Tensor]] = {}
    segments = [branch for _, branches in part for branch in branches]
    layout = laid_out([(branch, _length(branch)) for branch in segments], alike)
    of_branch = iter(layout.rows)
    for number, (_, branches) in enumerate(part):
        for branch in branches:
            index_S = branch.index_T
            rows.append(next(of_branch)[index_S - 1])
            targets.append(torch.tensor(branch.ids)[index_S])
            rollout.append(torch.tensor(branch.logprobs, dtype=torch.float32)[index_S])
            versions.append(torch.tensor(branch.versions)[index_S])
            begun.append(begun_with(index_S, versions[-1]))
            owners.append(torch.full_like(index_S, number))
            for name, stream_T in branch.streams.items():
                streams.setdefault(name, []).append(stream_T[index_S])
    return PolicyMicro(
        layout.tokens_T,
        layout.batch,
        layout.rows,
        torch.cat(rows),
        torch.cat(targets),
        torch.cat(rollout),
        torch.cat(versions),
        torch.cat(begun),
        torch.cat(owners),
        {name: torch.cat(values) for name, values in streams.items()},
        [trace for trace, _ in part],
        segments,
    )
