"""A small benchmark in tau2's format: its tools have our classes' signatures, its data are ours."""

import functools
import inspect
import json
import tempfile
from pathlib import Path

from arcforge_rl.dialogue.airline import Airline
from arcforge_rl.dialogue.retail import Retail
from arcforge_rl.dialogue.screen import Screen
from arcforge_rl.dialogue.telecom import Telecom
from support.trees import write_files

TELECOM_TOOLS = (
    "get_customer_by_phone", "get_customer_by_id", "get_details_by_id", "suspend_line", "resume_line",
    "get_bills_for_customer", "send_payment_request", "get_data_usage", "enable_roaming", "disable_roaming",
    "refuel_data",
)  # fmt: skip
SHARED = {"transfer_to_human_agents": "summary: str", "calculate": "expression: str"}
MANNERS = "You are in a hurry but you always stay polite with whoever talks to you today, whatever happens."
NAMES = ("ada_hall", "bob_king", "cy_lane", "di_moss", "ed_nash", "fay_orr", "gil_page", "hal_reed")
CITY = {"address1": "2 Oak Rd", "address2": "", "city": "Lima", "state": "OH", "country": "USA", "zip": "45801"}


@functools.cache
def small_benchmark() -> Path:
    """Returns a folder with ``inspect_evals/tau2``, which lasts as long as the process."""
    held = tempfile.TemporaryDirectory(prefix="tau2-small-")
    HELD.append(held)
    write(Path(held.name) / "inspect_evals/tau2")
    return Path(held.name)


HELD: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that are removed with the process."""


def write(folder: Path) -> None:
    """Writes the benchmark."""
    files = {
        "common/tools.py": "".join(source(name, given, f"Does {name}.") for name, given in SHARED.items()),
        "retail/tools.py": module(Retail, "all_retail_tools"),
        "airline/tools.py": module(Airline, "all_airline_tools"),
        "telecom/tools.py": module(Telecom, "all_telecom_agent_tools", TELECOM_TOOLS),
        "telecom/user_tools.py": module(Screen, "all_telecom_user_tools"),
        "data/user_simulator/simulation_guidelines.txt": "Play a customer. Never make anything up.",
        "data/user_simulator/simulation_guidelines_tools.txt": "Play a customer with a phone. Never make anything up.",
        "data/domains/retail/policy.txt": "Serve customers of a shop.",
        "data/domains/airline/policy.txt": "Serve customers of an airline.",
        "data/domains/telecom/main_policy.txt": "Serve customers of a telephone company.",
        "data/domains/telecom/tech_support_manual.txt": "Ask for one thing at a time.",
        "data/domains/telecom/db.toml": COMPANY,
        "data/domains/telecom/user_db.toml": PHONE,
    }
    for name, (tables, tasks) in {"retail": shop(), "airline": airline(), "telecom": ({}, faults())}.items():
        files[f"data/domains/{name}/tasks.json"] = json.dumps(tasks)
        keys = [task["id"] for task in tasks]
        files[f"data/domains/{name}/split_tasks.json"] = json.dumps({"base": keys, "test": keys[::3]})
        if tables:
            files[f"data/domains/{name}/db.json"] = json.dumps(tables)
    write_files(folder, files)


def module(kind: type, listed: str, names: tuple[str, ...] = ()) -> str:
    """Returns a module of tools, in the form of the benchmark's."""
    found = {name: made for name, made in vars(kind).items() if not name.startswith("_") and name in (names or [name])}
    shared = () if kind is Screen else tuple(SHARED) if kind is not Telecom else ("transfer_to_human_agents",)
    texts = []
    for name, made in found.items():
        parameters = list(inspect.signature(made).parameters.values())[1:]
        given = ", ".join(
            str(one).replace("'", "").replace("list[Record]", "list[dict[str, Any]]") for one in parameters
        )
        notes = "".join(f"\n            {one.name}: The {one.name}." for one in parameters)
        texts.append(
            source(name, given, f"Does {name}.\n\n        Args:{notes}\n\n        Returns:\n            Text.")
        )
    return f"{''.join(texts)}{listed} = [{', '.join([*found, *shared])}]\n"


def source(name: str, parameters: str, doc: str) -> str:
    """Returns a tool."""
    return f'def {name}():\n    async def execute({parameters}):\n        """{doc}"""\n\n    return execute\n\n\n'


def task(key, reason, known, gold, told=(), **criteria):
    """Returns a row of the benchmark's tasks."""
    scenario = {"domain": "x", "reason_for_call": reason, "known_info": known, "task_instructions": MANNERS}
    start = criteria.pop("initial_state", None)
    acts = [{"name": name, "arguments": given, "requestor": who} for who, name, given in gold]
    wanted = {"actions": acts, "communicate_info": list(told), **criteria}
    return {"id": key, "user_scenario": {"persona": None, "instructions": scenario}, "initial_state": start,
            "evaluation_criteria": wanted}  # fmt: skip


def shop():
    """A shop, in which each customer has one order; the last two tasks are to be excluded."""
    products = {"P1": {"name": "Lamp", "product_id": "P1", "variants": {
        "1000000001": {"item_id": "1000000001", "options": {"color": "red"}, "available": True, "price": 20.5},
        "1000000002": {"item_id": "1000000002", "options": {"color": "blue"}, "available": True, "price": 25.0},
        "1000000003": {"item_id": "1000000003", "options": {"color": "white"}, "available": False, "price": 9.0},
    }}}  # fmt: skip
    users, orders, tasks = {}, {}, []
    for number, name in enumerate(NAMES):
        key, order = f"{name}_100{number}", f"#W000000{number}"
        first, last = name.split("_")
        users[key] = {
            "user_id": key, "name": {"first_name": first, "last_name": last}, "address": dict(CITY),
            "email": f"{name}@example.com", "orders": [order],
            "payment_methods": {f"gift_card_{number}": {"source": "gift_card", "id": f"gift_card_{number}",
                                                        "balance": 30.0}},
        }  # fmt: skip
        status = "pending" if number % 2 else "delivered"
        orders[order] = {
            "order_id": order, "user_id": key, "address": dict(CITY), "status": status, "fulfillments": [],
            "items": [{"name": "Lamp", "product_id": "P1", "item_id": "1000000001", "price": 20.5,
                       "options": {"color": "red"}}],
            "payment_history": [{"transaction_type": "payment", "amount": 20.5,
                                 "payment_method_id": f"gift_card_{number}"}],
        }  # fmt: skip
        swap = {"order_id": order, "item_ids": ["1000000001"], "new_item_ids": ["1000000002"],
                "payment_method_id": f"gift_card_{number}"}  # fmt: skip
        verb = "modify_pending_order_items" if number % 2 else "exchange_delivered_order_items"
        gold = [("assistant", "get_order_details", {"order_id": order}), ("assistant", verb, swap)]
        reason = f"You want the blue lamp instead of the red one of order {order}, and to know what it costs more."
        tasks.append(task(str(number), reason, f"You are {key}.", gold, ["4.5"]))
    known = f"You are {NAMES[0]}_1000."
    reading = [("assistant", "get_order_details", {"order_id": "#W0000000"})]
    tasks.append(task("silent", "You want nothing to change.", known, reading))

    tasks.append(task("echo", "You want to hear 77 again.", known, [], ["77"]))
    return {"products": products, "users": users, "orders": orders}, tasks


def airline():
    """An airline, in which each customer has one reservation."""
    flights = {"HAT001": {"origin": "SFO", "destination": "JFK", "flight_number": "HAT001",
                          "scheduled_departure_time_est": "06:00:00", "scheduled_arrival_time_est": "12:00:00",
                          "dates": {"2024-05-20": {"status": "available", "available_seats": {"economy": 9},
                                                   "prices": {"economy": 100}}}}}  # fmt: skip
    users, reservations, tasks = {}, {}, []
    for number, name in enumerate(NAMES):
        key, code = f"{name}_200{number}", f"AB{number}CDE"
        card = f"gift_card_{number}"
        users[key] = {"user_id": key, "payment_methods": {card: {"source": "gift_card", "id": card, "amount": 300}},
                      "reservations": [code]}  # fmt: skip
        reservations[code] = {
            "reservation_id": code, "user_id": key, "cabin": "economy", "flights": [], "passengers": [],
            "payment_history": [{"payment_id": card, "amount": 100}], "total_baggages": 0, "nonfree_baggages": 0,
        }  # fmt: skip
        bags = {"reservation_id": code, "total_baggages": 2, "nonfree_baggages": 2, "payment_id": card}
        gold = [("assistant", "update_reservation_baggages", bags)]
        tasks.append(task(str(number), f"You want two bags in reservation {code}.", f"You are {key}.", gold))
    return {"flights": flights, "users": users, "reservations": reservations}, tasks


def faults():
    """Faults of a phone; one task needs a transfer only."""
    start = [{"env_type": "user", "func_name": "set_user_info",
              "arguments": {"name": "Ada Hall", "phone_number": "555-100-2000"}}]  # fmt: skip
    works = criteria("assert_mobile_data_status", True, "ENV_ASSERTION")
    breaks = {
        "data_mode_off": ("turn_data_off", "toggle_data"),
        "airplane_mode_on": ("turn_airplane_mode_on", "toggle_airplane_mode"),
        "unseat_sim_card": ("unseat_sim_card", "reseat_sim_card"),
    }
    tasks = []
    for one in breaks:
        for other in ("", *breaks):
            chosen = [name for name in (one, other) if name] if other > one or not other else []
            if not chosen:
                continue
            done = [{"env_type": "user", "func_name": breaks[name][0], "arguments": {}} for name in chosen]
            gold = [("user", breaks[name][1], {}) for name in chosen]
            key = f"[mobile_data_issue]{'|'.join(chosen)}[PERSONA:None]"
            reason = f"Your data does not work. You saw {' and '.join(chosen)}."
            begin = {"initialization_actions": start + done}
            tasks.append(task(key, reason, "You are Ada Hall.", gold, initial_state=begin, **works))
    locked = [{"env_type": "user", "func_name": "lock_sim_card", "arguments": {"mode": "pin"}}]
    none = criteria("assert_service_status", "no_service", "ACTION")
    gold = [("assistant", "transfer_to_human_agents", {"summary": "no"})]
    key, begin = "[service_issue]lock_sim_card_pin[PERSONA:None]", {"initialization_actions": start + locked}
    tasks.append(task(key, "Your phone is locked.", "You are Ada Hall.", gold, initial_state=begin, **none))
    tasks[-1]["evaluation_criteria"]["actions"][0]["compare_args"] = []
    return tasks


def criteria(assertion, value, basis):
    """Returns what must hold in the end."""
    held = {"env_type": "user", "func_name": assertion, "arguments": {"expected_status": value}}
    return {"env_assertions": [held], "reward_basis": [basis]}


COMPANY = """
[[plans]]
plan_id = "P1"
name = "Basic"
data_limit_gb = 5.0
price_per_month = 40.0
data_refueling_price_per_gb = 5.0
[[devices]]
device_id = "D1001"
[[lines]]
line_id = "L1001"
phone_number = "555-100-2000"
status = "Active"
plan_id = "P1"
data_used_gb = 1.0
[[bills]]
bill_id = "B1001"
customer_id = "C1001"
issue_date = 2025-01-05
total_due = 40.0
status = "Paid"
line_items = []
[[customers]]
customer_id = "C1001"
full_name = "Ada Hall"
date_of_birth = "1990-01-01"
phone_number = "555-100-2000"
line_ids = ["L1001"]
bill_ids = ["B1001"]
"""
PHONE = """
[device]
battery_level = 80
[device.app_statuses.messaging]
app_name = "messaging"
[device.app_statuses.messaging.permissions]
sms = true
storage = true
phone = true
network = false
"""
