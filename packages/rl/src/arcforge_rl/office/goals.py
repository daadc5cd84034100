"""Generated offices and goals: the request, the calls that fulfil it, and scripts that only seem to."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arcforge_rl.office.services import DAYS, SERVICES, SLOTS, Records

KINDS = ("paper", "toner", "chairs", "lamps", "cables", "desks")
PEOPLE = ("Ada", "Ben", "Carla", "Dmitri", "Elif", "Farid", "Greta", "Hugo")
FIRMS = ("Alder", "Birch", "Cypress", "Dogwood")
TITLES = ("review", "call", "training", "interview", "lunch", "planning")
SHOP = "acc-store"
Step = tuple[str, dict[str, Any]]
"""Name of a tool, and its arguments."""


@dataclass(frozen=True)
class Goal:
    """One thing to be done.

    Attributes:
        kind: of the goal.
        text: for the agent.
        records: name of a server -> its records before.
        gold: the calls that do it.
        cheats: calls that do something else.
    """

    kind: str
    text: str
    records: dict[str, Records]
    gold: Sequence[Step]
    cheats: Sequence[Sequence[Step]]


def draw_goal(draw: random.Random, kind: str) -> Goal:
    """Draws an office and a goal of a kind in it; equal states of the generator give equal ones.

    The gold calls all succeed and change something, and no cheat ends in the same records.
    """
    while True:
        goal = GOALS[kind](draw, _office(draw))
        try:
            end = replay(goal.records, goal.gold, strict=True)
        except ValueError:  # an account has too little
            continue
        if all(replay(goal.records, steps) != end for steps in ((), *goal.cheats)):
            return goal


def replay(records: dict[str, Records], steps: Sequence[Step], strict: bool = False) -> dict[str, Records]:
    """Returns the records after some calls; a call that is refused changes nothing.

    Raises:
        ValueError: a call is refused, if `strict`.
    """
    services = {name: SERVICES[name](copy.deepcopy(own)) for name, own in records.items()}
    for name, arguments in steps:
        service = next(one for one in services.values() if hasattr(one, name))
        try:
            getattr(service, name)(**arguments)
        except ValueError:
            if strict:
                raise
    return {name: service.records for name, service in services.items()}


def _office(draw: random.Random) -> dict[str, Records]:
    products: dict[str, Any] = {}
    for kind in KINDS:
        prices = draw.sample(range(120, 9_900), 4)
        for price in prices:
            name = f"{kind}-{draw.randint(100, 999)}-{len(products)}"
            products[name] = {"kind": kind, "price": price, "stock": draw.randint(2, 40)}
    accounts: dict[str, Any] = {SHOP: {"owner": "store", "balance": 1_000_000}}
    for firm in FIRMS:
        for number, balance in enumerate(draw.sample(range(50_000, 2_000_000), 3)):
            accounts[f"acc-{firm.lower()}-{number}"] = {"owner": firm, "balance": balance}
    people: dict[str, Any] = {}
    for person in PEOPLE:
        taken = sorted(draw.sample([(day, slot) for day in range(1, DAYS + 1) for slot in range(1, SLOTS + 1)], 14))
        people[person] = [{"day": day, "slot": slot, "title": draw.choice(TITLES)} for day, slot in taken]
    return {
        "store": {"products": products, "orders": {}}, "bank": {"accounts": accounts, "payments": []},
        "calendar": {"people": people},
    }  # fmt: skip


def _free(office: dict[str, Records], people: Sequence[str], day: int) -> list[int]:
    taken = {one["slot"] for person in people for one in office["calendar"]["people"][person] if one["day"] == day}
    return [slot for slot in range(1, SLOTS + 1) if slot not in taken]


def _richest(office: dict[str, Records], owner: str) -> list[str]:
    own = {name: one["balance"] for name, one in office["bank"]["accounts"].items() if one["owner"] == owner}
    return sorted(own, key=own.__getitem__, reverse=True)


def _purchase(draw: random.Random, office: dict[str, Records]) -> Goal:
    kind, firm, person, day = draw.choice(KINDS), draw.choice(FIRMS), draw.choice(PEOPLE), draw.randint(1, DAYS)
    offers = {name: one for name, one in office["store"]["products"].items() if one["kind"] == kind}
    count = draw.randint(2, max(one["stock"] for one in offers.values()))
    enough = sorted((one["price"], name) for name, one in offers.items() if one["stock"] >= count)
    (price, product), other = enough[0], max(offers, key=lambda name: offers[name]["price"])
    payer, poor = _richest(office, firm)[0], _richest(office, firm)[-1]
    slot = _free(office, [person], day)[0]
    text = (
        f"Order {count} of the cheapest {kind} of which {count} are in stock. Pay the total from the account of "
        f"{firm} with the highest balance to {SHOP}, with the order's name as the purpose. Then enter 'delivery' in "
        f"{person}'s first free slot of day {day}."
    )
    ordered: Step = ("order", {"product": product, "count": count})
    paid = {"source": payer, "target": SHOP, "cents": count * price, "purpose": "order-1"}
    entered: Step = ("enter", {"person": person, "day": day, "slot": slot, "title": "delivery"})
    cheats: list[list[Step]] = [
        [ordered, ("pay", paid)], [ordered, entered],
        [ordered, ("pay", {**paid, "source": poor}), entered],
        [ordered, ("pay", {**paid, "purpose": "order"}), entered],
        [ordered, ordered, ("pay", paid), entered], [ordered, ("pay", paid), ("pay", paid), entered],
    ]  # fmt: skip
    if other != product:
        cheats.append(
            [("order", {"product": other, "count": min(count, offers[other]["stock"])}), ("pay", paid), entered]
        )
    looked: list[Step] = [("list_products", {"kind": kind}), ("list_accounts", {"owner": firm}),
                          ("entries", {"person": person, "day": day})]  # fmt: skip
    return Goal("purchase", text, office, [*looked, ordered, ("pay", paid), entered], cheats)


def _meeting(draw: random.Random, office: dict[str, Records]) -> Goal:
    title = draw.choice(TITLES)
    while True:
        people, day = draw.sample(PEOPLE, 3), draw.randint(1, DAYS)
        if common := _free(office, people, day):
            break
    slot = common[0]
    wrong = next((one for one in _free(office, people[:1], day) if one != slot), None)
    text = (
        f"Find the first slot of day {day} in which {people[0]}, {people[1]} and {people[2]} are all free, and "
        f"enter '{title}' there for each of them."
    )
    looked: list[Step] = [("entries", {"person": person, "day": day}) for person in people]
    entered: list[Step] = [("enter", {"person": person, "day": day, "slot": slot, "title": title}) for person in people]
    cheats: list[list[Step]] = [looked, entered[:2], [*entered[:2], ("enter", {**entered[2][1], "title": "meeting"})]]
    if wrong is not None:
        cheats.append([("enter", {**one[1], "slot": wrong}) for one in entered])
    return Goal("meeting", text, office, [*looked, *entered], cheats)


def _refund(draw: random.Random, office: dict[str, Records]) -> Goal:
    person, products = draw.choice(PEOPLE), sorted(office["store"]["products"])
    for number in range(1, 4):
        product = draw.choice([name for name in products if office["store"]["products"][name]["stock"]])
        firm, one = draw.choice(FIRMS), office["store"]["products"][product]
        count = draw.randint(1, one["stock"])
        office = replay(office, [
            ("order", {"product": product, "count": count}),
            ("pay", {"source": draw.choice(_richest(office, firm)), "target": SHOP, "cents": count * one["price"],
                     "purpose": f"order-{number}"}),
        ])  # fmt: skip
    payments = office["bank"]["payments"]
    if not payments:
        return _refund(draw, office)
    paid = draw.choice(payments)
    order, own = paid["purpose"], office["calendar"]["people"][person]
    entry = draw.choice(own)
    text = (
        f"{order} is not wanted any more: cancel it, pay its total back from {SHOP} to the account that paid it, "
        f"with the purpose 'refund', and remove {person}'s entry in slot {entry['slot']} of day {entry['day']}."
    )
    cancelled: Step = ("cancel_order", {"order": order})
    back = {"source": SHOP, "target": paid["source"], "cents": paid["cents"], "purpose": "refund"}
    removed: Step = ("remove", {"person": person, "day": entry["day"], "slot": entry["slot"]})
    elsewhere = next(name for name in office["bank"]["accounts"] if name not in (SHOP, paid["source"]))
    cheats: list[list[Step]] = [
        [cancelled, ("pay", back)], [cancelled, removed], [("pay", back), removed],
        [cancelled, ("pay", {**back, "target": elsewhere}), removed],
        [cancelled, ("pay", {**back, "cents": back["cents"] + 1}), removed],
    ]  # fmt: skip
    looked: list[Step] = [("show_order", {"order": order}), ("list_payments", {"account": SHOP})]
    return Goal("refund", text, office, [*looked, cancelled, ("pay", back), removed], cheats)


GOALS: dict[str, Callable[[random.Random, dict[str, Records]], Goal]] = {
    "purchase": _purchase, "meeting": _meeting, "refund": _refund,
}  # fmt: skip
"""Kind -> what draws it."""
