"""TypeScript repositories, tested with vitest, node:test, tape or mocha; tsx loads what Vite does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from arcforge_rl.swe.languages.base import Bug
from arcforge_rl.swe.languages.javascript.language import GRAMMAR, JavaScript
from arcforge_rl.swe.languages.javascript.setup import declared
from arcforge_rl.swe.languages.syntax import syntax_bugs

ELEMENT = re.compile(r"</[\w.]*>|/>")
"""JSX, which has a grammar of its own."""


class TypeScript(JavaScript):
    """JavaScript's runners; types are removed by esbuild, which tsx and Vite use, and never checked."""

    name = "typescript"
    typed: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]] = (".ts", ".mts", ".cts", ".tsx")
    settings: ClassVar[tuple[str, ...]] = (*JavaScript.settings, "tsconfig.json")
    not_code = re.compile(rf"{JavaScript.not_code.pattern}|(^|/)[\w.-]+\.(config|d)\.[cm]?ts$|^(deno|bench\w*)/")

    def _named(self, path: str) -> bool:
        return re.search(r"(^|[./_-])(test|spec)\.[cm]?tsx?$", path) is not None

    def declared(self, tree: Path) -> list[str]:
        """Returns dependencies, modules that tests load, the runner, and tsx."""
        return declared(tree, self.test_files(tree), ("tsx",))

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of the syntax tree."""
        factory = "language_tsx" if ELEMENT.search(text) else "language_typescript"
        return syntax_bugs(replace(GRAMMAR, module="tree_sitter_typescript", factory=factory), text, seed)
