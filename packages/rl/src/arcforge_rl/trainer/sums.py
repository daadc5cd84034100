"""Sums over the micro-batches and processes of an update. S: sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Gaps:
    """Absolute differences of log-probs between trainer and engine, in nats, as sums over tokens.

    Tokens whose whole prefix the current weights computed measure the engine's error; those sampled by older weights
    include drift. Tokens of the current weights after a hand-over in the middle of a reply are in neither: the engine
    computed them on cache entries of older weights.

    Attributes:
        present: sum over tokens that the current weights computed alone.
        present_count: number of these tokens.
        widest: largest gap of these tokens.
        stale: sum over tokens of older weights.
        stale_count: number of these tokens.
        mixed_count: number of the others.
    """

    present: float = 0.0
    present_count: int = 0
    widest: float = 0.0
    stale: float = 0.0
    stale_count: int = 0
    mixed_count: int = 0

    @classmethod
    def of(cls, gap_S: Tensor, version_S: Tensor, begun_S: Tensor, version: int) -> Gaps:
        """Returns the gaps of a micro-batch.

        Args:
            gap_S: absolute differences.
            version_S: see `PolicyMicro`.
            begun_S: versions of the oldest weights that may have computed a part of each token's prefix.
            version: of the current weights.
        """
        new_S = gap_S[(version_S == version) & (begun_S == version)]
        old_S = gap_S[version_S != version]
        found = cls(present_count=len(new_S), stale_count=len(old_S), mixed_count=len(gap_S) - len(new_S) - len(old_S))
        if len(new_S):
            found.present, found.widest = float(new_S.mean()) * len(new_S), float(new_S.max())
        if len(old_S):
            found.stale = float(old_S.mean()) * len(old_S)
        return found

    def merge(self, other: Gaps) -> None:
        """Adds those of another micro-batch or process."""
        self.present, self.present_count = self.present + other.present, self.present_count + other.present_count
        self.stale, self.stale_count = self.stale + other.stale, self.stale_count + other.stale_count
        self.mixed_count += other.mixed_count
        self.widest = max(self.widest, other.widest)

    @property
    def figures(self) -> dict[str, float]:
        """Returns the mean and the largest gap, and with stale tokens their share and mean gap, the drift."""
        found: dict[str, float] = {}
        if self.present_count:
            found = {"logprob_gap": self.present / self.present_count, "logprob_gap_max": self.widest}
        if self.stale_count:
            share = self.stale_count / (self.present_count + self.stale_count + self.mixed_count)
            found |= {"stale": share, "logprob_drift": self.stale / self.stale_count}
        return found


@dataclass
class Sums:
    """Sums over the micro-batches of an update.

    Attributes:
        sums: losses, and means times tokens.
        count: tokens.
        gaps: log-prob gaps.
        read: tokens of the branches up to their last sampled ones.
        computed: tokens that the model computed for them: fewer where branches share some.
    """

    sums: dict[str, float] = field(default_factory=dict)
    count: int = 0
    gaps: Gaps = field(default_factory=Gaps)
    read: int = 0
    computed: int = 0

    def add(self, count: int, losses: Mapping[str, float], means: Mapping[str, float], gaps: Gaps) -> None:
        """Adds the sums of a micro-batch."""
        self.merge(Sums({**losses, **{name: value * count for name, value in means.items()}}, count, gaps))

    def merge(self, other: Sums) -> None:
        """Adds those of another micro-batch or process."""
        self.count += other.count
        self.read, self.computed = self.read + other.read, self.computed + other.computed
        self.gaps.merge(other.gaps)
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    @property
    def figures(self) -> dict[str, float]:
        """Returns losses, means over tokens, the gaps, and the share of the tokens that were not computed again."""
        means = {n: value if n.endswith("loss") else value / self.count for n, value in self.sums.items()}
        shared = {"shared_tokens": 1.0 - self.computed / self.read} if self.computed < self.read else {}
        return means | self.gaps.figures | shared
