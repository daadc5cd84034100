"""Schema of labelling by hand; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import check_between, check_minimums
from arcforge_core.errors import ConfigError


@dataclass
class LabelConfig:
    """The root of ``arcforge-env label``: people judge replies without knowing who wrote them."""

    items: str = ""
    """jsonl of items: ``prompt`` with ``chosen`` and ``rejected``, or with two ``replies``; with `rubric`,
    ``prompt`` with ``reply``. Optional ``author_chosen`` and ``author_rejected``, or two ``authors``, are never
    shown."""
    output: str = "labels.jsonl"
    """File that each judgement is added to. Further runs continue it; several labellers may share it, in turn."""
    labeller: str = ""
    """Name of who judges."""
    rubric: str | None = None
    """File with criteria; each reply is judged by all of them. null: pairs are compared."""
    anchors: str | None = None
    """With `rubric`: file for the judgements as ``[[anchor]]`` tables of a rubric, written at the end."""
    port: int | None = None
    """Port of a page for this machine alone, at 127.0.0.1; 0 takes a free one. null: questions in the terminal."""
    limit: int | None = None
    """Items at most; null takes all."""
    seed: int = 0
    """Of the order of the items and of the two replies, which differ between labellers, too."""

    def __post_init__(self) -> None:
        check_minimums(self, "", limit=1, seed=0)
        if self.port is not None:
            check_between("port", self.port, 0, 65535)
        if not self.items:
            raise ConfigError("items", "", "must name a jsonl file of replies to judge")
        if not self.labeller.strip() or not self.labeller.isprintable():
            raise ConfigError("labeller", self.labeller, "must name who judges, in printable characters")
        if self.anchors is not None and self.rubric is None:
            raise ConfigError("anchors", self.anchors, "needs rubric=FILE: pairs have no criteria")
