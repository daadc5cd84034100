"""Completions of any server with OpenAI's API, and lengths where its tokenizer is not at hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from arcforge_core.errors import ArcforgeError
from arcforge_core.eval.long_context.tasks import Example

REQUESTS_AT_A_TIME = 8
SECONDS_TO_CONNECT, SECONDS_TO_ANSWER = 10.0, 600.0
SHOWN_CHARACTERS = 200


class ApproximateTokenizer:
    """Counts a digit, or up to four other characters, as a token; near enough for English and code."""

    words = "approximate tokens (a digit, or four other characters: no tokenizer was given)"

    def encode(self, text: str) -> list[str]:
        """Returns the pieces."""
        return re.findall(r"\d|\D{1,4}", text)


class Endpoint:
    """A client of ``POST /v1/completions``, to be used as a context and called as a `Completer`."""

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        """Opens no connection yet.

        Args:
            url: with or without ``/v1`` at its end.
            model: its name there; None sends none.
            key: sent as a bearer token.

        Raises:
            ArcforgeError: httpx is not installed, or the URL is none.
        """
        try:
            import httpx
        except ImportError as error:
            raise ArcforgeError("suite.endpoint needs httpx: pip install 'arcforge-core[endpoint]'") from error
        self._http, self._model, self._shown = httpx, model, ""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        base = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        try:
            self._address = httpx.URL(base)
            self._shown = str(self._address.copy_with(userinfo=b"")).removesuffix("/v1/completions")
            self._client = httpx.Client(
                headers=headers, timeout=httpx.Timeout(SECONDS_TO_ANSWER, connect=SECONDS_TO_CONNECT)
            )
        except (httpx.InvalidURL, ValueError) as error:  # ValueError: a header that HTTP cannot carry
            raise self._error(str(error)) from error

    @property
    def name(self) -> str:
        """The model and where it is, without what a URL may hold of a password."""
        return f"{self._model or 'model'} at {self._shown}"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def __call__(self, examples: Sequence[Example]) -> list[str]:
        """Returns what the model says after each prompt.

        Raises:
            ArcforgeError: the server cannot be reached, refuses, or answers something else than a completion.
        """
        with ThreadPoolExecutor(REQUESTS_AT_A_TIME) as pool:
            return list(pool.map(self._complete, examples))

    def _complete(self, example: Example) -> str:
        body: dict[str, Any] = {"prompt": example.prompt, "max_tokens": example.max_new_tokens, "temperature": 0.0}
        if self._model is not None:
            body["model"] = self._model
        try:
            reply = self._client.post(self._address, json=body)
        except self._http.TimeoutException as error:
            raise self._error(f"no answer in time ({type(error).__name__})") from error
        except self._http.HTTPError as error:
            raise self._error(f"cannot be reached: {error or type(error).__name__}") from error
        if reply.status_code != 200:
            raise self._error(f"HTTP {reply.status_code}: {_reason(reply)}")
        try:
            text = reply.json()["choices"][0]["text"]
        except (ValueError, LookupError, TypeError) as error:
            raise self._error(f"the answer is no completion: {reply.text[:SHOWN_CHARACTERS]!r}") from error
        if not isinstance(text, str):
            raise self._error(f"the answer is no completion: its text is {text!r:.{SHOWN_CHARACTERS}}")
        return text

    def _error(self, what: str) -> ArcforgeError:
        return ArcforgeError(f"suite.endpoint={self._shown}: {what}")


def _reason(reply: Any) -> str:
    """Returns the message of an error in OpenAI's shape, else the beginning of the text."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return str(reply.text[:SHOWN_CHARACTERS] or reply.reason_phrase)
