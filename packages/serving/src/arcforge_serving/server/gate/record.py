"""What becomes known of a request on its way, for its log line and for metrics."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

ANTHROPIC = "/v1/messages"
"""Routes from here on answer as Anthropic's do."""
ANTHROPIC_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip


class Counted(Protocol):
    """Tokens of a request: those generated so far, and OpenAI's ``usage`` object."""

    @property
    def completion(self) -> int: ...

    @property
    def body(self) -> dict[str, Any]: ...


@dataclass
class RequestRecord:
    """What becomes known of a request on its way.

    Attributes:
        id: the client's ``X-Request-Id``, or a new one.
        owner: beginning of its key's digest.
        holder: whose rate it counts against; empty for none.
        usage: its tokens, where it generates.
        stream: whether it is answered with a stream.
        first: seconds until its first token.
        reasons: why its sequences ended.
        error: kind of what went wrong; empty where nothing did.
        complete: whether a stream has reached its end.
        ignored: names of its fields that had no effect.
        passed: whether it was passed on to an engine whose log has it.
    """

    id: str = ""
    owner: str = ""
    holder: str = ""
    usage: Counted | None = None
    stream: bool = False
    first: float | None = None
    reasons: list[str] = field(default_factory=list)
    error: str = ""
    complete: bool = False
    ignored: list[str] = field(default_factory=list)
    passed: bool = False
    began: float = field(default_factory=time.monotonic)

    def heard(self, reason: str | None) -> None:
        """Something was generated, or a sequence ended."""
        if self.first is None:
            self.first = time.monotonic() - self.began
        if reason is not None:
            self.reasons.append(reason)

    def fields(self) -> dict[str, Any]:
        """Returns what the log shows of it; what a request does not have is left out."""
        shown: dict[str, Any] = {"request_id": self.id, "key": self.owner, "error": self.error, "ignored": self.ignored}
        if self.usage is not None:
            counted = self.usage.body
            shown |= {
                "stream": self.stream,
                "prompt_tokens": counted["prompt_tokens"],
                "cached_tokens": counted["prompt_tokens_details"]["cached_tokens"],
                "completion_tokens": counted["completion_tokens"],
                "finish_reasons": self.reasons,
                "first_token_seconds": None if self.first is None else round(self.first, 4),
            }
        return {name: value for name, value in shown.items() if value not in ("", None, [])}


def record_of(scope: MutableMapping[str, Any]) -> RequestRecord:
    """Returns the record of a request."""
    found: RequestRecord = scope.setdefault("state", {}).setdefault("record", RequestRecord())
    return found
