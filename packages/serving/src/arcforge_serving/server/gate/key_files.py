"""Keys that are read again when their files change."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from arcforge_core.errors import ConfigError
from arcforge_serving.configs import ServeConfig
from arcforge_serving.server.gate.auth import Keys, Level, load_keys

LOG = logging.getLogger("arcforge.keys")
LOOK_EVERY = 1.0
"""Seconds between two checks of the files."""


class WatchedKeys:
    """The keys that `load_keys` reads, as they are now; has the methods of `Keys`.

    Requests check the files, at most once a second, and read them when their times or sizes have changed. Invalid
    files change nothing, and the log reports them: removing the last key does not open the server.

    Args:
        config: names the files.
        environ: has the keys where there are no files.
        clock: seconds.

    Raises:
        ConfigError: see `load_keys`.
    """

    def __init__(
        self, config: ServeConfig, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._environ, self._clock = config, environ, clock
        self._files = [file for file in (config.api_key_file, config.admin_key_file) if file is not None]
        self._seen, self._looked = self._look(), clock()
        self._keys = load_keys(config, environ)

    @property
    def current(self) -> Keys:
        now = self._clock()
        if self._files and now - self._looked >= LOOK_EVERY:
            self._looked = now
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._read()
        return self._keys

    @property
    def users(self) -> tuple[bytes, ...]:
        return self.current.users

    def owner(self, authorization: str | None, level: Level) -> str:
        return self.current.owner(authorization, level)

    def is_admin(self, owner: str) -> bool:
        return self.current.is_admin(owner)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(file) for file in self._files]

    def _read(self) -> None:
        try:
            self._keys = load_keys(self._config, self._environ)
        except ConfigError as error:
            LOG.warning("the keys stay as they were: %s %s", error.field, error.accepted)
        else:
            LOG.warning("read again: %s keys of users, %s of admins", len(self._keys.users), len(self._keys.admins))


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
