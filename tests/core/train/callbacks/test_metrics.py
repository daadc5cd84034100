"""Rows of CSV files whose columns change while they are written."""

import csv

import pytest

from arcforge_core.train.callbacks.metrics import append_row, append_rows


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_new_columns_are_added_and_absent_ones_stay_empty(tmp_path):
    path = tmp_path / "figures.csv"
    append_rows(path, [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}])
    append_row(path, {"step": 3, "gap": 1e-5, "loss": 0.125})
    append_row(path, {"step": 4})
    assert rows(path) == [
        {"step": "1", "loss": "0.5", "gap": ""},
        {"step": "2", "loss": "0.25", "gap": ""},
        {"step": "3", "loss": "0.125", "gap": "1e-05"},
        {"step": "4", "loss": "", "gap": ""},
    ]


def test_rows_of_one_call_have_the_same_columns(tmp_path):
    with pytest.raises(ValueError, match="gap"):
        append_rows(tmp_path / "figures.csv", [{"step": 1}, {"step": 2, "gap": 1.0}])


def test_rows_with_the_same_key_are_replaced(tmp_path):
    path = tmp_path / "figures.csv"
    append_rows(path, [{"step": 4, "domain": name, "reward": 0.5} for name in ("all", "sums")], ("step", "domain"))
    append_row(path, {"step": 8, "domain": "all", "reward": 0.5}, ("step", "domain"))
    append_row(path, {"step": 8, "domain": "all", "reward": 0.75}, ("step", "domain"))
    assert [tuple(row.values()) for row in rows(path)] == [
        ("4", "all", "0.5"),
        ("4", "sums", "0.5"),
        ("8", "all", "0.75"),
    ]
