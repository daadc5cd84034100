"""arcforge serving: an engine for programs and an OpenAI-compatible server.

Importing this package stays cheap; torch is imported when a name below is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arcforge_core import __version__

if TYPE_CHECKING:
    from arcforge_core.contracts.engine import SamplingParams
    from arcforge_serving.engine.facade import Engine

__all__ = ["Engine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from arcforge_serving.engine.facade import Engine

        return Engine
    if name == "SamplingParams":
        from arcforge_core.contracts.engine import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
