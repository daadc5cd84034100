"""Our tools of tau2 lead to the states of inspect-evals' classes: after gold calls, and after calls drawn at random."""

import functools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_rl.configs.environments import TAU2_DOMAINS
from arcforge_rl.dialogue.benchmark import ASSISTANT, USER, Act, read_domain
from arcforge_rl.dialogue.world import CALCULATE, TRANSFER, World

PROGRAM = Path(__file__).parents[2] / "support/tau2_there.py"
ALL = {"check", "can", "run", "get", "find", "list", "search"}
"""First words of tools that read."""


@pytest.fixture(scope="module")
def there(tau2_package):
    """Asks the package's own classes, in a process of their own."""
    command = [sys.executable, str(PROGRAM), str(tau2_package)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield functools.partial(ask, process)
    assert process.returncode == 0


def ask(process, domain, setup, acts):
    """Returns the end state of calls in the package's process."""
    row = {"domain": domain, "setup": [plain(act) for act in setup], "acts": [plain(act) for act in acts]}
    process.stdin.write(json.dumps(row) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, "the process of the package has ended"
    return json.loads(line)


def plain(act):
    return [act.who, act.name, dict(act.arguments)]


def without_none(value):
    """Returns plain data without keys whose value is None, and numbers rounded to what floats may differ in."""
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_none(one) for one in value]
    return round(float(value), 6) if isinstance(value, int | float) and not isinstance(value, bool) else value


DEFAULTS = {
    "data_refueling_gb": 0.0,
    "roaming_enabled": False,
    "activated": False,
    "goodwill_credit_used_this_year": 0.0,
}
"""Fields that the package adds to records that leave them out."""


def same_records(ours, theirs, fields):
    """Compares records by the fields that ours have; others must have the default."""
    for name, value in theirs.items():
        if name in ours:
            assert without_none(ours[name]) == without_none(value), name
        else:
            assert value == fields.get(name, None) or name in ("created_at",), (name, value)


def compare(domain, case, acts, there):
    world = World(domain, case)
    refused = [world.use(act.who, act.name, act.arguments).startswith("Error") for act in acts]
    answer = there(domain.name, case.setup, acts)
    assert refused == answer["refused"], [plain(act) for act in acts]
    state = answer["state"][ASSISTANT]
    keys = {"bills": "bill_id", "lines": "line_id", "customers": "customer_id", "plans": "plan_id",
            "devices": "device_id"}  # fmt: skip
    for table, records in state.items():
        if isinstance(records, list):
            records = {record[keys[table]]: record for record in records}
        ours = dict(world.records.all(table))
        if table == "bills":  # a draft has an id drawn at random there
            drafts = [[one for one in side.values() if one["status"] == "Draft"] for side in (ours, records)]
            assert [one["total_due"] for one in drafts[0]] == pytest.approx([one["total_due"] for one in drafts[1]])
            ours, records = ({k: v for k, v in side.items() if v["status"] != "Draft"} for side in (ours, records))
        if table == "customers":
            ours, records = (
                {k: {**v, "bill_ids": len(v["bill_ids"])} for k, v in side.items()} for side in (ours, records)
            )
        assert ours.keys() == records.keys()
        for key, record in records.items():
            same_records(ours[key], record, DEFAULTS)
    if domain.name == "telecom":
        phone = world.phone
        device = answer["state"][USER]["device"]
        theirs = {name: value for name, value in device.items() if name in phone.device and name != "vpn_details"}
        assert {name: phone.device[name] for name in theirs} == theirs
        assert without_none(phone.apn) == without_none(device["active_apn_settings"])
        assert phone.apps == {name: app["permissions"] for name, app in device["app_statuses"].items()}
        speed = answer["facts"]["speed"]
        assert (phone.has_data(), phone.sends_mms(), phone.speed()) == (
            answer["facts"]["data"], answer["facts"]["mms"], (speed[0], speed[1])
        )  # fmt: skip


def called(acts):
    return [act for act in acts if act.name not in (TRANSFER, CALCULATE)]


@pytest.mark.nightly(reason="needs the layer tau2, and builds the package's databases often")
@pytest.mark.parametrize("name", TAU2_DOMAINS)
def test_gold_calls_lead_to_the_same_state(name, tau2, there):
    domain = read_domain(tau2, name)
    base = domain.published["base"]
    for case in [case for case in domain.cases if case.key in base]:
        compare(domain, case, called(case.gold), there)


@pytest.mark.nightly(reason="needs the layer tau2, and builds the package's databases often")
@pytest.mark.parametrize("name", TAU2_DOMAINS)
def test_calls_drawn_from_all_gold_calls_lead_to_the_same_state(name, tau2, there):
    """Gold calls of other tasks, mixed and repeated, are refused or done alike."""
    domain = read_domain(tau2, name)
    acts = [act for case in domain.cases[:300] for act in called(case.gold)]
    acts += [Act(USER, tool.name, {}) for tool in domain.user_tools if not tool.parameters["required"]]
    draw = random.Random(name)
    for _ in range(40):
        case = draw.choice(domain.cases)
        compare(domain, case, draw.sample(acts, 12), there)
