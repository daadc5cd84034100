"""tau2's domains as inspect-evals packs them: databases, policies, tools and tasks, read without running its code."""

from __future__ import annotations

import functools
import gzip
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcforge_core.contracts.chat import Tool
from arcforge_core.errors import DataError
from arcforge_rl.dialogue.offered import read_tools
from arcforge_rl.dialogue.records import Table
from arcforge_rl.dialogue.telecom import KEYS
from arcforge_rl.layers.recipes import recipe_of
from arcforge_rl.layers.store import LayerStore

INSIDE = Path("inspect_evals/tau2")
"""The benchmark below the folder of the package."""
ASSISTANT, USER = "assistant", "user"
"""Who acts."""
SOURCE = "tau2-bench"
"""Head of the licence's paragraph."""


@dataclass(frozen=True)
class Act:
    """A call of a tool.

    Attributes:
        who: ``assistant`` or ``user``.
        name: of the tool.
        arguments: by name.
        compared: arguments that a required call must have; None: all.
    """

    who: str
    name: str
    arguments: Mapping[str, Any]
    compared: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Assertion:
    """A condition of the phone (``user``) or the company (``assistant``) in the end."""

    act: Act
    value: bool


@dataclass(frozen=True)
class Case:
    """One task of the benchmark.

    Attributes:
        domain, key: unique together.
        persona: of the customer; may be empty.
        scenario: the knowledge and wishes of the customer, by field.
        setup: faults and circumstances that it begins with.
        gold: the calls of a right solution, in order.
        told: texts that the customer must be told.
        assertions: of the end.
        acts: whether the gold calls themselves must be made.
    """

    domain: str
    key: str
    persona: str
    scenario: Mapping[str, str]
    setup: tuple[Act, ...]
    gold: tuple[Act, ...]
    told: tuple[str, ...]
    assertions: tuple[Assertion, ...]
    acts: bool

    @property
    def description(self) -> str:
        """The scenario as the benchmark shows it to a simulated user."""
        titles = {"domain": "Domain", "reason_for_call": "Reason for call", "known_info": "Known info",
                  "unknown_info": "Unknown info", "task_instructions": "Task instructions"}  # fmt: skip
        lines = [f"{title}:\n\t{self.scenario[name]}" for name, title in titles.items() if self.scenario.get(name)]
        return "\n".join([*([f"Persona:\n\t{self.persona}"] if self.persona else []), "Instructions:", *lines])


@dataclass(frozen=True)
class Domain:
    """One domain.

    Attributes:
        policy: the agent's instructions.
        guidelines: the simulated user's.
        tables: the database; never written.
        phone: the customer's phone, of telecom only.
        tools, user_tools: of the agent and of the user.
        cases: all tasks, in order.
        published: keys of the benchmark's own lists, by name: ``base``, ``train``, ``test``.
    """

    name: str
    policy: str
    guidelines: str
    tables: Mapping[str, Table]
    phone: Mapping[str, Any]
    tools: Sequence[Tool]
    user_tools: Sequence[Tool]
    cases: Sequence[Case]
    published: Mapping[str, frozenset[str]] = field(default_factory=dict)


def benchmark_folder(path: str) -> Path:
    """Returns the folder of the benchmark: below a chosen one, or in the layer ``tau2``.

    Raises:
        DataError: the chosen folder has none.
        LayerError: the layer is not there.
    """
    if path:
        folder = Path(path).expanduser()
        found = next((one for one in (folder / INSIDE, folder) if (one / "data/domains").is_dir()), None)
        if found is None:
            raise DataError(f"environment.path={path!r} must be a folder with {INSIDE}/data/domains, of inspect-evals")
        return found
    recipe = recipe_of("tau2")
    return LayerStore().find(recipe).folder / "tree" / recipe.prefix.lstrip("/") / INSIDE


def licence_of(folder: Path) -> str:
    """Returns package, version and licence of a benchmark's folder, in one line."""
    for info in folder.parent.parent.glob("inspect_evals-*.dist-info"):
        notice = info / "licenses/NOTICE"
        text = notice.read_text(encoding="utf-8") if notice.exists() else ""
        part = next((part for part in text.split("\n---\n") if part.strip().startswith(SOURCE)), "")
        lines = [line.strip() for line in part.strip().splitlines()[:4]]
        version = info.name.removesuffix(".dist-info").replace("-", " ")
        return f"{version}: {'; '.join(lines) or 'no notice of its source'}"
    return "no licence file in this folder"


@functools.lru_cache(maxsize=6)
def read_domain(folder: Path, name: str) -> Domain:
    """Reads one domain.

    Raises:
        DataError: a file is missing or has another form.
    """
    place = folder / "data/domains" / name
    try:
        return _read(folder, place, name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"tau2: {place} cannot be read: {type(error).__name__}: {error}") from error


def _read(folder: Path, place: Path, name: str) -> Domain:
    shared = _text(folder / "common/tools.py")
    is_telecom = name == "telecom"
    tables = _telecom_tables(place) if is_telecom else _json(place / "db.json")
    phone = tomllib.loads(_text(place / "user_db.toml")) if is_telecom else {}
    user_tools: list[Tool] = []
    if is_telecom:
        manual = f"{_text(place / 'main_policy.txt')}\n\n{_text(place / 'tech_support_manual.txt')}"
        user_tools = read_tools(_text(folder / "telecom/user_tools.py"), shared, "all_telecom_user_tools")
    policy = manual if is_telecom else _text(place / "policy.txt")
    guide = f"simulation_guidelines{'_tools' if is_telecom else ''}.txt"
    listed = {"retail": "all_retail_tools", "airline": "all_airline_tools", "telecom": "all_telecom_agent_tools"}[name]
    return Domain(
        name=name,
        policy=policy,
        guidelines=_text(folder / "data/user_simulator" / guide),
        tables=tables,
        phone=phone,
        tools=read_tools(_text(folder / name / "tools.py"), shared, listed),
        user_tools=user_tools,
        cases=[_case(name, row) for row in _json(place / "tasks.json")],
        published={key: frozenset(ids) for key, ids in json.loads(_text(place / "split_tasks.json")).items()},
    )


def _case(domain: str, row: Mapping[str, Any]) -> Case:
    wanted, start = row["evaluation_criteria"], row.get("initial_state") or {}
    scenario = row["user_scenario"]["instructions"]
    return Case(
        domain=domain,
        key=row["id"],
        persona=(row["user_scenario"].get("persona") or "").strip(),
        scenario={name: str(value).strip() for name, value in scenario.items() if value},
        setup=tuple(_function(one) for one in start.get("initialization_actions") or ()),
        gold=tuple(_act(one) for one in wanted.get("actions") or ()),
        told=tuple(wanted.get("communicate_info") or ()),
        assertions=tuple(
            Assertion(_function(one), one.get("assert_value", True)) for one in wanted.get("env_assertions") or ()
        ),
        acts="ACTION" in (wanted.get("reward_basis") or ()),
    )


def _act(row: Mapping[str, Any]) -> Act:
    compared = row.get("compare_args")
    who = row.get("requestor", ASSISTANT)
    return Act(who, row["name"], row["arguments"], None if compared is None else tuple(compared))


def _function(row: Mapping[str, Any]) -> Act:
    return Act(row["env_type"], row["func_name"], row["arguments"])


def _telecom_tables(place: Path) -> dict[str, Table]:
    found = tomllib.loads(_text(place / "db.toml"))
    return {name: {row[key]: row for row in _plain(found[name])} for name, key in KEYS.items()}


def _plain(value: Any) -> Any:
    """Returns TOML's values as JSON has them: dates are texts."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _json(path: Path) -> Any:
    """Reads a JSON file, packed or not."""
    packed = path.with_name(f"{path.name}.gz")
    return json.loads(gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes())


FAULTS = re.compile(r"^\[(\w+)\](.*?)\[PERSONA:")


def customer_of(domain: Domain, case: Case) -> str:
    """Returns what a case is split by: its customer; of telecom, which has one, the set of faults.

    A case whose gold calls name no customer is by itself.
    """
    faults = FAULTS.match(case.key)
    if domain.name == "telecom" and faults:
        return f"{faults[1]}/{'|'.join(sorted(faults[2].split('|')))}"
    owners = {"order_id": "orders", "reservation_id": "reservations"}
    text = " ".join(case.scenario.values())
    for act in case.gold:
        if "user_id" in act.arguments:
            return str(act.arguments["user_id"])
        for name, table in owners.items():
            record = domain.tables.get(table, {}).get(str(act.arguments.get(name)))
            if record is not None:
                return str(record["user_id"])
    named = [key for key in domain.tables.get("users", {}) if key in text]
    return named[0] if named else f"case/{case.key}"
