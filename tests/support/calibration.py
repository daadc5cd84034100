"""A small checkpoint with a tokenizer and calibration text, and the command that quantises it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from arcforge_attention.configs import DsaConfig
from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.schema import AttentionConfig
from arcforge_core.configs import FilesDataConfig
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_config, small_tokenizer
from arcforge_hw.quantization.configs import CalibratedConfig, QuantizeConfig, QuarotConfig
from support.corpora import fixed_texts

LENGTH = 32
"""Tokens of a row of calibration text."""


def small_text_model(attention: AttentionConfig | None = None, outliers: float = 1.0, **sizes: Any) -> CausalLM:
    """Returns a float32 model that reads the text, with random norm gains.

    Args:
        attention: the variant; DSA by default.
        outliers: factor of every eighth up channel, divided out of their readers: the function stays the same.
        sizes: changes of `small_config`.
    """
    torch.manual_seed(0)
    config = small_config(**{"vocab_size": TOKENIZER_SIZE, "index_topk": 4, "hidden_size": 32, **sizes})
    model = build_model(config, attention or DsaConfig(), Ops(None)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and name.endswith("norm.weight"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
            if name.endswith("up_proj.weight") and "layers" in name:
                parameter[::8] *= outliers
            if name.endswith("down_proj.weight") and "layers" in name:
                parameter[:, ::8] /= outliers
    return model


def text_config(folder: Path, **changes: Any) -> FilesDataConfig:
    """Returns a corpus of fixed texts below the folder."""
    if not (folder / "texts").exists():
        fixed_texts(folder / "texts", num_files=6)
    return FilesDataConfig(**{"paths": [str(folder / "texts")], "cache_dir": str(folder / "cache"), **changes})


def quantise_config(folder: Path, out: str = "out", quarot: bool = False, **options: Any) -> QuantizeConfig:
    """Returns the command's configuration for ``folder/source``; `quarot` quantises without calibration."""
    recipe = {} if quarot else {"rows": 4, "sequence_length": LENGTH, "grid": 4}
    quantizer = (QuarotConfig if quarot else CalibratedConfig)(**{**recipe, **options})
    return QuantizeConfig(quantizer, str(folder / "source"), str(folder / out), text_config(folder))


def save_source(model: CausalLM, folder: Path) -> None:
    """Saves a model with its tokenizer as ``folder/source``."""
    save_pretrained(model, folder / "source", small_tokenizer())
