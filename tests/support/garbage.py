"""A pytest plugin: the objects that the collection of the tests makes are exempt from garbage collection.

The whole suite has a million objects. A full collection scans them all, which takes half a second; there are tens
while tests are collected, and one at the beginning of every training run.
"""

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Everything that is made while tests are collected is kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@contextmanager
def unfrozen() -> Iterator[None]:
    """No object is exempt meanwhile, as in a program that has just begun."""
    gc.unfreeze()
    try:
        yield
    finally:
        gc.freeze()
