"""Replays calls of tau2's retail, airline and telecom with inspect-evals' own classes, for comparison with ours.

A program for a process of its own: ``python tau2_there.py PACKAGE_FOLDER``. Its input is lines of JSON, each
``{"domain", "setup", "acts"}`` with calls as ``[who, name, arguments]``; each answer is the end state and which calls
failed. The parts of inspect-ai that these classes use are replaced by pydantic's own.
"""

import json
import sys
import types

from pydantic import BaseModel, ConfigDict


class ToolError(Exception):
    """A tool's refusal."""


class StoreModel(BaseModel):
    """A model without a store."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


def stand_in() -> None:
    """Puts modules in the places of inspect-ai's."""
    tool, util, model = (types.ModuleType(f"inspect_ai.{name}") for name in ("tool", "util", "model"))
    tool.ToolError = ToolError
    util.StoreModel, util.store_as = StoreModel, None
    model.Content = model.ContentText = object
    root, evals = types.ModuleType("inspect_ai"), types.ModuleType("inspect_evals")
    evals.__path__ = [f"{sys.argv[1]}/inspect_evals"]
    tau2 = types.ModuleType("inspect_evals.tau2")
    tau2.__path__ = [f"{sys.argv[1]}/inspect_evals/tau2"]
    telecom = {"inspect_ai": root, "inspect_ai.tool": tool, "inspect_ai.util": util, "inspect_ai.model": model}
    try:
        import toml  # noqa: F401
    except ImportError:
        import tomllib

        telecom["toml"] = types.ModuleType("toml")
        telecom["toml"].load = lambda file: tomllib.loads(file.read())
    sys.modules |= {**telecom, "inspect_evals": evals, "inspect_evals.tau2": tau2}


def play(row: dict) -> dict:
    """Returns the end state of some calls, and whether each was refused."""
    tools = {"assistant": TOOLS[row["domain"]]()}
    tools["assistant"].initialize()
    sync = lambda: None  # noqa: E731
    if row["domain"] == "telecom":
        tools["user"] = TelecomUserTools()
        tools["user"].initialize()
        sync = Environment(tools["user"], tools["assistant"]).sync_tools
        for who, name, arguments in row["setup"]:
            getattr(tools[who], name)(**arguments)
            sync()
    refused = []
    for who, name, arguments in row["acts"]:
        try:
            result = str(getattr(tools[who], name)(**arguments))
            bad = who == "user" and (result.startswith(("Failed", "Error")) or "not found" in result)
        except ToolError:
            bad = True
        refused.append(bad)
        sync()
    state = {who: one.db.model_dump(mode="json", exclude_none=True) for who, one in tools.items()}
    facts = {}
    if row["domain"] == "telecom":
        user = tools["user"]
        facts = {"data": user._get_mobile_data_working(), "speed": user._run_speed_test(), "mms": user._can_send_mms()}
    return {"refused": refused, "state": state, "facts": facts}


if __name__ == "__main__":
    stand_in()
    from inspect_evals.tau2.airline.AirlineAgentTools import AirlineAgentTools
    from inspect_evals.tau2.retail.RetailAgentTools import RetailAgentTools
    from inspect_evals.tau2.telecom.environment import Environment
    from inspect_evals.tau2.telecom.TelecomAgentTools import TelecomAgentTools
    from inspect_evals.tau2.telecom.TelecomUserTools import TelecomUserTools

    TOOLS = {"retail": RetailAgentTools, "airline": AirlineAgentTools, "telecom": TelecomAgentTools}
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line)), default=str), flush=True)
