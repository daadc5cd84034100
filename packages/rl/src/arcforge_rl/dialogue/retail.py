"""tau2's retail shop: effects of its tools on orders, users and products.

The rules are those of tau2-bench (Sierra Research, MIT), https://github.com/sierra-research/tau2-bench, as
inspect-evals 0.26.0 has them; `tests/rl/dialogue/test_parity.py` compares both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from arcforge_rl.dialogue.records import Record, Records, ToolRefusal

REASONS = ("no longer needed", "ordered by mistake")


class Retail:
    """The tools of the shop's agent; each method is one."""

    def __init__(self, records: Records) -> None:
        self.records = records

    # ---- reading -----------------------------------------------------------------------------------------------------

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        for key, user in self.records.all("users"):
            name = user["name"]
            same = (name["first_name"].lower(), name["last_name"].lower()) == (first_name.lower(), last_name.lower())
            if same and user["address"]["zip"] == zip:
                return key
        raise ToolRefusal("User not found")

    def find_user_id_by_email(self, email: str) -> str:
        for key, user in self.records.all("users"):
            if user["email"].lower() == email.lower():
                return key
        raise ToolRefusal("User not found")

    def get_order_details(self, order_id: str) -> str:
        return json.dumps(self._order(order_id))

    def get_product_details(self, product_id: str) -> str:
        return json.dumps(self._product(product_id))

    def get_user_details(self, user_id: str) -> str:
        return json.dumps(self._user(user_id))

    def list_all_product_types(self) -> str:
        return json.dumps({product["name"]: key for key, product in self.records.all("products")})

    # ---- writing -----------------------------------------------------------------------------------------------------

    def cancel_pending_order(self, order_id: str, reason: str) -> str:
        if self._order(order_id)["status"] != "pending":
            raise ToolRefusal("Non-pending order cannot be cancelled")
        if reason not in REASONS:
            raise ToolRefusal("Invalid reason")
        order = self._edited(order_id)
        refunds = []
        for payment in order["payment_history"]:
            refunds.append({**payment, "transaction_type": "refund"})
            self._pay(order["user_id"], payment["payment_method_id"], -payment["amount"])
        order["status"], order["cancel_reason"] = "cancelled", reason
        order["payment_history"] += refunds
        return json.dumps(order)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        order = self._order(order_id)
        if order["status"] != "delivered":
            raise ToolRefusal("Non-delivered order cannot be exchanged")
        _check_items(order, item_ids, "Number of {} not found.")
        variants = self._replacements(order, item_ids, new_item_ids)
        difference = round(_difference(variants), 2)
        self._check_balance(order["user_id"], payment_method_id, difference, "to pay for the price difference")
        order = self._edited(order_id)
        order["status"] = "exchange requested"
        order["exchange_items"], order["exchange_new_items"] = sorted(item_ids), sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_method_id
        order["exchange_price_difference"] = difference
        return json.dumps(order)

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        if "pending" not in self._order(order_id)["status"]:
            raise ToolRefusal("Non-pending order cannot be modified")
        order = self._edited(order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return json.dumps(order)

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        order = self._order(order_id)
        if order["status"] != "pending":
            raise ToolRefusal("Non-pending order cannot be modified")
        _check_items(order, item_ids, "{} not found")
        variants = self._replacements(order, item_ids, new_item_ids, differ=True)
        difference = _difference(variants)
        self._check_balance(order["user_id"], payment_method_id, difference, "to pay for the new item")
        order = self._edited(order_id)
        kind = "payment" if difference > 0 else "refund"
        payment = {"transaction_type": kind, "amount": abs(difference), "payment_method_id": payment_method_id}
        order["payment_history"].append(payment)
        self._pay(order["user_id"], payment_method_id, difference)
        last = variants[-1][1] if variants else None
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = next((item for item in order["items"] if item["item_id"] == item_id), None)
            if item is None or last is None:
                raise ToolRefusal(f"Item {item_id} not found")
            # the benchmark gives every item the price and options of the last one; its gold states have them
            item |= {"item_id": new_item_id, "price": last["price"], "options": dict(last["options"])}
        order["status"] = "pending (item modified)"
        return json.dumps(order)

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> str:
        order = self._order(order_id)
        if "pending" not in order["status"]:
            raise ToolRefusal("Non-pending order cannot be modified")
        self._method(order["user_id"], payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolRefusal("There should be exactly one payment for a pending order")
        old, amount = history[0]["payment_method_id"], history[0]["amount"]
        if old == payment_method_id:
            raise ToolRefusal("The new payment method should be different from the current one")
        self._check_balance(order["user_id"], payment_method_id, amount, "to pay for the order")
        order = self._edited(order_id)
        for kind, method in (("payment", payment_method_id), ("refund", old)):
            order["payment_history"].append({"transaction_type": kind, "amount": amount, "payment_method_id": method})
        self._pay(order["user_id"], payment_method_id, amount)
        self._pay(order["user_id"], old, -amount)
        return json.dumps(order)

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        user = self.records.edit("users", user_id, "User not found")
        user["address"] = _address(address1, address2, city, state, country, zip)
        return json.dumps(user)

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> str:
        order = self._order(order_id)
        if order["status"] != "delivered":
            raise ToolRefusal("Non-delivered order cannot be returned")
        method = self._method(order["user_id"], payment_method_id)
        original = order["payment_history"][0]["payment_method_id"]
        if method["source"] != "gift_card" and payment_method_id != original:
            raise ToolRefusal("Payment method should be the original payment method")
        _check_items(order, item_ids, "Some item not found")
        order = self._edited(order_id)
        order["status"], order["return_items"] = "return requested", sorted(item_ids)
        order["return_payment_method_id"] = payment_method_id
        return json.dumps(order)

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _order(self, order_id: str) -> Record:
        return self.records.get("orders", order_id, "Order not found")

    def _edited(self, order_id: str) -> Record:
        return self.records.edit("orders", order_id, "Order not found")

    def _user(self, user_id: str) -> Record:
        return self.records.get("users", user_id, "User not found")

    def _product(self, product_id: str) -> Record:
        return self.records.get("products", product_id, "Product not found")

    def _method(self, user_id: str, method: str) -> Record:
        methods: dict[str, Record] = self._user(user_id)["payment_methods"]
        if method not in methods:
            raise ToolRefusal("Payment method not found")
        return methods[method]

    def _check_balance(self, user_id: str, method: str, amount: float, purpose: str) -> None:
        found = self._method(user_id, method)
        if found["source"] == "gift_card" and found["balance"] < amount:
            raise ToolRefusal(f"Insufficient gift card balance {purpose}")

    def _pay(self, user_id: str, method: str, amount: float) -> None:
        """Takes an amount from a gift card; a negative one is added. Other methods have no balance here."""
        if self._method(user_id, method)["source"] == "gift_card":
            card = self.records.edit("users", user_id, "User not found")["payment_methods"][method]
            card["balance"] = round(card["balance"] - amount, 2)

    def _replacements(
        self, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str], differ: bool = False
    ) -> list[tuple[Record, Record]]:
        """Returns the old items with the new variants of their products."""
        if len(item_ids) != len(new_item_ids):
            raise ToolRefusal(f"The number of items to be exchanged should match{'' if differ else '.'}")
        found = []
        for old, new in zip(item_ids, new_item_ids, strict=True):
            if differ and old == new:
                raise ToolRefusal("The new item id should be different from the old item id")
            item = next((item for item in order["items"] if item["item_id"] == old), None)
            if item is None:
                raise ToolRefusal(f"Item {old} not found")
            variant = self._product(item["product_id"])["variants"].get(new)
            if variant is None:
                raise ToolRefusal("Variant not found")
            if not variant["available"]:
                raise ToolRefusal(f"New item {new} not found or available")
            found.append((item, variant))
        return found


def _check_items(order: Record, item_ids: Sequence[str], missing: str) -> None:
    """Refuses items that are not in an order as often as they are named."""
    there = [item["item_id"] for item in order["items"]]
    for one in item_ids:
        if item_ids.count(one) > there.count(one):
            raise ToolRefusal(missing.format(one))


def _difference(variants: Sequence[tuple[Record, Record]]) -> float:
    """Adds up in order, as every version of Python does."""
    total = 0.0
    for old, new in variants:
        total += new["price"] - old["price"]
    return total


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> dict[str, Any]:
    return {"address1": address1, "address2": address2, "city": city, "country": country, "state": state, "zip": zip}
