"""What can be known to be wrong with a pipeline's stages before the first one trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from arcforge_core.checkpoint.pretrained import find_checkpoint, open_checkpoint
from arcforge_core.checkpoint.sections import state_of
from arcforge_core.checkpoint.start import Start, plan_start, start_at
from arcforge_core.config.schema import TrainConfig
from arcforge_core.data.pipeline import build_data
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.meta import meta_device
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.pipeline.plan import Stage, named
from arcforge_core.registry import registry
from arcforge_core.train.adapter import check_adapter
from arcforge_core.train.run import StepLoader, build_trainer, freeze, with_tokenizer


def check_stages(stages: Sequence[Stage]) -> list[str]:
    """Builds every stage's model without memory, and sees that it can start from the one before.

    Returns:
        For each stage a line about its start; an empty one where it starts from nothing.

    Raises:
        ArcforgeError: something does not fit; the stage is named.
    """
    starts, before, models = [], "", {}
    model: CausalLM | None = None
    for stage in stages:
        config = stage.config
        start: Start | None
        with named(stage.name):
            sizes = repr((config.model, config.attention))
            if sizes not in models:
                with meta_device():
                    models[sizes] = build_model(config.model, config.attention, Ops(None))
            source, model = model, models[sizes]
            freeze(model, config.trainer.trainable)
            check_components(config)
            if source is not None:
                shapes = {name: tensor.shape for name, tensor in state_of(source).items()}
                start = plan_start(model, source.config, source.attention, shapes, f"stage {before}")
            elif config.init is not None:
                start = start_at(model, open_checkpoint(find_checkpoint(config.init)))
            else:
                start = None
            if config.adapter.name != "none":
                check_adapter(config, model, start)
            starts.append("" if start is None else str(start))
        before = stage.name
    return starts


def check_components(config: TrainConfig) -> None:
    """Loads the optimizer, the schedule and the hardware, and has Lightning look at its settings."""
    registry().get("optimizer", config.optimizer.name).load()
    registry().get("schedule", config.schedule.name).load()(config.schedule)
    build_trainer(config, build_hardware(config.hardware), Path(config.output_dir), [])


def check_data(stages: Sequence[Stage]) -> None:
    """Builds the data of stages of which the first one begins now, with the tokenizer that will be handed on.

    Raises:
        ArcforgeError: a corpus cannot be used at its stage's lengths; the stage is named.
    """
    tokenizer: str | None = None
    for stage in stages:
        config = stage.config
        with named(stage.name):
            if tokenizer is not None and config.data.tokenizer.path is None:
                handed_on = dataclasses.replace(config.data.tokenizer, path=tokenizer)
                config = dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=handed_on))
            elif tokenizer is None and config.init is not None:
                config = with_tokenizer(config, config.init)
            corpus = build_data(config.data, model_vocab_size=config.model.vocab_size)
            trainer = config.trainer
            StepLoader(corpus, config, cursor=0)
            corpus.heldout_batches(trainer.sequence_length, trainer.micro_batch_tokens, trainer.eval_tokens)
        tokenizer = str(corpus.folder / "tokenizer")
