"""The office's MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from arcforge_rl.office.services import Records
from arcforge_rl.sandbox.mcp_servers import Servers, Service


def office_servers(records: Mapping[str, Records]) -> Servers:
    """Returns the servers of an episode.

    Args:
        records: name of a service -> its records.
    """
    source = resources.files("arcforge_rl.office").joinpath("services.py").read_text(encoding="utf-8")
    return Servers({name: Service(source, name, own) for name, own in records.items()})
