"""Streams that are computed before scoring: log-probabilities of other models, and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.contracts.algorithm import Trace
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_rl.learning.policy import read
from arcforge_rl.learning.tokens import PolicyMicro, pack, write_stream

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
        traces: get it.
        name: of the stream.
        max_tokens: of a micro-batch.
        device: where the numbers are computed.
        value_of: returns them, [S].
    """
    for micro in pack(traces, max_tokens):
        write_stream(micro, name, value_of(micro.to(device)))


def add_logprobs(traces: Sequence[Trace], name: str, model: CausalLM, max_tokens: int) -> None:
    """Writes a model's log-probabilities of the sampled tokens."""
    add_stream(traces, name, max_tokens, model.device, lambda micro: read(model, micro).logprobs_S)


class Teachers:
    """Frozen models by domain, for the stream ``teacher``.

    Args:
        folders: domain -> checkpoint; ``default`` for domains that are not named.
        tokenizer: of the policy.
        ops: where kernels come from.

    Raises:
        ConfigError: there is none, or a teacher has another tokenizer: what it says would be about other tokens.
        CheckpointError: one cannot be read.
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
        self._by_domain = {domain: loaded[folder] for domain, folder in found.items()}

    def add(self, traces: Sequence[Trace], max_tokens: int) -> None:
        """Writes ``teacher`` into all traces.

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
            add_logprobs(of_model, "teacher", model, max_tokens)


def check_tokenizer(field: str, folder: Path, tokenizer: Tokenizer) -> None:
    """Refuses a model whose tokens are not the policy's.

    Raises:
        ConfigError: the tokenizers differ, or there is none.
    """
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            field, str(folder), "has no tokenizer.json, so that nobody can tell whether its tokens are ours"
        )
    if Tokenizer.load(folder).sha256 != tokenizer.sha256:
        raise ConfigError(
            field, str(folder), "has another tokenizer than the policy: log-probabilities cannot be compared"
        )
