"""Completions from any server with OpenAI's API, and approximate lengths where its tokenizer is unavailable."""

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
    """Counts a digit, or up to four other characters, as a token; close enough for English and code."""

    words = "approximate tokens (a digit, or four other characters: no tokenizer was given)"

    def encode(self, text: str) -> list[str]:
        """Splits `text` into pieces of about one token."""
        return re.findall(r"\d|\D{1,4}", text)


class Endpoint:
    """A client of ``POST /v1/completions``: a context manager that is called as a `Completer`."""

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        """Opens no connection yet.

        Args:
            url: with or without a trailing ``/v1``.
            model: the server's name for it; None sends none.
            key: sent as a bearer token.

        Raises:
            ArcforgeError: httpx is not installed, or the URL is invalid.
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
        """The model and its URL, without credentials."""
        return f"{self._model or 'model'} at {self._shown}"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def __call__(self, examples: Sequence[Example]) -> list[str]:
        """Returns the model's completion of each prompt.

        Raises:
            ArcforgeError: the server cannot be reached, refuses, or does not answer with a completion.
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
            raise self._error(f"the reply is not a completion: {reply.text[:SHOWN_CHARACTERS]!r}") from error
        if not isinstance(text, str):
            raise self._error(f"the reply is not a completion: its text is {text!r:.{SHOWN_CHARACTERS}}")
        return text

    def _error(self, what: str) -> ArcforgeError:
        return ArcforgeError(f"suite.endpoint={self._shown}: {what}")


def _reason(reply: Any) -> str:
    """Returns the message of an error in OpenAI's format, otherwise the beginning of the text."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return str(reply.text[:SHOWN_CHARACTERS] or reply.reason_phrase)
