"""The server's log: what goes wrong, and on request a line for each request, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


class Lines(logging.Formatter):
    """Text: the time, the message, and the fields that a record shows."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns a line; of an exception, several."""
        shown = getattr(record, "shown", {})
        fields = "".join(f" {name}={value}" for name, value in shown.items() if f"%({name})" not in str(record.msg))
        return f"{_time(record)} {record.levelname} {super().format(record)}{fields}"


class JsonLines(logging.Formatter):
    """JSON: one object a line, exceptions included."""

    def format(self, record: logging.LogRecord) -> str:
        head: dict[str, Any] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        shown = getattr(record, "shown", None) or {"message": record.getMessage()}
        error = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps({**head, **shown, **error})


def log_config(form: str, level: str = "warning") -> dict[str, Any]:
    """Returns what ``logging.config.dictConfig`` takes; all of it goes to standard error.

    Args:
        form: ``problems``, ``text`` or ``json``; the first has no lines for requests.
        level: from which uvicorn's messages are shown.
    """
    formatter = JsonLines if form == "json" else Lines
    requests = "WARNING" if form == "problems" else "INFO"
    loggers = {"uvicorn": level.upper(), "arcforge": "WARNING", "arcforge.requests": requests}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": formatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines", "stream": "ext://sys.stderr"}},
        "loggers": {
            name: {"level": least} if "." in name else {"level": least, "handlers": ["stderr"], "propagate": False}
            for name, least in loggers.items()
        },
    }


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
