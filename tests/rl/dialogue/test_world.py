"""Texts that count as told, the overlay of records, and units of the split."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.dialogue.audit import audit
from arcforge_rl.dialogue.benchmark import benchmark_folder, customer_of, read_domain
from arcforge_rl.dialogue.person import first_person
from arcforge_rl.dialogue.records import Records, ToolRefusal
from arcforge_rl.dialogue.world import LONGEST_SAID, World, untold
from support.tau2_small import small_benchmark

FOLDER = benchmark_folder(str(small_benchmark()))


@pytest.mark.parametrize(
    ("wanted", "said", "known"),
    [
        ("481.50", "It costs $481.5 in all.", True),
        ("1628", "You get back 1,628 dollars", True),
        ("10", "There are 10 of them.", True),
        ("10", "There are 100, or 3.10, of them.", False),
        ("4", "four", False),
        ("943 Maple Drive", "It goes to 943  maple drive.", True),
        ("IL", "It will be there.", False),
        ("polyester", "non-polyesterish", False),
        ("7", "7 " + "x" * LONGEST_SAID, False),
        ("7", " ".join(map(str, range(40))), False),
    ],
)
def test_told(wanted, said, known):
    assert (untold([wanted], [said], []) == "") == known


def test_numbers_from_tools_are_no_guesses():
    listing = " ".join(map(str, range(40)))
    assert untold(["7"], [listing], [listing]) == ""


def test_first_person():
    said = first_person("You are Ada. You want your lamp, and the agent to tell you. You're in a hurry, yourself.")
    assert said == "I am Ada. I want my lamp, and the agent to tell me. I'm in a hurry, myself."


BASE = {"orders": {"a": {"items": [1]}, "b": {"items": [2]}}}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=8))
def test_the_base_is_never_written_and_changes_are_what_differs(steps):
    records, plain = Records(BASE), copy.deepcopy(BASE["orders"])
    for key, value in steps:
        if key == "c":
            records.put("orders", "c", {"items": [value]})
            plain["c"] = {"items": [value]}
        else:
            records.edit("orders", key, "none")["items"][0] = value
            plain[key]["items"][0] = value
    assert BASE == {"orders": {"a": {"items": [1]}, "b": {"items": [2]}}}
    assert dict(records.all("orders")) == plain
    assert records.changes().get("orders", {}) == {k: v for k, v in plain.items() if v != BASE["orders"].get(k)}
    with pytest.raises(ToolRefusal, match="no such"):
        records.get("orders", "z", "no such")


def test_units_of_the_split():
    retail, telecom = read_domain(FOLDER, "retail"), read_domain(FOLDER, "telecom")
    assert customer_of(retail, retail.cases[0]) == "ada_hall_1000"
    assert customer_of(telecom, telecom.cases[0]) == "mobile_data_issue/data_mode_off"


def test_gold_calls_that_a_tool_refuses_are_counted_and_a_wrong_gold_excluded():
    telecom = read_domain(FOLDER, "telecom")
    case = telecom.cases[0]
    broken = audit(telecom, type(case)(**{**vars(case), "gold": ()}))
    assert broken.excluded.startswith("the gold replay earns 0: assert_mobile_data_status(True) does not hold")
    airline = read_domain(FOLDER, "airline")
    act = airline.cases[0].gold[0]
    strange = type(act)(act.who, act.name, {**act.arguments, "payment_id": "gift_card_9"})
    found = audit(airline, type(case)(**{**vars(airline.cases[0]), "gold": (strange, act)}))
    assert (found.failing, found.excluded) == (1, "")


def test_a_payment_reaches_the_company():
    telecom = read_domain(FOLDER, "telecom")
    world = World(telecom, telecom.cases[0])
    assert "Payment request sent" in world.use(
        "assistant", "send_payment_request", {"customer_id": "C1001", "bill_id": "B1001"}
    )
    assert "bill B1001 of 40.0 USD" in world.use("user", "check_payment_request", {})
    world.use("user", "make_payment", {})
    assert "Paid" in world.use("assistant", "get_details_by_id", {"id": "B1001"})
    assert world.use("user", "check_payment_request", {}) == "There is no payment request."
