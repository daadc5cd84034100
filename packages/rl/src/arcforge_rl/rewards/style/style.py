"""``reward = "style"``: nearness to texts that people wrote. N: passages; F: features; G: groups of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from arcforge_core.contracts.environment import Episode, Task
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.rewards import StyleConfig
from arcforge_rl.objectives.text import words
from arcforge_rl.rewards.style.discriminator import told_apart
from arcforge_rl.rewards.style.features import COUNTED, GROUPS, Array, all_features, features
from arcforge_rl.rewards.style.human import FEWEST, LENGTHS, passages, python_texts, texts_of
from arcforge_rl.rewards.style.plain import plain
from arcforge_rl.rewards.style.sense import Sense

FARTHEST = 6.0
"""Standard deviations that count of one feature."""
LEAST_SPREAD = 0.25
"""Standard deviation of a feature at least; of one that is counted per 100 words, that of half an occurrence."""
NEAR = 0.9
"""Share of people's passages whose distance earns full marks."""


@dataclass(frozen=True)
class Reference:
    """People's passages of one length.

    Attributes:
        x_NF: their features, float64 [N, F].
        mean_F, spread_F: of each feature, float64 [F].
        usual_G: mean |z| of each group of features within which `NEAR` of them are, float64 [G].
        near: distance within which `NEAR` of them are.
    """

    x_NF: Array
    mean_F: Array
    spread_F: Array
    usual_G: Array
    near: float

    @classmethod
    def of(cls, length: int, texts: Sequence[str]) -> Reference:
        """Measures passages of about `length` words."""
        x_NF = all_features(texts)
        least_F = np.where(COUNTED, 50.0 / length, LEAST_SPREAD)
        mean_F, spread_F = x_NF.mean(0), np.maximum(x_NF.std(0), least_F)
        usual_G = np.maximum(np.quantile(by_group((x_NF - mean_F) / spread_F), NEAR, axis=0), 1.0)
        made = cls(x_NF, mean_F, spread_F, usual_G, 1.0)
        return replace(made, near=float(np.quantile(made.distances(x_NF), NEAR)))

    def distances(self, x_NF: Array) -> Array:
        """Returns how far texts are from the mean style, float64 [N].

        The mean |z| of each group of features is divided by its usual value; the distance is the norm of order 4 of the
        groups: the strangest one decides, and it does not fall by another one that is normal.
        """
        share_NG = by_group((x_NF - self.mean_F) / self.spread_F) / self.usual_G
        found: Array = (share_NG**4).mean(1) ** 0.25
        return found


def by_group(z_NF: Array) -> Array:
    """Returns the mean |z| of each group of features, float64 [N, G]."""
    z_NF = np.minimum(np.abs(z_NF), FARTHEST)
    ends = np.cumsum([0, *GROUPS.values()])
    return np.stack([z_NF[:, begin:end].mean(1) for begin, end in itertools.pairwise(ends)], axis=1)


@functools.cache
def references_of(files: tuple[str, ...]) -> tuple[dict[int, Reference], Sense]:
    """Returns people's passages by their length, and what sense their texts have.

    Raises:
        ConfigError, DataError: see `texts_of`; or there are too few.
    """
    texts = texts_of(files, "options.files")
    found = passages(texts)
    if not found:
        accepted = f"gives fewer than {FEWEST} passages of {LENGTHS[0]} words: name more text, or none for Python's own"
        raise ConfigError("options.files", list(files), accepted)
    references = {length: Reference.of(length, parts) for length, parts in found.items()}
    return references, Sense(texts, python_texts() if files else ())


class Style:
    """1 for a reply within the style of people's texts of its length, less the farther it is; 0 for too few words.

    Beyond the distance ``near`` of 90% of people's passages the value is ``near / distance``, without an end. It is
    multiplied by the sense that the text has (`Sense`), as shuffled words have the style of the text that they are of.

    Raises:
        ConfigError, DataError: the files give too few passages, or cannot be read.
    """

    def __init__(self, config: StyleConfig) -> None:
        self.config = config
        self.references, self.sense = references_of(tuple(config.files))
        self._seen: list[tuple[int, Array]] = []
        self._distances: list[float] = []

    async def measure(self, task: Task, episode: Episode) -> float:
        """Measures the last reply."""
        text = episode.reply.text
        seen = plain(text)
        count = len(words(seen))
        if count < self.config.least:
            return 0.0
        length = self.length_of(count)
        reference, x_F = self.references[length], features(text)
        distance = float(reference.distances(x_F[None])[0])
        self._seen.append((length, x_F))
        self._distances.append(distance)
        return self.sense.of(seen, length) * (min(1.0, reference.near / distance) if distance else 1.0)

    def length_of(self, count: int) -> int:
        """Returns the length of the passages that a text of some words is compared with: the nearest in ratio."""
        return min(self.references, key=lambda length: abs(np.log(count / length)))

    def take_figures(self) -> dict[str, float]:
        """Returns the mean distance of the replies since the last call, and the AUC of a discriminator between them and
        people's passages of the same lengths, if there are at least `FEWEST`."""
        seen, far = self._seen, self._distances
        self._seen, self._distances = [], []
        if not seen:
            return {}
        found = {"distance": float(np.mean(far))}
        if len(seen) >= FEWEST:
            found["auc"] = told_apart(np.stack([x_F for _, x_F in seen]), self.alike([length for length, _ in seen]))
        return found

    def alike(self, lengths: list[int]) -> Array:
        """Returns the features of people's passages of given lengths, float64 [N, F]."""
        taken = dict.fromkeys(self.references, 0)
        rows = []
        for length in lengths:
            x_NF = self.references[length].x_NF
            rows.append(x_NF[taken[length] % len(x_NF)])
            taken[length] += 1
        return np.stack(rows)
