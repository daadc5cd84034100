"""Anchors: expert-written replies, whose likelihood every update of the policy raises along with the reward.

A reward that is learnt or judged says little far from the text that it was made of. A supervised term keeps the policy
near text that people wrote: its gradient grows as their replies become unlikely.

T: tokens of a micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from arcforge_core.console.progress import say
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.contracts.data import Example
from arcforge_core.data.conversations.encode import LengthLimits, make_example, turns
from arcforge_core.data.conversations.records import find_files, read_rows
from arcforge_core.episodes.agent import ChatDialogue, Dialogue, TextDialogue
from arcforge_core.errors import DataError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.train.losses import cross_entropy
from arcforge_core.train.processes import part
from arcforge_core.train.step import NonFiniteError
from arcforge_rl.configs.anchors import AnchorConfig
from arcforge_rl.rewards.anchors import check_unseen, conversation_of


class Anchors:
    """The supervised term of a run.

    Args:
        examples: conversations as tokens, with their targets.
        config: weight and batch.
        seed: of the order, which differs in every pass through the examples.
        micro_batch_tokens: of a micro-batch at most; a longer conversation has one of its own.

    Attributes:
        cursor: conversations taken so far, over all processes; part of checkpoints.
    """

    def __init__(self, examples: Sequence[Example], config: AnchorConfig, seed: int, micro_batch_tokens: int) -> None:
        self.examples, self.config = examples, config
        self.seed, self.most = seed, micro_batch_tokens
        self.cursor = 0

    def take(self) -> list[Example]:
        """Returns the conversations of the next update, the same ones in every process."""
        taken = []
        for number in range(self.cursor, self.cursor + self.config.batch):
            epoch, place = divmod(number, len(self.examples))
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.examples))
            taken.append(self.examples[int(order[place])])
        self.cursor += self.config.batch
        return taken

    def accumulate(self, model: CausalLM, backward: Callable[[Tensor], None]) -> float:
        """Adds this process's part of the next update's gradient, and returns its part of the loss.

        The loss is ``weight`` times the mean negative log-likelihood of the replies' tokens, at temperature 1.

        Args:
            model: the policy.
            backward: differentiates a scalar.

        Raises:
            NonFiniteError: the loss is NaN or infinite; raised before its backward pass.
        """
        taken = self.take()
        scale = self.config.weight / sum(sum(targets_of(example)) for example in taken)
        found = 0.0
        for examples in packed(part(taken), self.most):
            tokens_T, targets_T, weights_T, batch = micro_of(examples, model.device)
            hidden_TD = model.hidden(tokens_T, batch).hidden_TD
            loss = scale * cross_entropy(model, hidden_TD, targets_T, weights_T)
            if not torch.isfinite(loss):
                raise NonFiniteError(f"the loss anchor is {float(loss.detach())}")
            backward(loss)
            found += float(loss.detach())
        return found


def targets_of(example: Example) -> Sequence[bool]:
    """Returns whether each token after the first one is learnt."""
    assert example.trained is not None, "conversations say which tokens are learnt"
    return example.trained[1:]


def packed(examples: Sequence[Example], most: int) -> Iterator[list[Example]]:
    """Yields the examples in order, in lists of at most `most` input tokens or one example."""
    found: list[Example] = []
    room = most
    for example in examples:
        length = len(example.ids) - 1
        if found and length > room:
            yield found
            found, room = [], most
        found.append(example)
        room -= length
    if found:
        yield found


def micro_of(examples: Sequence[Example], device: torch.device | str) -> tuple[Tensor, Tensor, Tensor, SequenceBatch]:
    """Returns int64 inputs [T], int64 targets [T], fp32 weights [T], 1 or 0, and one segment for each example."""
    tokens_T = torch.cat([torch.tensor(list(example.ids[:-1])) for example in examples])
    targets_T = torch.cat([torch.tensor(list(example.ids[1:])) for example in examples])
    weights_T = torch.cat([torch.tensor(list(targets_of(example)), dtype=torch.float32) for example in examples])
    batch = SequenceBatch.build([len(example.ids) - 1 for example in examples])
    return tokens_T.to(device), targets_T.to(device), weights_T.to(device), batch.to(device)


def build_anchors(
    config: AnchorConfig,
    dialogue: Dialogue,
    model: CausalLM,
    heldout: Mapping[str, int],
    seed: int,
    micro_batch_tokens: int,
) -> Anchors | None:
    """Reads and encodes the replies as the policy renders its own; None without them.

    Args:
        config: files and limits.
        dialogue: of the rollouts.
        model: says how many tokens it can read.
        heldout: numbers of held-out tasks by prompt, see `prompts_of`.
        seed: of the order.
        micro_batch_tokens: see `Anchors`.

    Raises:
        DataError: a file cannot be read, or no record can be used.
        ConfigError: a record has the prompt of a held-out task.
    """
    if not config.weight:
        return None
    positions = model.config.max_position_embeddings + 1  # the last token is no input
    most = positions if config.max_tokens is None else min(config.max_tokens, positions)
    limits = LengthLimits(most, min_trained=1, cut=True)
    examples: list[Example] = []
    left_out: Counter[str] = Counter()
    for path in find_files(config.files, "anchor.files"):
        for row in read_rows(path):
            try:
                conversation = conversation_of(row)
                asked = [message.content for message in conversation.messages if message.role == "user"]
                check_unseen(asked, heldout, "anchor.files", f"{row.file}:{row.line}")
                examples += encoded(conversation, dialogue, limits)
            except BadRecord as error:
                left_out[str(error)] += 1
    said = "; ".join(f"{count:,} left out: {reason}" for reason, count in left_out.most_common(3))
    if not examples:
        raise DataError(f"anchor.files={config.files}: no reply to learn from{f' ({said})' if said else ''}")
    if said:
        say(f"anchors: {len(examples):,} conversations; {said}")
    return Anchors(examples, config, seed, micro_batch_tokens)


def encoded(conversation: Conversation, dialogue: Dialogue, limits: LengthLimits) -> list[Example]:
    """Returns a conversation in the format of the rollouts; more than one example where earlier reasoning is dropped.

    Raises:
        BadRecord: the format cannot express it, or it is too long.
    """
    if isinstance(dialogue, ChatDialogue):
        if not dialogue.options.enable_thinking and any(message.reasoning for message in conversation.messages):
            raise BadRecord("it has reasoning, and rollout.thinking=off")
        conversation = replace(conversation, options=dialogue.options)
        return [make_example(one, dialogue.template, limits) for one in turns(conversation)]
    assert isinstance(dialogue, TextDialogue)
    *before, reply = conversation.messages
    if conversation.tools or any(message.role == "assistant" for message in before) or reply.role != "assistant":
        raise BadRecord("without a chat template an anchor is a prompt and one reply")
    prompt = list(dialogue.prompt(before, ()).ids)
    own = [*dialogue.tokenizer.encode(reply.content), dialogue.tokenizer.eos_id]
    if len(prompt) + len(own) > limits.max_tokens:
        raise BadRecord(f"{len(prompt) + len(own)} tokens are more than {limits.max_tokens}")
    return [Example([*prompt, *own], len(reply.content.encode()), trained=[False] * len(prompt) + [True] * len(own))]
