"""An MCP server with a few tools, over its standard streams."""

import asyncio
from collections.abc import Callable

from mcp.server.mcpserver import MCPServer

server = MCPServer("texts")
asleep: list[Callable[[], None]] = []
"""Called when the tool sleeps."""


@server.tool()
def shout(text: str) -> str:
    """Writes a text in capitals."""
    return text.upper()


@server.tool()
def refuse(text: str) -> str:
    raise ValueError(f"no {text}")


@server.tool()
async def sleep(text: str) -> str:
    for call in asleep:
        call()
    await asyncio.sleep(60)
    return text


if __name__ == "__main__":
    server.run("stdio")
