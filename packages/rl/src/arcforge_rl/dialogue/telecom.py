"""tau2's telephone company: effects of the agent's tools on customers, lines and bills.

The rules are those of tau2-bench (Sierra Research, MIT), https://github.com/sierra-research/tau2-bench, as
inspect-evals 0.26.0 has them; `tests/rl/dialogue/test_parity.py` compares both.
"""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

from arcforge_rl.dialogue.records import Record, Records, ToolRefusal

TODAY = date(2025, 2, 25)
TABLE_OF = {"L": "lines", "D": "devices", "B": "bills", "C": "customers", "P": "plans"}
"""First letter of an id -> its table."""
KEYS = {"lines": "line_id", "devices": "device_id", "bills": "bill_id", "customers": "customer_id", "plans": "plan_id"}
"""Table -> field with the id."""
DRAFT = "Draft"


class Telecom:
    """The tools of the company's agent, the faults that tasks begin with, and what tasks assert."""

    def __init__(self, records: Records) -> None:
        self.records = records

    # ---- tools -------------------------------------------------------------------------------------------------------

    def get_customer_by_phone(self, phone_number: str) -> str:
        return json.dumps(self.records.get("customers", self.customer_of(phone_number), "Customer not found"))

    def get_customer_by_id(self, customer_id: str) -> str:
        return json.dumps(self._customer(customer_id))

    def get_customer_by_name(self, full_name: str, dob: str) -> str:
        found = [one for _, one in self.records.all("customers") if one["full_name"].lower() == full_name.lower()]
        return json.dumps([one for one in found if one["date_of_birth"] == dob])

    def get_details_by_id(self, id: str) -> str:
        if id[:1] not in TABLE_OF:
            raise ToolRefusal(f"Unknown ID format or type: {id}")
        table = TABLE_OF[id[0]]
        return json.dumps(self.records.get(table, id, f"{table[:-1].capitalize()} with ID {id} not found"))

    def suspend_line(self, customer_id: str, line_id: str, reason: str) -> str:
        if self._line_of(customer_id, line_id)["status"] != "Active":
            raise ToolRefusal("Line must be active to suspend")
        line = self._edited(line_id)
        line |= {"status": "Suspended", "suspension_start_date": TODAY.isoformat()}
        return json.dumps({"message": "Line suspended successfully. $5/month holding fee will apply.", "line": line})

    def resume_line(self, customer_id: str, line_id: str) -> str:
        if self._line_of(customer_id, line_id)["status"] not in ("Suspended", "Pending Activation"):
            raise ToolRefusal("Line must be suspended to resume")
        line = self._edited(line_id)
        line |= {"status": "Active", "suspension_start_date": None}
        return json.dumps({"message": "Line resumed successfully", "line": line})

    def get_bills_for_customer(self, customer_id: str, limit: int = 12) -> str:
        bills = [self._bill(one) for one in self._customer(customer_id)["bill_ids"]]
        return json.dumps(sorted(bills, key=lambda bill: str(bill["issue_date"]), reverse=True)[:limit])

    def send_payment_request(self, customer_id: str, bill_id: str) -> str:
        customer = self._customer(customer_id)
        if self.awaiting_payment(customer_id):
            raise ToolRefusal("A bill is already awaiting payment for this customer")
        if bill_id not in customer["bill_ids"]:
            raise ToolRefusal(f"Bill {bill_id} not found for customer {customer_id}")
        self._set_bill(bill_id, "Awaiting Payment")
        return f"Payment request sent to the customer for bill {bill_id}"

    def get_data_usage(self, customer_id: str, line_id: str) -> str:
        line = self._line_of(customer_id, line_id)
        plan = self._plan(line["plan_id"])
        month_end = (TODAY.replace(day=1) + timedelta(days=32)).replace(day=1) - timedelta(days=1)
        used = {name: line.get(name, 0.0) for name in ("data_used_gb", "data_refueling_gb")}
        limits = {"data_limit_gb": plan["data_limit_gb"], "cycle_end_date": month_end.isoformat()}
        return json.dumps({"line_id": line_id, **used, **limits})

    def enable_roaming(self, customer_id: str, line_id: str) -> str:
        return self._roaming(customer_id, line_id, True)

    def disable_roaming(self, customer_id: str, line_id: str) -> str:
        return self._roaming(customer_id, line_id, False)

    def refuel_data(self, customer_id: str, line_id: str, gb_amount: float) -> str:
        plan = self._plan(self._line_of(customer_id, line_id)["plan_id"])
        if not 0 < gb_amount < 1e6:
            raise ToolRefusal("Refuel amount must be positive")
        price = plan["data_refueling_price_per_gb"]
        line = self._edited(line_id)
        line["data_refueling_gb"] = line.get("data_refueling_gb", 0.0) + gb_amount
        self._charge(customer_id, gb_amount * price, f"Data refueling: {gb_amount} GB at ${price}/GB")
        message = f"Successfully added {gb_amount} GB of data for line {line_id} for ${gb_amount * price:.2f}"
        refuelled = line["data_refueling_gb"]
        return json.dumps({"message": message, "new_data_refueling_gb": refuelled, "charge": gb_amount * price})

    # ---- faults ------------------------------------------------------------------------------------------------------

    def set_data_usage(self, customer_id: str, line_id: str, data_used_gb: float) -> None:
        self._line_of(customer_id, line_id)
        self._edited(line_id)["data_used_gb"] = data_used_gb

    def suspend_line_for_overdue_bill(
        self, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool
    ) -> None:
        line = self._edited(line_id)
        if line["status"] != "Active":
            raise ToolRefusal("Line must be active to suspend for unpaid bill")
        customer = self._edited_customer(customer_id)
        if any(self._bill(one)["status"] == "Overdue" for one in customer["bill_ids"]):
            raise ToolRefusal("Customer already has an overdue bill")
        price = self._plan(line["plan_id"])["price_per_month"]
        last = TODAY.replace(day=1) - timedelta(days=1)
        first = last.replace(day=1)
        item = {"description": f"Charge for line {line_id}", "amount": price, "date": TODAY.isoformat()}
        bill = _bill(new_bill_id, customer_id, first, last, first, "Overdue")
        bill |= {"line_items": [{**item, "item_type": "Charge"}], "total_due": price}
        self.records.put("bills", new_bill_id, bill)
        customer["bill_ids"].append(new_bill_id)
        line |= {"status": "Suspended", "suspension_start_date": TODAY.isoformat()}
        if contract_ended:
            line["contract_end_date"] = last.isoformat()

    # ---- assertions --------------------------------------------------------------------------------------------------

    def assert_data_refueling_amount(self, customer_id: str, line_id: str, expected_amount: float) -> bool:
        return abs(float(self._line_of(customer_id, line_id).get("data_refueling_gb", 0.0)) - expected_amount) < 1e-6

    def assert_no_overdue_bill(self, overdue_bill_id: str) -> bool:
        there = self.records.has("bills", overdue_bill_id)
        return not there or self._bill(overdue_bill_id)["status"] == "Paid"

    # ---- what the phone sees -----------------------------------------------------------------------------------------

    def customer_of(self, phone_number: str) -> str:
        """Returns the id of the customer with a number, of his own or of a line."""
        for key, customer in self.records.all("customers"):
            lines = [self.records.get("lines", one, "Line not found") for one in customer["line_ids"]]
            if phone_number in (customer["phone_number"], *(line["phone_number"] for line in lines)):
                return key
        raise ToolRefusal(f"Customer with phone number {phone_number} not found")

    def line_of_phone(self, phone_number: str) -> Record:
        """Returns the line with a number."""
        for _, line in self.records.all("lines"):
            if line["phone_number"] == phone_number:
                return line
        raise ToolRefusal(f"Line with phone number {phone_number} not found")

    def exceeded(self, line: Record) -> bool:
        """Returns whether a line has used its data."""
        limit = self._plan(line["plan_id"])["data_limit_gb"] + line.get("data_refueling_gb", 0.0)
        return bool(line["data_used_gb"] >= limit)

    def awaiting_payment(self, customer_id: str) -> list[Record]:
        """Returns the bills that a customer was asked to pay."""
        bills = [self._bill(one) for one in self._customer(customer_id)["bill_ids"]]
        return [bill for bill in bills if bill["status"] == "Awaiting Payment"]

    def set_bill_to_paid(self, bill_id: str) -> None:
        """Notes a payment."""
        self._set_bill(bill_id, "Paid")

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _customer(self, customer_id: str) -> Record:
        return self.records.get("customers", customer_id, f"Customer with ID {customer_id} not found")

    def _edited_customer(self, customer_id: str) -> Record:
        return self.records.edit("customers", customer_id, f"Customer with ID {customer_id} not found")

    def _edited(self, line_id: str) -> Record:
        return self.records.edit("lines", line_id, f"Line with ID {line_id} not found")

    def _plan(self, plan_id: str) -> Record:
        return self.records.get("plans", plan_id, f"Plan with ID {plan_id} not found")

    def _bill(self, bill_id: str) -> Record:
        return self.records.get("bills", bill_id, f"Bill with ID {bill_id} not found")

    def _set_bill(self, bill_id: str, status: str) -> None:
        self.records.edit("bills", bill_id, f"Bill with ID {bill_id} not found")["status"] = status

    def _line_of(self, customer_id: str, line_id: str) -> Record:
        if line_id not in self._customer(customer_id)["line_ids"]:
            raise ToolRefusal(f"Line {line_id} not found for customer {customer_id}")
        return self.records.get("lines", line_id, f"Line with ID {line_id} not found")

    def _roaming(self, customer_id: str, line_id: str, on: bool) -> str:
        word = "enabled" if on else "disabled"
        if bool(self._line_of(customer_id, line_id).get("roaming_enabled")) == on:
            return f"Roaming was already {word}"
        self._edited(line_id)["roaming_enabled"] = on
        return f"Roaming {word} successfully"

    def _charge(self, customer_id: str, amount: float, description: str) -> None:
        """Adds a charge to the customer's draft bill, which is made if there is none."""
        customer = self._edited_customer(customer_id)
        draft = next((one for one in customer["bill_ids"] if self._bill(one)["status"] == DRAFT), None)
        if draft is None:
            draft = f"B{customer_id}D"
            first = (TODAY.replace(day=1) + timedelta(days=32)).replace(day=1)
            last = (first + timedelta(days=32)).replace(day=1) - timedelta(days=1)
            self.records.put("bills", draft, _bill(draft, customer_id, first, last, first, DRAFT))
            customer["bill_ids"].append(draft)
        bill = self.records.edit("bills", draft, f"Bill with ID {draft} not found")
        kind = "Credit" if amount < 0 else "Charge"
        item = {"description": description, "amount": amount, "date": TODAY.isoformat(), "item_type": kind}
        bill["line_items"].append(item)
        bill["total_due"] += amount


def _bill(bill_id: str, customer_id: str, first: date, last: date, issued: date, status: str) -> dict[str, Any]:
    return {
        "bill_id": bill_id, "customer_id": customer_id, "period_start": first.isoformat(),
        "period_end": last.isoformat(), "issue_date": issued.isoformat(), "total_due": 0.0,
        "due_date": (issued + timedelta(days=14)).isoformat(), "line_items": [], "status": status,
    }  # fmt: skip
