"""What a request says about its prefix: the session that it belongs to, and the blocks of its prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from arcforge_core.contracts.serving_engine import SESSION_HEADER
from arcforge_serving.router.policies import Wanted
from arcforge_serving.router.problems import RESPONSES

HEADERS = (SESSION_HEADER.lower(), "x-smg-routing-key")
"""Headers that name a session, the first that is there: our gateway's, which vLLM's router has too, and SGLang's."""
FIELDS = ("session_id", "prompt_cache_key")
"""Fields that name a session, the first that is there."""
REPLY = re.compile(r"resp_(\d+-\d+)_")
BLOCK, MOST_BLOCKS = 512, 512
"""Characters of a block, about four tokens' worth of pages; the rest after the last whole block is ignored."""
OPENING = 512
"""Characters of a plain prompt that identify its session."""


def wanted_of(headers: Mapping[str, str], content: bytes, *, blocks: bool, path: str = "") -> Wanted:
    """Reads a request.

    Args:
        headers: with names in lower case.
        path: that is asked for.
        content: its body, whatever that is.
        blocks: whether the prompt is to be cut into blocks, which costs reading all of it.

    Returns:
        The features. The session is one of `HEADERS`, or one of `FIELDS`, or else the start of the conversation: its
        system prompt and first message, or the first characters of a prompt, together with the field ``user``.
    """
    named = next((headers[name] for name in HEADERS if headers.get(name)), "")
    kept = path.removeprefix(f"{RESPONSES}/")
    if kept != path:
        return Wanted(named, life=_maker(kept))
    if named and not blocks and path != RESPONSES:
        return Wanted(named)
    try:
        body: Any = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return Wanted(named)
    for field in FIELDS:
        value = body.get(field)
        if not named and isinstance(value, str):
            named = value
    previous = body.get("previous_response_id") if path == RESPONSES else None
    life = _maker(previous) if isinstance(previous, str) else None
    return Wanted(named or _opening(body), _blocks(body) if blocks else (), life)


def _maker(id_: str) -> str:
    """Returns the life of the engine that has given a reply its id; empty where none of ours has."""
    found = REPLY.match(id_)
    return found[1] if found else ""


def _opening(body: dict[str, Any]) -> str:
    """Returns a digest of what all turns of a conversation have in common; empty when there is nothing to read."""
    parts: list[str] = []
    for role, text in _parts(body):
        parts.append(text if role else text[:OPENING])
        if role == "user":
            break
    if not parts:
        return ""
    parts.append(str(body.get("user", "")))
    return blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _blocks(body: dict[str, Any]) -> tuple[int, ...]:
    """Returns a hash for each whole block of the prompt, which covers all earlier blocks too."""
    text = "".join(text for _, text in _parts(body))[: BLOCK * MOST_BLOCKS]
    found, number = [], 0
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        number = hash((number, text[start : start + BLOCK]))
        found.append(number)
    return tuple(found)


def _parts(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (role, text) of a prompt in order, of whatever dialect; a prompt that is no conversation has no role."""
    for field in ("tools", "system", "instructions"):
        if body.get(field):
            yield "system", _text(body[field])
    for field in ("messages", "input"):
        messages = body.get(field)
        if isinstance(messages, str):
            yield "user", messages
        elif isinstance(messages, list):
            for message in messages:
                yield str(message.get("role", "")) if isinstance(message, dict) else "user", _text(message)
    for field in ("prompt", "prompt_token_ids"):
        prompt = body.get(field)
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], list | str):
            prompt = prompt[0]
        if isinstance(prompt, list):
            yield "", ",".join(map(str, prompt))
        elif isinstance(prompt, str):
            yield "", prompt


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
