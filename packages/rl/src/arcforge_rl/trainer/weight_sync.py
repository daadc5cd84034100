"""Weights from the trainer to the engine."""

from __future__ import annotations

from typing import Any

from arcforge_core.console.progress import say
from arcforge_core.contracts.engine import Engine, PartialUpdateError, UnfinishedUpdateError
from arcforge_core.errors import CheckpointError
from arcforge_core.model.adapt.lora import adapter_of
from arcforge_core.model.adapt.low_rank import low_rank_state
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.causal_lm import CausalLM


def hand_over(model: CausalLM, engine: Engine, version: int | None = None, reset: bool = False) -> None:
    """Gives the engine a copy of the policy's weights as `version`; its present version plus 1 if None.

    With `reset` the version may be any: those that the engine has are of another run, or of steps that are repeated.
    A policy with adapters gives these alone, with its frozen weights only to an engine whose base is another one.
    Where one of several engines refuses, the others have them and continue; it is named on standard error.

    Raises:
        CheckpointError: the engine refuses them.
    """
    given: dict[str, Any] = {"version": version, **({"reset": True} if reset else {})}
    try:
        if adapter_of(model) is None or not getattr(engine, "takes_adapters", False):
            state = {name: tensor.detach() for name, tensor in state_of(model).items()}
            engine.update_weights(state, **given)
            return
        try:
            engine.update_weights(low_rank_state(model), **given)
        except (PartialUpdateError, UnfinishedUpdateError):
            raise
        except CheckpointError as error:
            say(f"{error}; handing over the frozen weights with them")
            engine.update_weights(low_rank_state(model, with_base=True), **given)
    except PartialUpdateError as error:
        say(str(error))
