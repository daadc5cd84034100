"""Matchers of an assistant's turn, around a grammar. Shape: V vocabulary.

A grammar describes the content or the calls of a turn. Reasoning before it and the
tokens that end a turn belong to the chat template.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arcforge_core.contracts.engine import Matcher
from arcforge_serving.server.shared.structured import MatcherFactory


def free_mask(vocabulary: int, known: int, never: Sequence[int] = ()) -> Tensor:
    """Returns bool [V]: the ids below `known` except `never`."""
    mask_V = torch.arange(vocabulary) < known
    mask_V[list(never)] = False
    return mask_V


class TurnMatcher:
    """Free reasoning, then the text of a grammar, then the end of the turn; a `Matcher`.

    Args:
        inner: the grammar.
        free_V: ids allowed in the reasoning.
        until: the id that ends the reasoning; None for a turn without.
        eos: the id that a grammar ends with.
        stops: the ids that end the turn in its place.
    """

    def __init__(
        self, inner: MatcherFactory, free_V: Tensor, until: int | None, eos: int, stops: Sequence[int]
    ) -> None:
        self._inner, self._free_V, self._until = inner(), free_V, until
        self._eos, self._stops = eos, list(stops)
        self._over = False

    def allowed(self) -> Tensor:
        """Returns bool [V]; see the contract."""
        if self._until is not None:
            return self._free_V
        mask_V = self._inner.allowed()
        if mask_V[self._eos]:
            mask_V = mask_V.clone()
            mask_V[self._stops] = True
        return mask_V

    def accept(self, token: int) -> None:
        """Accepts a token; see the contract."""
        if self._until is not None:
            self._until = None if token == self._until else self._until
        elif token in self._stops:
            self._over = True
        else:
            self._inner.accept(token)

    @property
    def finished(self) -> bool:
        """Whether the turn is complete."""
        return self._over or (self._until is None and self._inner.finished)


class EitherMatcher:
    """The text of one of several grammars; a `Matcher`. Those that the tokens so far rule out are dropped.

    Args:
        inner: the grammars.
    """

    def __init__(self, inner: Sequence[MatcherFactory]) -> None:
        self._open = [make() for make in inner]

    def allowed(self) -> Tensor:
        """Returns bool [V]; see the contract."""
        return torch.stack([matcher.allowed() for matcher in self._open]).any(0)

    def accept(self, token: int) -> None:
        """Accepts a token; see the contract."""
        if len(self._open) > 1:
            self._open = [matcher for matcher in self._open if matcher.allowed()[token]]
        for matcher in self._open:
            matcher.accept(token)

    @property
    def finished(self) -> bool:
        """Whether the text of any is complete."""
        return any(matcher.finished for matcher in self._open)


class CallsMatcher:
    """A free turn in which calls, once they begin, follow a grammar; a `Matcher`.

    Args:
        begin, end: the ids around a call.
        call: matches from `begin` to `end`; None leaves calls free.
        free_V: ids allowed outside calls.
        inside_V: ids allowed in free calls.
        last_V: ids allowed after a call; None is `free_V`.
    """

    def __init__(
        self, begin: int, end: int, call: MatcherFactory | None, free_V: Tensor, inside_V: Tensor,
        last_V: Tensor | None = None,
    ) -> None:  # fmt: skip
        self._begin, self._end, self._call = begin, end, call
        self._outside_V, self._inside_V, self._last_V = free_V, inside_V, last_V
        self._inner: Matcher | None = None
        self._open = False

    def allowed(self) -> Tensor:
        """Returns bool [V]; see the contract."""
        if not self._open:
            return self._outside_V
        return self._inside_V if self._inner is None else self._inner.allowed()

    def accept(self, token: int) -> None:
        """Accepts a token; see the contract."""
        if self._open and self._inner is not None:
            self._inner.accept(token)
        if not self._open and token == self._begin:
            self._open = True
            self._inner = None if self._call is None else self._call()
        elif self._open and token == self._end:
            self._open = False
            self._outside_V = self._outside_V if self._last_V is None else self._last_V

    @property
    def finished(self) -> bool:
        """Never: a stop token ends the turn."""
        return False
