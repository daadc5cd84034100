"""Streams computed before scoring: log-probabilities of other models, and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.contracts.algorithm import Trace
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.trainer.tokens import PolicyMicro, pack, read, write_stream

DEFAULT = "default"


@torch.no_grad()
def add_stream(
    traces: Sequence[Trace],
    name: str,
    max_tokens: int,
    device: torch.device,
    value_of: Callable[[PolicyMicro], Tensor],
) -> None:
    """Writes a stream of numbers for sampled tokens.

    Args:
        traces: receive the stream.
        name: name of the stream.
        max_tokens: maximum tokens of a micro-batch.
        device: device of the computation.
        value_of: returns the numbers of a micro-batch, [S].
    """
    for micro in pack(traces, max_tokens):
        write_stream(micro, name, value_of(micro.to(device)))


def add_logprobs(traces: Sequence[Trace], name: str, model: CausalLM, max_tokens: int, temperature: float) -> None:
    """Writes a model's log-probabilities of the sampled tokens at the temperature of the rollouts.

    A reference and a teacher are scaled as the policy is, so that a model equal to the policy has equal log-probs.
    """
    add_stream(traces, name, max_tokens, model.device, lambda micro: read(model, micro, temperature).logprobs_S)


class Teachers:
    """Frozen models by domain, for the stream ``teacher``.

    Args:
        folders: domain -> checkpoint; ``default`` for all other domains.
        tokenizer: tokenizer of the policy.
        ops: provides the kernels.

    Raises:
        ConfigError: there is no teacher, or one has another tokenizer, so its log-probabilities are for other tokens.
        CheckpointError: a checkpoint cannot be read.
    """

    def __init__(self, folders: Mapping[str, str], tokenizer: Tokenizer, ops: Ops) -> None:
        if not folders:
            raise ConfigError("teachers", {}, "algorithm=opd needs one: +teachers.default=CHECKPOINT")
        found = {domain: find_checkpoint(folder) for domain, folder in folders.items()}
        for domain, folder in found.items():
            check_tokenizer(f"teachers.{domain}", folder, tokenizer)
        loaded: dict[Path, CausalLM] = {}
        for folder in found.values():
            if folder not in loaded:
                loaded[folder] = load_pretrained(folder, torch.float32, ops).requires_grad_(False)
        self.models = list(loaded.values())
        self._by_domain = {domain: loaded[folder] for domain, folder in found.items()}

    def add(self, traces: Sequence[Trace], max_tokens: int, temperature: float) -> None:
        """Writes the stream ``teacher`` into all traces.

        Raises:
            ConfigError: a domain has no teacher.
        """
        by_teacher: dict[int, tuple[CausalLM, list[Trace]]] = {}
        for trace in traces:
            model = self._by_domain.get(trace.teacher, self._by_domain.get(DEFAULT))
            if model is None:
                accepted = f"none for {trace.teacher!r}: add +teachers.{trace.teacher} or +teachers.{DEFAULT}"
                raise ConfigError("teachers", sorted(self._by_domain), accepted)
            by_teacher.setdefault(id(model), (model, []))[1].append(trace)
        for model, of_model in by_teacher.values():
            add_logprobs(of_model, "teacher", model, max_tokens, temperature)


def check_tokenizer(field: str, folder: Path, tokenizer: Tokenizer) -> None:
    """Checks that a model has the policy's tokenizer.

    Raises:
        ConfigError: the tokenizers differ, or the model has none.
    """
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(field, str(folder), "has no tokenizer.json to compare with the policy's")
    if Tokenizer.load(folder).sha256 != tokenizer.sha256:
        raise ConfigError(
            field, str(folder), "has another tokenizer than the policy: log-probabilities cannot be compared"
        )
