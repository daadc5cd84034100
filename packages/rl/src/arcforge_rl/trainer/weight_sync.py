"""Weights from the trainer to the engine."""

from __future__ import annotations

from arcforge_core.console.progress import say
from arcforge_core.contracts.engine import Engine, PartialUpdateError
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.causal_lm import CausalLM


def hand_over(model: CausalLM, engine: Engine, version: int | None = None) -> None:
    """Gives the engine a copy of the policy's weights as `version`; its present version plus 1 if None.

    Where one of several engines refuses, the others have them and continue; it is named on standard error.

    Raises:
        CheckpointError: the engine refuses them.
    """
    try:
        engine.update_weights({name: tensor.detach() for name, tensor in state_of(model).items()}, version=version)
    except PartialUpdateError as error:
        say(str(error))
