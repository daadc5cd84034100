"""The office's services: a store, a bank and calendars. Plain Python without imports of ours: it runs in sandboxes.

Public methods are tools; their annotations and docstrings describe them. A wrong call raises `ValueError`, and changes
nothing. `records` is the whole state.
"""

from __future__ import annotations

from typing import Any

SLOTS = 8
"""Of a day, from 1."""
DAYS = 5
Records = dict[str, Any]


def _known(found: dict[str, Any], name: str, what: str) -> Any:
    if name not in found:
        raise ValueError(f"there is no {what} {name!r}")
    return found[name]


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: must be a whole number from {least} to {most}")
    return value


class Store:
    """Products and orders."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def list_products(self, kind: str) -> Any:
        """Lists the products of a kind, with prices in cents and stock."""
        found = [{"product": name, **one} for name, one in self.records["products"].items() if one["kind"] == kind]
        if not found:
            kinds = sorted({one["kind"] for one in self.records["products"].values()})
            raise ValueError(f"there is no kind {kind!r}; known: {', '.join(kinds)}")
        return found

    def order(self, product: str, count: int) -> Any:
        """Orders a number of a product, which must be in stock; returns the order with its total in cents."""
        one = _known(self.records["products"], product, "product")
        _whole(count, "count", 1, one["stock"])
        one["stock"] -= count
        name = f"order-{len(self.records['orders']) + 1}"
        self.records["orders"][name] = {
            "product": product, "count": count, "total": count * one["price"], "state": "open",
        }  # fmt: skip
        return {"order": name, **self.records["orders"][name]}

    def show_order(self, order: str) -> Any:
        """Shows an order."""
        return {"order": order, **_known(self.records["orders"], order, "order")}

    def cancel_order(self, order: str) -> Any:
        """Cancels an open order; its products are in stock again."""
        one = _known(self.records["orders"], order, "order")
        if one["state"] != "open":
            raise ValueError(f"{order} is {one['state']}")
        one["state"] = "cancelled"
        self.records["products"][one["product"]]["stock"] += one["count"]
        return {"order": order, **one}


class Bank:
    """Accounts and payments."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def list_accounts(self, owner: str) -> Any:
        """Lists the accounts of an owner, with balances in cents."""
        found = [{"account": name, **one} for name, one in self.records["accounts"].items() if one["owner"] == owner]
        if not found:
            raise ValueError(f"{owner!r} has no account")
        return found

    def list_payments(self, account: str) -> Any:
        """Lists the payments from and to an account."""
        _known(self.records["accounts"], account, "account")
        return [one for one in self.records["payments"] if account in (one["source"], one["target"])]

    def pay(self, source: str, target: str, cents: int, purpose: str) -> Any:
        """Pays from an account to another one, with the purpose as a text."""
        giver = _known(self.records["accounts"], source, "account")
        taker = _known(self.records["accounts"], target, "account")
        if source == target:
            raise ValueError("source and target are the same account")
        _whole(cents, "cents", 1, giver["balance"])
        giver["balance"] -= cents
        taker["balance"] += cents
        payment = {"source": source, "target": target, "cents": cents, "purpose": purpose}
        self.records["payments"].append(payment)
        return payment


class Calendar:
    """Entries of people, in slots of days."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def entries(self, person: str, day: int) -> Any:
        """Lists a person's entries on a day, by slot."""
        _known(self.records["people"], person, "person")
        _whole(day, "day", 1, DAYS)
        return [one for one in self.records["people"][person] if one["day"] == day]

    def enter(self, person: str, day: int, slot: int, title: str) -> Any:
        """Makes an entry in a free slot."""
        own = _known(self.records["people"], person, "person")
        _whole(day, "day", 1, DAYS)
        _whole(slot, "slot", 1, SLOTS)
        if any((one["day"], one["slot"]) == (day, slot) for one in own):
            raise ValueError(f"slot {slot} of day {day} is taken")
        own.append({"day": day, "slot": slot, "title": title})
        own.sort(key=lambda one: (one["day"], one["slot"]))
        return {"person": person, "day": day, "slot": slot, "title": title}

    def remove(self, person: str, day: int, slot: int) -> Any:
        """Removes the entry of a slot."""
        own = _known(self.records["people"], person, "person")
        for one in own:
            if (one["day"], one["slot"]) == (day, slot):
                own.remove(one)
                return {"removed": one["title"]}
        raise ValueError(f"{person} has no entry in slot {slot} of day {day}")


SERVICES: dict[str, Any] = {"store": Store, "bank": Bank, "calendar": Calendar}
"""Name of a server -> its class."""
