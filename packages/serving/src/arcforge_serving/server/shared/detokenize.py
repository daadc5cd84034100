"""Sampled tokens as visible text: whole characters, without stop tokens and stop strings."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from arcforge_core.contracts.engine import Token
from arcforge_core.tokenizer.tokenizer import TextStream, Tokenizer


@dataclass(frozen=True)
class Piece:
    """The fewest tokens that end with a whole character; of a sequence that is not decoded, any.

    Attributes:
        tokens: at least one, except at the end.
        text: their visible text.
        whole: whether `text` is all of their text; else a stop string begins in it, or before.
    """

    tokens: tuple[Token, ...]
    text: str
    whole: bool = True


class StopSearch:
    """Looks for stop strings in text that arrives in pieces, each character once."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._tail = max(map(len, stops), default=1) - 1
        self._text = ""

    def push(self, text: str) -> bool:
        """Takes the next piece; returns whether it completes a stop string."""
        self._text += text
        found = any(stop in self._text for stop in self._stops)
        self._text = self._text[max(0, len(self._text) - self._tail) :]
        return found


class StopWatch:
    """Ends one sequence at a stop string: its `SamplingParams.should_stop`.

    Args:
        tokenizer: of the model.
        stops: strings.
        hidden: ids that are not text.
        unsearched: tokens at the start in which no stop string is looked for.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], hidden: Container[int], unsearched: int = 0) -> None:
        self._stream, self._search, self._hidden = TextStream(tokenizer), StopSearch(stops), hidden
        self._seen, self._unsearched = 0, unsearched

    def __call__(self, token_ids: Sequence[int]) -> bool:
        """Returns whether the last of the ids completes a stop string."""
        text = ""
        for place in range(self._seen, len(token_ids)):
            shown = "" if token_ids[place] in self._hidden else self._stream.push(token_ids[place])
            text += shown if place >= self._unsearched else ""
        self._seen = len(token_ids)
        return self._search.push(text)


class Reader:
    """Turns the tokens of one sequence into pieces; a possible start of a stop string is held back.

    The joined texts equal the decoded tokens, up to the stop string. Ids that are not text count as tokens.

    Args:
        tokenizer: of the model.
        stops: strings that end the text; the one that begins first counts.
        hidden: ids that are not text: end-of-text and stop tokens.
        unsearched: tokens at the start in which no stop string is looked for.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), hidden: Container[int] = (), unsearched: int = 0
    ) -> None:
        self._unsearched = unsearched
        self._stream, self._stops, self._hidden = TextStream(tokenizer), tuple(stops), hidden
        self._group: list[Token] = []
        self._held: list[Piece] = []
        self.stop: str | None = None
        """The stop string that ended the text."""

    def push(self, tokens: Iterable[Token]) -> list[Piece]:
        """Takes tokens; returns the pieces that later tokens cannot change."""
        if not self._stops:
            return self._whole(tokens)
        early: list[Piece] = []
        for token in tokens:
            self._unsearched -= 1
            text = "" if token.id in self._hidden else self._stream.push(token.id)
            self._group.append(token)
            if text or token.id in self._hidden:
                self._add(text)
                if self._unsearched >= 0:
                    early, self._held = early + self._held, []
        return early + self._settled()

    def _whole(self, tokens: Iterable[Token]) -> list[Piece]:
        """Returns all pieces: without stop strings none is held."""
        pieces: list[Piece] = []
        for token in tokens:
            hidden = token.id in self._hidden
            text = "" if hidden else self._stream.push(token.id)
            self._group.append(token)
            if text or hidden:
                pieces.append(Piece(tuple(self._group), text))
                self._group = []
        return pieces

    def finish(self) -> list[Piece]:
        """Returns the held pieces at the end; bytes that are no character become U+FFFD."""
        rest = self._stream.flush()
        if rest or self._group:
            self._add(rest)
        pieces, self._held = self._settled() + self._held, []
        return pieces

    def _add(self, text: str) -> None:
        piece = Piece(tuple(self._group), text)
        self._group = []
        self._held.append(replace(piece, text="", whole=not text) if self.stop else piece)

    def _settled(self) -> list[Piece]:
        """Releases the held pieces that end before any possible start of a stop string."""
        text = "".join(piece.text for piece in self._held)
        if self.stop or not self._stops:
            open_from = len(text)
        elif found := [(text.find(stop), stop) for stop in self._stops if stop in text]:
            position, self.stop = min(found)
            self._cut(position)
            open_from = len(text)
        else:
            open_from = len(text) - _longest_start(text, self._stops)
        settled, length = [], 0
        while self._held and length + len(self._held[0].text) <= open_from:
            piece = self._held.pop(0)
            length += len(piece.text)
            settled.append(piece)
        return settled

    def _cut(self, position: int) -> None:
        """Removes the visible text from a character on."""
        for index, piece in enumerate(self._held):
            kept = piece.text[: max(0, position)]
            position -= len(piece.text)
            if kept != piece.text:
                self._held[index] = replace(piece, text=kept, whole=False)


class TokenReader:
    """A `Reader` that decodes nothing: the tokens that arrive together are a piece without text."""

    stop = None

    def push(self, tokens: Iterable[Token]) -> list[Piece]:
        """Returns the tokens."""
        arrived = tuple(tokens)
        return [Piece(arrived, "")] if arrived else []

    def finish(self) -> list[Piece]:
        """Returns nothing: no token is held."""
        return []


def _longest_start(text: str, stops: Sequence[str]) -> int:
    """Returns how many characters at the end of a text may be the beginning of a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
