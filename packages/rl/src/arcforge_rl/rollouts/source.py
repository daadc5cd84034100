"""Where a trainer gets its batches, and to which it gives its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from arcforge_rl.rollouts.collect import Collected


class Source(Protocol):
    """Batches of rollouts for a trainer; its target is called as ``target(config, sampler)``.

    Attributes:
        resets_optimizer: whether the optimizer forgets its state when weights are handed over.
    """

    @property
    def resets_optimizer(self) -> bool: ...

    def begin(self, step: int, folder: Path, catch_up: Callable[[], None]) -> None:
        """Begins or resumes after `step` updates; the engine has the weights after them.

        Args:
            step: updates so far.
            folder: of the run.
            catch_up: gives the engine the present weights if it has older ones, as a server does that was restarted;
                called in `take` and `publish`.

        Raises:
            ArcforgeError: the folder has files of another run, or damaged ones.
        """

    def take(self, step: int) -> Collected:
        """Returns the rollouts of a step, waiting for them.

        Raises:
            ArcforgeError: no rollout can be learnt from.
        """

    def publish(self, step: int, push: Callable[[], None]) -> bool:
        """An update is done; hands its weights over where they are due.

        Args:
            step: updates so far.
            push: gives the engine the present weights.

        Returns:
            Whether they were handed over.
        """

    @property
    def state(self) -> Mapping[str, Any]:
        """State that a checkpoint keeps, besides the curriculum."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the `state` of a checkpoint, before `begin`."""

    def alone(self) -> AbstractContextManager[None]:
        """Has no rollout run inside the block: present ones end first, and none starts."""

    def stop(self) -> None:
        """Plays no further rollout; the engine stays."""

    def close(self) -> None:
        """Stops, and frees what it holds."""
