"""API keys: who may call which route. Only digests of keys are kept, and no error shows a key."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException

from arcforge_core.errors import ConfigError
from arcforge_serving.configs import ServeConfig

USER_KEYS, ADMIN_KEYS = "ARCFORGE_SERVE_KEYS", "ARCFORGE_SERVE_ADMIN_KEYS"
SHORTEST = 8
"""Characters that a key has at least."""


class Level(Enum):
    """Who may call a route."""

    OPEN = "anybody"
    USER = "holders of a key, or anybody on an address that needs none"
    ADMIN = "holders of an admin key"


@dataclass(frozen=True)
class Keys:
    """Digests of the keys.

    Attributes:
        users: of those that may generate; empty where that needs no key.
        admins: of keys that may do everything; empty if no key may control the engine.
    """

    users: tuple[bytes, ...] = ()
    admins: tuple[bytes, ...] = ()

    def owner(self, authorization: str | None, level: Level) -> str:
        """Checks a request and says on whose behalf it comes.

        Args:
            authorization: the header, ``Bearer KEY``.
            level: of the route.

        Returns:
            The beginning of the key's digest; empty without a key that is known.

        Raises:
            HTTPException: 401 when a key is missing or unknown, 403 when it is not enough.
        """
        scheme, _, key = (authorization or "").partition(" ")
        digest = digest_of(key.strip()) if scheme.lower() == "bearer" else b""
        admin, user = _among(digest, self.admins), _among(digest, self.users)
        if level is Level.ADMIN and not self.admins:
            raise HTTPException(403, f"this server has no admin key: admin_key_file or {ADMIN_KEYS} gives it one")
        if level is Level.ADMIN and user:
            raise HTTPException(403, "this route needs an admin key")
        wanted = {Level.OPEN: False, Level.USER: bool(self.users), Level.ADMIN: True}[level]
        if wanted and not admin and not user:
            problem = (
                "the API key is not known"
                if authorization
                else "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
            )
            raise HTTPException(401, problem, {"WWW-Authenticate": "Bearer"})
        return digest.hex()[:16] if user or admin else ""

    def is_admin(self, owner: str) -> bool:
        """Returns whether what `owner` has returned is an admin."""
        return any(digest.hex().startswith(owner) for digest in self.admins) if owner else False


def load_keys(config: ServeConfig, environ: Mapping[str, str]) -> Keys:
    """Reads the keys: from the files that the configuration names, else from the environment.

    Raises:
        ConfigError: a file cannot be read or holds no key, or a key is too short, no printable ASCII, or both a
            user's and an admin's.
    """
    users = _read("api_key_file", config.api_key_file, USER_KEYS, environ)
    admins = _read("admin_key_file", config.admin_key_file, ADMIN_KEYS, environ)
    if set(users) & set(admins):
        source = ADMIN_KEYS if config.admin_key_file is None else config.admin_key_file
        raise ConfigError("admin_key_file", source, "holds a key that users have too; an admin key must be another")
    return Keys(users, admins)


def _read(field: str, file: str | None, variable: str, environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Returns the digests of one level's keys: one a line, ``#`` begins a line of comment; commas in the variable."""
    if file is None:
        return _digests(variable, environ.get(variable, "").split(","))
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(field, file, f"cannot be read: {error}") from error
    digests = _digests(f"{field}={file}", (line for line in text.splitlines() if not line.lstrip().startswith("#")))
    if not digests:
        raise ConfigError(field, file, "holds no key; it has one in each line")
    return digests


def _digests(source: str, keys: Iterable[str]) -> tuple[bytes, ...]:
    found = [key.strip() for key in keys]
    for number, key in enumerate(found, 1):
        if key and (len(key) < SHORTEST or not (key.isascii() and key.isprintable()) or " " in key):
            accepted = f"a key has {SHORTEST} or more printable ASCII characters and no spaces"
            raise ConfigError(source, f"key {number}", accepted)
    return tuple(digest_of(key) for key in found if key)


def digest_of(key: str) -> bytes:
    """Returns the digest of a key, which is stored in its place."""
    return sha256(key.encode(errors="replace")).digest()


def _among(digest: bytes, known: tuple[bytes, ...]) -> bool:
    """Compares with every key, in the same time whichever it is."""
    return sum(hmac.compare_digest(digest, each) for each in known) > 0
