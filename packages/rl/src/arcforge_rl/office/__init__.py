"""An office of three MCP servers, with generated records and goals."""
