"""The built-in Jinja chat templates."""

from __future__ import annotations

from importlib.resources import files

BUILT_IN = ("chatml", "glm5", "llama3")


def built_in(name: str) -> str:
    """Returns the text of a template in `BUILT_IN`."""
    return (files("arcforge_core.tokenizer") / f"{name}.jinja").read_text(encoding="utf-8")
