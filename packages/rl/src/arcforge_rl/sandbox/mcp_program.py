"""An MCP server over standard streams, for one service: ``python -I mcp_program.py SERVICES.py NAME RECORDS.json``.

Plain Python without imports of ours: it runs in sandboxes. A service is made of its records. Its public methods are its
tools, unless it has ``_tools``, their definitions by name, and ``_call(name, arguments)``, which returns a text and
raises `ValueError` for a wrong call. Its ``records`` are the resource `STATE`. Its prints go to standard error.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from typing import Any, get_type_hints

STATE = "state://records"
TYPES = {str: "string", int: "integer"}


def tools_of(service: Any) -> dict[str, dict[str, Any]]:
    """Returns the definitions of a service's tools by name."""
    given: dict[str, dict[str, Any]] | None = getattr(service, "_tools", None)
    if given is not None:
        return given
    found = {}
    for name, method in inspect.getmembers(service, inspect.ismethod):
        if name.startswith("_"):
            continue
        hints = {key: value for key, value in get_type_hints(method).items() if key != "return"}
        schema = {
            "type": "object", "properties": {key: {"type": TYPES[hint]} for key, hint in hints.items()},
            "required": [*hints], "additionalProperties": False,
        }  # fmt: skip
        found[name] = {"name": name, "description": inspect.getdoc(method) or "", "inputSchema": schema}
    return found


def called(service: Any, tools: dict[str, dict[str, Any]], name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    """Returns the text of a call's result, and whether it is an error."""
    if name not in tools:
        return f"Error: there is no tool {name!r}", True
    properties = tools[name]["inputSchema"]["properties"]
    needed = tools[name]["inputSchema"]["required"]
    if not set(needed) <= set(arguments) <= set(properties):
        return f"Error: {name} takes {', '.join(properties)}", True
    try:
        if hasattr(service, "_call"):
            return str(service._call(name, arguments)), False
        for key, value in arguments.items():
            if properties[key]["type"] == "string" and not isinstance(value, str):
                return f"Error: {key}={value!r}: must be a text", True
        return json.dumps(getattr(service, name)(**arguments)), False
    except ValueError as error:
        return f"Error: {error}", True


def answer(service: Any, tools: dict[str, dict[str, Any]], method: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the result of a request; None for an unknown method."""
    if method == "initialize":
        return {
            "protocolVersion": given.get("protocolVersion", ""), "capabilities": {"tools": {}, "resources": {}},
            "serverInfo": {"name": type(service).__name__, "version": "1"},
        }  # fmt: skip
    if method == "tools/list":
        return {"tools": [*tools.values()]}
    if method == "tools/call":
        text, bad = called(service, tools, given["name"], given.get("arguments") or {})
        return {"content": [{"type": "text", "text": text}], "isError": bad}
    if method == "resources/list":
        return {"resources": [{"uri": STATE, "name": "records"}]}
    if method == "resources/read" and given.get("uri") == STATE:
        return {"contents": [{"uri": STATE, "mimeType": "application/json", "text": json.dumps(service.records)}]}
    return {} if method == "ping" else None


def main(source: str, name: str, records: str) -> None:
    """Answers one message a line, until the input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # packages that print must not write messages
    module: dict[str, Any] = {"__name__": "services"}
    with open(source, encoding="utf-8") as file:
        exec(compile(file.read(), source, "exec"), module)
    with open(records, encoding="utf-8") as file:
        service = module["SERVICES"][name](json.load(file))
    tools = tools_of(service)
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked or "method" not in asked:
            continue
        result = answer(service, tools, asked["method"], asked.get("params") or {})
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": f"{asked['method']} is not known"}
        else:
            reply["result"] = result
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
