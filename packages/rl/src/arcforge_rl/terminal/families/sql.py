"""A shop's database: duplicates of customers, cancelled orders, and a table of totals."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

from arcforge_rl.terminal.drafts import WORDS, Draft, python, rule

TABLES = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, email TEXT, name TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, day TEXT, state TEXT, cents INTEGER);
"""
MERGE = """
UPDATE orders SET customer = (SELECT min(other.id) FROM customers AS mine JOIN customers AS other
  ON lower(other.email) = lower(mine.email) WHERE mine.id = orders.customer);
DELETE FROM customers WHERE id NOT IN (SELECT min(id) FROM customers GROUP BY lower(email));
"""
TOTALS = """
CREATE TABLE totals (customer INTEGER PRIMARY KEY, orders INTEGER, cents INTEGER);
INSERT INTO totals SELECT customer, count(*), sum(cents) FROM orders WHERE {condition} GROUP BY customer;
"""
STATES = ("paid", "paid", "paid", "sent", "cancelled", "returned")
COLUMNS = {
    "customers": "id, email, name", "orders": "id, customer, day, state, cents", "totals": "customer, orders, cents",
}  # fmt: skip


def draw(draw: random.Random) -> Draft:
    """Draws customers, one of them twice at least, and orders; the world's database is made from SQL."""
    people: list[tuple[str, str]] = []
    for number, word in enumerate(draw.sample(WORDS, draw.randint(6, 9))):
        forms = draw.sample((str.lower, str.upper, str.title), draw.choice((1, 1, 2, 3)) if number else 3)
        people += [(form(f"{word}@example.org"), word.title()) for form in forms]
    draw.shuffle(people)
    first = draw.randint(1, 50)
    customers = [(number, *person) for number, person in enumerate(people, first)]
    orders = [
        (number, draw.choice(customers)[0], f"2024-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}",
         draw.choice(STATES), draw.randint(100, 99_999))
        for number in range(1, draw.randint(60, 100))
    ]  # fmt: skip
    since = f"2024-{draw.randint(2, 6):02d}-01"
    condition = f"state IN ('paid', 'sent') AND day >= '{since}'"
    script = TABLES + _inserts("customers", customers) + _inserts("orders", orders)
    instruction = f"""
`/app/shop.db` is a database of SQLite with the tables `customers(id, email, name)` and
`orders(id, customer, day, state, cents)`.

1. Some customers are there several times, with e-mail addresses that differ only in upper and lower case. Keep the
   one with the smallest id, give it the orders of the others, and delete the others.
2. Make a table `totals(customer, orders, cents)` with one row for each customer that has such an order: the number of
   orders that were paid or sent (`state` is `paid` or `sent`) on {since} or later (`day`), and the sum of their cents.
   Customers without such orders have no row.

Nothing else in the database changes.
"""
    return Draft(
        instruction,
        {"shop.sql": script},
        [rule("sqlite", "shop.db", queries=_wanted(script, condition))],
        _running(MERGE + TOTALS.format(condition=condition)),
        [
            _running(TOTALS.format(condition=condition)),
            _running(MERGE + TOTALS.format(condition="1")),
            _running(MERGE + "CREATE TABLE totals (customer, orders, cents);"),
            "rm shop.db; ln -s /dev/zero shop.db",
        ],
        setup=_running(script) + "rm shop.sql\n",
    )


def _running(sql: str) -> str:
    return python(f'import sqlite3\nbase = sqlite3.connect("shop.db")\nbase.executescript("""{sql}""")\nbase.close()')


def _inserts(table: str, rows: list[Any]) -> str:
    return "".join(f"INSERT INTO {table} VALUES {row!r};\n" for row in rows)


def _wanted(script: str, condition: str) -> list[tuple[str, list[list[Any]]]]:
    base = sqlite3.connect(":memory:")
    base.executescript(script + MERGE + TOTALS.format(condition=condition))
    queries = [f"SELECT {columns} FROM {table} ORDER BY 1" for table, columns in COLUMNS.items()]
    queries.append("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    found = [(query, [list(row) for row in base.execute(query)]) for query in queries]
    base.close()
    return found
