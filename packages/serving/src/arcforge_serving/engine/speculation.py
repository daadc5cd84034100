"""How many tokens are drafted: as many as pay, by the measured times and yields of this engine's steps.

The accepted length of a step with k drafts is ``1 + a_1 + ... + a_k``, where a_j is the share of checked drafts whose
j-th token and all before it were accepted. Drafting k tokens pays where accepted length over seconds is largest. Both
are running estimates of the latest steps, seconds by how many sequences a step has, in powers of two.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Sequence

from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.kvcache.store import keeps_state

AUTO_DRAFTS = 3
"""Drafts if no number is configured: GLM-5 is served with as many, and few-token kernels take that many rows."""
KEPT = 24
"""Steps that an estimate of seconds is the median of."""
TRIED = 4
"""Steps of one kind until they are compared with others."""
FIRST_PAUSE, LONGEST_PAUSE = 128, 4096
"""Steps after which another number of drafts is tried again; twice as many whenever that had lost."""
MEMORY = 0.98
"""What a step's accepted drafts still count one step later."""


def drafts_of(config: PagedEngineConfig, model: CausalLM) -> tuple[int, str]:
    """Returns how many tokens are drafted at most, and ``on`` or why none are.

    Raises:
        ConfigError: drafts are asked for by number and the model cannot draft.
    """
    reason = ""
    if model.mtp is None:
        reason = "the model has no MTP module (model.mtp.depths=0)"
    elif keeps_state(model.cache_spec()):
        reason = "the model keeps a state per sequence, which cannot forget tokens that are not accepted"
    if config.draft_tokens == 0:
        return 0, "off: engine.draft_tokens=0"
    if reason and config.draft_tokens:
        raise ConfigError("engine.draft_tokens", config.draft_tokens, f"must be 0: {reason}")
    return (0, f"off: {reason}") if reason else (config.draft_tokens or AUTO_DRAFTS, "on")


class Speculation:
    """Decides and counts.

    Args:
        most: drafts of a sequence at most.
        adaptive: whether fewer are drafted where they do not pay.

    Attributes:
        checked: how often each number of drafts was verified.
        accepted: by place, how many drafts were accepted.
    """

    def __init__(self, most: int, adaptive: bool) -> None:
        self.most, self.adaptive = most, adaptive
        self.checked: Counter[int] = Counter()
        self.accepted = [0] * most
        self._shares = [[0.0, 0.0] for _ in range(most)]  # accepted and checked, the latest weigh most
        self._sizes: dict[int, _Size] = {}

    # ---- counting ----------------------------------------------------------------------------------------------------

    def count(self, drafts: int, accepted: int) -> None:
        """Counts a sequence whose drafts were checked."""
        self.checked[drafts] += 1
        for place in range(drafts):
            self.accepted[place] += place < accepted
            share = self._shares[place]
            share[0] = MEMORY * share[0] + (place < accepted)
            share[1] = MEMORY * share[1] + 1

    def length(self, drafts: int) -> float:
        """Returns the estimated tokens per step and sequence with this many drafts."""
        return 1 + sum(accepted / checked if checked else 1.0 for accepted, checked in self._shares[:drafts])

    # ---- deciding ----------------------------------------------------------------------------------------------------

    def choose(self, sequences: int) -> int:
        """Returns how many tokens to draft for each of `sequences`."""
        if not self.adaptive or not sequences or not self.most:
            return self.most
        return self._size(sequences).choose([self.length(k) for k in range(self.most + 1)])

    def took(self, sequences: int, drafts: int, seconds: float) -> None:
        """Records the time of a step that only verified and made `drafts` drafts for each of its sequences."""
        if self.adaptive:
            self._size(sequences).seconds[drafts].append(seconds)

    def _size(self, sequences: int) -> _Size:
        kind = (sequences - 1).bit_length()
        if kind not in self._sizes:
            self._sizes[kind] = _Size(self.most, at_once=sequences == 1)
        return self._sizes[kind]


class _Size:
    """Times of steps with about the same number of sequences.

    A single sequence, the case that drafts are made for, tries them immediately. With more sequences the weights are
    read for several rows anyway and drafts seldom pay; trying them would cost a short batch more than it can gain, so
    `FIRST_PAUSE` steps come first.
    """

    def __init__(self, most: int, at_once: bool) -> None:
        self.most = most
        self.seconds: list[deque[float]] = [deque(maxlen=KEPT) for _ in range(most + 1)]
        self.trying: list[tuple[int, int]] = []  # (drafts, steps left), the next one last
        self.pause = self.until = FIRST_PAUSE
        self.best = 0
        if at_once:
            self._try(*([0, 1, most] if most > 1 else [0, most]))

    def choose(self, lengths: Sequence[float]) -> int:
        """Returns how many drafts the next step makes; `lengths` are tokens of a step by drafts."""
        if self.trying:
            drafts, left = self.trying.pop()
            if left > 1 and not self._hopeless(drafts, lengths):
                self.trying.append((drafts, left - 1))
            return drafts
        rates = {k: lengths[k] / statistics.median(s) for k, s in enumerate(self.seconds) if s}
        best = max(rates, key=lambda k: rates[k], default=0)
        if best != self.best:
            self.best, self.pause = best, FIRST_PAUSE
            self.until = self.pause
            self._try(*(k for k in (best - 1, best + 1) if 0 < k <= self.most and not self.seconds[k]))
        self.until -= 1
        if self.until <= 0:
            self.pause = self.until = min(2 * self.pause, LONGEST_PAUSE)
            self._try(*(k for k in {0, max(best - 1, 0), min(best + 1, self.most)} - {best}))
        return best

    def _try(self, *drafts: int) -> None:
        for each in drafts:
            self.seconds[each].clear()
        self.trying = [(each, TRIED + 1) for each in drafts][::-1]  # the first one finds other drafts than it makes

    def _hopeless(self, drafts: int, lengths: Sequence[float]) -> bool:
        """Says whether a few steps were so slow that no more are needed."""
        mine, plain = self.seconds[drafts], self.seconds[0]
        if drafts == 0 or len(mine) < 2 or not plain:
            return False
        return lengths[drafts] / min(mine) < 0.8 / statistics.median(plain)
