"""Measures how many tokens drafted by the MTP module the main model accepts (spec 1.6).

After a context, the main model chooses the next token greedily. The module then drafts as in a server, where all its
steps share one cache: the first step reads the hidden states of the context, each with the following token, and every
further step appends one position: the hidden state of the previous step with the token that it drafted. A draft is
accepted if it and all drafts before it equal the main model's choices. Everything is recomputed from ragged batches,
without a cache.

Shapes: N contexts, K drafts, T ragged tokens, D hidden.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from arcforge_core.config.schema import EvalConfig
from arcforge_core.configs import MtpAcceptanceSuiteConfig, SimpleEngineConfig
from arcforge_core.console.progress import track
from arcforge_core.console.result import Result
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.data.tokens.pipeline import Corpus
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.run import load_with_corpus
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.generation.generate import evaluating
from arcforge_core.model.causal_lm import CausalLM

DRAFTS = 4
"""The paper's speculative steps."""
PER_TEXT = 16
"""Contexts taken from one text, and from the model's continuation of it."""
BATCH_TOKENS = 8192
"""Context tokens per batch; a longer context gets a batch of its own."""


@dataclass(frozen=True)
class MtpAcceptance:
    """The number of accepted tokens, of `drafts` drafted ones, after each context.

    Attributes:
        drafts: tokens drafted after each context.
        text: accepted tokens after contexts of held-out text.
        generated: accepted tokens after contexts that end in the model's own greedy continuation of such a text;
            empty if the model ended each of them immediately.
    """

    drafts: int
    text: tuple[int, ...]
    generated: tuple[int, ...]

    def figures(self) -> dict[str, float]:
        """Returns, by kind of context, the accepted length and the acceptance rate of each draft position.

        The length is ``1 + accepted drafts``: like servers, it counts the token that the main model gives anyway.
        """
        found: dict[str, float] = {}
        for kind, accepted in (("generated", self.generated), ("text", self.text)):
            if accepted:
                found[f"mtp_accept_length_{kind}"] = 1 + mean(accepted)
                for place in range(1, self.drafts + 1):
                    found[f"mtp_accept_{place}_{kind}"] = mean(count >= place for count in accepted)
        return found


def measure_mtp_acceptance(config: EvalConfig) -> Result:
    """Measures a checkpoint, prints a table and returns it with the checkpoint's folder.

    Raises:
        CheckpointError, ConfigError, DataError: see `load_with_corpus`.
        ConfigError: the model has no MTP module.
    """
    suite = config.suite
    assert isinstance(suite, MtpAcceptanceSuiteConfig)
    folder, model, corpus = load_with_corpus(config, suite.sequence_length)
    found = mtp_acceptance(model, corpus, suite.positions, suite.sequence_length, suite.drafts)
    figures = Result(folder, found.figures())
    figures.show(str(folder))
    return figures


def mtp_acceptance(
    model: CausalLM, corpus: Corpus, positions: int, sequence_length: int, drafts: int = DRAFTS
) -> MtpAcceptance:
    """Measures at about `positions` positions of held-out text, and at as many of its greedy continuations.

    Args:
        model: its mode is restored.
        corpus: source of the held-out text, read in the order of its evaluation.
        positions: contexts of each kind, rounded up to whole texts.
        sequence_length: maximum tokens of a text; its contexts are evenly spaced prefixes.
        drafts: tokens drafted after each context.

    Raises:
        ConfigError: the model has no MTP module.
        DataError: there is no held-out text.
    """
    limit = model.config.max_position_embeddings - PER_TEXT - drafts
    if limit < 2:
        raise ConfigError("model.max_position_embeddings", limit + PER_TEXT + drafts, f"too few for {drafts} drafts")
    texts = list(itertools.islice(heldout_texts(corpus, min(sequence_length, limit)), -(-positions // PER_TEXT)))
    if not texts:
        raise DataError("no held-out text to measure: the corpus is too small for its held-out share (data.heldout)")
    beginnings = [text[:end] for text in texts for end in spread(len(text), PER_TEXT)]
    text = count_accepted(model, beginnings, drafts)
    generated = count_accepted(model, continuations(model, texts, corpus.tokenizer.eos_id), drafts)
    return MtpAcceptance(drafts, tuple(text), tuple(generated))


def heldout_texts(corpus: Corpus, sequence_length: int) -> Iterator[list[int]]:
    """Yields held-out documents, cut into pieces of 2 to `sequence_length` tokens."""
    for batch in corpus.heldout_batches(sequence_length, sequence_length):
        for piece in batch.tokens_T.split(batch.batch.query_lengths()):
            if len(piece) > 1:
                yield piece.tolist()


def spread(length: int, count: int) -> list[int]:
    """Returns at most `count` evenly spaced numbers from 1 to `length`, including `length`."""
    return sorted({-(-length * n // count) for n in range(1, count + 1)})


def continuations(model: CausalLM, texts: Sequence[Sequence[int]], eos_id: int) -> list[list[int]]:
    """Returns contexts: the first halves of the texts, each with 0 to `PER_TEXT` - 1 tokens of its greedy continuation.

    Contexts after which the model ends the text are left out: there is nothing to draft after the end.
    """
    prompts = [list(text[: -(-len(text) // 2)]) for text in texts]
    params = SamplingParams(PER_TEXT, temperature=0.0, stop_token_ids=(eos_id,))
    outputs = SimpleEngine(SimpleEngineConfig(), model, batch_size=64).generate(prompts, params)
    return [
        [*prompt, *output.token_ids[:count]]
        for prompt, output in zip(prompts, outputs, strict=True)
        for count in range(len(output.token_ids) - (output.finish_reason == "stop"))
    ]


def count_accepted(model: CausalLM, contexts: Sequence[Sequence[int]], drafts: int = DRAFTS) -> list[int]:
    """Returns for each context the number of leading drafts that equal the main model's choices.

    Args:
        model: its mode is restored.
        contexts: token ids, at least one per context.
        drafts: tokens drafted after each context.

    Raises:
        ConfigError: the model has no MTP module, or a context with its drafts exceeds the model's positions.
    """
    found: list[int] = []
    with torch.inference_mode(), evaluating(model):
        for batch in track(_batches(contexts), "drafting"):
            found += _count_accepted(model, [torch.tensor(ids, device=model.device) for ids in batch], drafts)
    return found


def _count_accepted(model: CausalLM, contexts: Sequence[Tensor], drafts: int) -> list[int]:
    lengths = [len(context_T) for context_T in contexts]
    hidden_TD = model.hidden(torch.cat([*contexts]), SequenceBatch.build(lengths, device=model.device)).hidden_TD
    hidden = hidden_TD.split(lengths)
    chosen_N = _greedy(model, torch.stack([h_TD[-1] for h_TD in hidden]))
    sequences = _append(contexts, chosen_N)
    drafted = []
    for _ in range(drafts):
        batch = SequenceBatch.build([len(h_TD) for h_TD in hidden], device=model.device)
        ahead_T = torch.cat([sequence_T[1:] for sequence_T in sequences])
        out_TD = model.mtp_step(ahead_T, torch.cat([*hidden]), batch, model.rope(batch)).x_TD
        last_ND = out_TD[_last(batch).to(model.device)]
        drafted.append(_greedy(model, last_ND))
        sequences, hidden = _append(sequences, drafted[-1]), _append(hidden, last_ND)
    batch = SequenceBatch.build([len(sequence_T) for sequence_T in sequences], device=model.device)
    hidden_TD = model.hidden(torch.cat([*sequences]), batch).hidden_TD
    # a sequence ends with its last draft; the row before a token predicts it
    rows_NK = _last(batch)[:, None] + torch.arange(-drafts, 0)
    wanted_NK = _greedy(model, hidden_TD[rows_NK.flatten().to(model.device)]).view(-1, drafts)
    accepted_N: list[int] = (torch.stack(drafted, 1) == wanted_NK).cumprod(1).sum(1).tolist()
    return accepted_N


def _greedy(model: CausalLM, hidden_TD: Tensor) -> Tensor:
    return model.logits(hidden_TD).argmax(-1)


def _last(batch: SequenceBatch) -> Tensor:
    """Returns the row of each segment's last token, int64 [N] on the host."""
    return batch.cu_query[1:].to(torch.int64) - 1


def _append(parts: Sequence[Tensor], one_N: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.cat((part_T, one_N[n : n + 1])) for n, part_T in enumerate(parts))


def _batches(contexts: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    batches: list[list[Sequence[int]]] = []
    tokens = 0
    for context in contexts:
        if not batches or tokens + len(context) > BATCH_TOKENS:
            batches.append([])
            tokens = 0
        batches[-1].append(context)
        tokens += len(context)
    return batches
