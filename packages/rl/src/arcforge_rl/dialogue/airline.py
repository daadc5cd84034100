"""tau2's airline: effects of its tools on reservations, users and flights.

The rules are those of tau2-bench (Sierra Research, MIT), https://github.com/sierra-research/tau2-bench, as
inspect-evals 0.26.0 has them; `tests/rl/dialogue/test_parity.py` compares both.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from arcforge_rl.dialogue.records import Record, Records, ToolRefusal

NOW = "2024-05-15T15:00:00"
NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas",
    "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix",
    "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte",
    "MSP": "Minneapolis", "DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
INSURANCE, BAG = 30, 50
"""Prices in dollars, of a passenger and of a bag."""


class Airline:
    """The tools of the airline's agent; each method is one."""

    def __init__(self, records: Records) -> None:
        self.records = records

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get_reservation_details(self, reservation_id: str) -> str:
        return json.dumps(self._reservation(reservation_id))

    def get_user_details(self, user_id: str) -> str:
        return json.dumps(self._user(user_id))

    def list_all_airports(self) -> str:
        return json.dumps([{"iata": code, "city": city} for code, city in AIRPORTS.items()])

    def search_direct_flight(self, origin: str, destination: str, date: str) -> str:
        return json.dumps(self._direct(date, origin, destination))

    def search_onestop_flight(self, origin: str, destination: str, date: str) -> str:
        found = []
        for first in self._direct(date, origin):
            arrives = first["scheduled_arrival_time_est"]
            day = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrives else date
            for second in self._direct(day, first["destination"], destination, arrives):
                found.append([{**first, "date": date}, {**second, "date": day}])
        return json.dumps(found)

    def get_flight_status(self, flight_number: str, date: str) -> str:
        status: str = self._on_day(flight_number, date)["status"]
        return status

    # ---- writing -----------------------------------------------------------------------------------------------------

    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: str,
        cabin: str,
        flights: list[Record],
        passengers: list[Record],
        payment_methods: list[Record],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: str,
    ) -> str:
        asked, people = _flights(flights), _people(passengers)
        payments = [_fields(one, payment_id=str, amount=int) for one in payment_methods]
        user = self._user(user_id)
        new = next((one for one in NEW_RESERVATIONS if not self.records.has("reservations", one)), None)
        if new is None:
            raise ToolRefusal("Too many reservations")
        legs, price = [], 0
        for number, date in asked:
            legs.append(self._leg(number, date, cabin, len(people)))
            price += legs[-1]["price"] * len(people)
        price += INSURANCE * len(people) * (insurance == "yes") + BAG * nonfree_baggages
        self._check_payments(user, payments, price)
        reservation = {
            "reservation_id": new, "user_id": user_id, "origin": origin, "destination": destination,
            "flight_type": flight_type, "cabin": cabin, "flights": legs, "passengers": people,
            "payment_history": payments, "created_at": NOW, "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages, "insurance": insurance,
        }  # fmt: skip
        edited = self._edited_user(user_id)
        for payment in payments:
            method = edited["payment_methods"][payment["payment_id"]]
            if method["source"] == "gift_card":
                method["amount"] -= payment["amount"]
            elif method["source"] == "certificate":
                del edited["payment_methods"][payment["payment_id"]]
        for number, date in asked:
            flight = self.records.edit("flights", number, f"Flight {number} not found")
            flight["dates"][date]["available_seats"][cabin] -= len(people)
        self.records.put("reservations", new, copy.deepcopy(reservation))
        edited["reservations"].append(new)
        return json.dumps(reservation)

    def cancel_reservation(self, reservation_id: str) -> str:
        reservation = self._edited(reservation_id)
        refunds = [{**payment, "amount": -payment["amount"]} for payment in reservation["payment_history"]]
        reservation["payment_history"] += refunds
        reservation["status"] = "cancelled"
        return json.dumps(reservation)

    def send_certificate(self, user_id: str, amount: int) -> str:
        methods = self._edited_user(user_id)["payment_methods"]
        new = next((one for one in NEW_CERTIFICATES if one not in methods), None)
        if new is None:
            raise ToolRefusal("Too many certificates")
        methods[new] = {"id": new, "amount": amount, "source": "certificate"}
        return f"Certificate {new} added to user {user_id} with amount {amount}."

    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> str:
        reservation = self._reservation(reservation_id)
        price = BAG * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        payment = self._paid(reservation["user_id"], payment_id, price)
        reservation = self._edited(reservation_id)
        reservation["payment_history"] += payment
        reservation |= {"total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages}
        return json.dumps(reservation)

    def update_reservation_flights(
        self, reservation_id: str, cabin: str, flights: list[Record], payment_id: str
    ) -> str:
        asked = _flights(flights)
        reservation = self._reservation(reservation_id)
        people, price, legs = len(reservation["passengers"]), 0, []
        for number, date in asked:
            kept = [leg for leg in reservation["flights"] if (leg["flight_number"], leg["date"]) == (number, date)]
            same = kept and cabin == reservation["cabin"]
            legs.append(dict(kept[0]) if same else self._leg(number, date, cabin, people))
            price += legs[-1]["price"] * people
        price -= sum(leg["price"] for leg in reservation["flights"]) * people
        payment = self._paid(reservation["user_id"], payment_id, price)
        reservation = self._edited(reservation_id)
        reservation["payment_history"] += payment
        reservation |= {"flights": legs, "cabin": cabin}
        return json.dumps(reservation)

    def update_reservation_passengers(self, reservation_id: str, passengers: list[Record]) -> str:
        people = _people(passengers)
        if len(people) != len(self._reservation(reservation_id)["passengers"]):
            raise ToolRefusal("Number of passengers does not match")
        reservation = self._edited(reservation_id)
        reservation["passengers"] = people
        return json.dumps(reservation)

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _user(self, user_id: str) -> Record:
        return self.records.get("users", user_id, f"User {user_id} not found")

    def _edited_user(self, user_id: str) -> Record:
        return self.records.edit("users", user_id, f"User {user_id} not found")

    def _reservation(self, reservation_id: str) -> Record:
        return self.records.get("reservations", reservation_id, f"Reservation {reservation_id} not found")

    def _edited(self, reservation_id: str) -> Record:
        return self.records.edit("reservations", reservation_id, f"Reservation {reservation_id} not found")

    def _flight(self, number: str) -> Record:
        return self.records.get("flights", number, f"Flight {number} not found")

    def _on_day(self, number: str, date: str) -> Record:
        dates: dict[str, Record] = self._flight(number)["dates"]
        if date not in dates:
            raise ToolRefusal(f"Flight {number} not found on date {date}")
        return dates[date]

    def _leg(self, number: str, date: str, cabin: str, people: int) -> Record:
        """Returns a flight as reservations hold it."""
        day, flight = self._on_day(number, date), self._flight(number)
        if day["status"] != "available":
            raise ToolRefusal(f"Flight {number} not available on date {date}")
        if day["available_seats"][cabin] < people:
            raise ToolRefusal(f"Not enough seats on flight {number}")
        ends = {name: flight[name] for name in ("origin", "destination", "flight_number")}
        return {**ends, "date": date, "price": day["prices"][cabin]}

    def _direct(
        self, date: str, origin: str, destination: str | None = None, leaves_after: str | None = None
    ) -> list[Record]:
        found = []
        for number, flight in self.records.all("flights"):
            day = flight["dates"].get(date)
            fits = flight["origin"] == origin and destination in (None, flight["destination"])
            fits = fits and (leaves_after is None or flight["scheduled_departure_time_est"] >= leaves_after)
            if fits and day is not None and day["status"] == "available":
                shown = {name: value for name, value in flight.items() if name != "dates"}
                found.append({**shown, "flight_number": number, **copy.deepcopy(day)})
        return found

    def _check_payments(self, user: Record, payments: Sequence[Record], price: int) -> None:
        for payment in payments:
            method = user["payment_methods"].get(payment["payment_id"])
            if method is None:
                raise ToolRefusal(f"Payment method {payment['payment_id']} not found")
            if method["source"] in ("gift_card", "certificate") and method["amount"] < payment["amount"]:
                raise ToolRefusal(f"Not enough balance in payment method {payment['payment_id']}")
        paid = sum(payment["amount"] for payment in payments)
        if paid != price:
            raise ToolRefusal(f"Payment amount does not add up, total price is {price}, but paid {paid}")
        names = [payment["payment_id"] for payment in payments]
        if len(set(names)) < len(names):
            raise ToolRefusal("A payment method is named twice")

    def _paid(self, user_id: str, payment_id: str, price: int) -> list[Record]:
        """Takes a price from a payment method; returns what joins the history."""
        method = self._user(user_id)["payment_methods"].get(payment_id)
        if method is None:
            raise ToolRefusal("Payment method not found")
        if method["source"] == "certificate":
            raise ToolRefusal("Certificate cannot be used to update reservation")
        if method["source"] == "gift_card":
            if method["amount"] < price:
                raise ToolRefusal("Gift card balance is not enough")
            self._edited_user(user_id)["payment_methods"][payment_id]["amount"] -= price
        return [{"payment_id": payment_id, "amount": price}] if price else []


def _fields(given: Any, **types: type) -> Record:
    """Returns the named fields of an object.

    Raises:
        ToolRefusal: one is missing or of another type.
    """
    if not isinstance(given, Mapping):
        raise ToolRefusal(f"{str(given)[:80]} must be an object with {', '.join(types)}")
    for name, wanted in types.items():
        value = given.get(name)
        if isinstance(value, float) and wanted is int and value.is_integer():
            value = int(value)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ToolRefusal(f"{name} must be given as {wanted.__name__}")
    return {name: wanted(given[name]) for name, wanted in types.items()}


def _flights(given: Sequence[Any]) -> list[tuple[str, str]]:
    found = [_fields(one, flight_number=str, date=str) for one in given]
    return [(one["flight_number"], one["date"]) for one in found]


def _people(given: Sequence[Any]) -> list[Record]:
    return [_fields(one, first_name=str, last_name=str, dob=str) for one in given]
