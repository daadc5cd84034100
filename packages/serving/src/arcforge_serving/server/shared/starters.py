"""Suggestions of a checkpoint to people: ``page.json`` in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arcforge_core.checkpoint.starters import FILE
from arcforge_core.errors import CheckpointError


class Starters(BaseModel):
    """Questions that the model can answer, and tools of the page that it was trained to call.

    Attributes:
        base: whether it continues texts and has learned no conversation; training on documents says so.
    """

    model_config = ConfigDict(extra="forbid")

    suggestions: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=8)] = []
    tools: list[Literal["calculator"]] = []
    base: bool = False


def read_starters(folder: Path) -> Starters:
    """Returns a checkpoint's starters; empty ones where it has no ``page.json``.

    Raises:
        CheckpointError: the file is no such object.
    """
    path = folder / FILE
    if not path.is_file():
        return Starters()
    try:
        return Starters.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        raise CheckpointError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
