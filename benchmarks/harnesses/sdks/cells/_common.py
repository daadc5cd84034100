"""What all cells ask for, and the program around them: ``python SDK_cells.py CELL URL``."""

import sys

ASK, WEATHER_OF = "What is the weather in Paris?", "sunny, 21 degrees"
TEXT = "It is 21 degrees in Paris."
KEY = "none"


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    CALLED.append(city)
    return WEATHER_OF


CALLED: list[str] = []
"""Cities that a tool was called with."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
TOOL = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def main(cells: dict) -> None:
    """Runs the cell that the command line names."""
    _, cell, url = sys.argv
    cells[cell](url)
