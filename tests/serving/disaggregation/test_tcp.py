import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_serving.disaggregation.contract import PageRecords, PageRequest, TransferError, page_checksum
from arcforge_serving.disaggregation.tcp import PrefillServer, TcpConnector
from support.spoiling import spoiling

ASKED = PageRequest((1, 2, 3, 4, 5), 1, 7, 40)
RECORDS = [torch.arange(40, dtype=torch.uint8) + n for n in range(3)]


class Role:
    """Answers; or says why not."""

    error = None
    pages_given = PageRecords(1, 7, RECORDS)

    def pages(self, asked):
        self.asked = asked
        if self.error is not None:
            raise self.error
        return self.pages_given


@contextmanager
def serving(role, secret="s"):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        PrefillServer(role.pages, listener, secret, 5.0)
        try:
            yield listener.getsockname()[:2]
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def fetch(address, secret="s", asked=ASKED, ack_seconds=60.0):
    return TcpConnector([address], secret, 60.0, ack_seconds).fetch(asked)


def test_pages_come_as_they_were():
    role = Role()
    with serving(role) as address:
        pages = fetch(address)
    assert (pages.first, pages.version) == (1, 7) and role.asked == ASKED
    assert all(torch.equal(a, b) for a, b in zip(pages.records, RECORDS, strict=True))


def test_roles_take_turns():
    roles = [Role(), Role()]
    with serving(roles[0]) as first, serving(roles[1]) as second:
        connector = TcpConnector([first, second], "s")
        for _ in range(2):
            connector.fetch(ASKED)
    assert [role.asked for role in roles] == [ASKED, ASKED]


ANSWER = 1 + 8 + len('{"first":1,"version":7,"count":3}') + 3 * (8 + 40)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, ANSWER - 1))
def test_a_byte_that_changes_on_the_way_is_found(place):
    """Wherever it is: in the message, in the place of a page, in its checksum, in its record."""
    with serving(Role()) as address, spoiling(address, flip=place) as spoilt, pytest.raises(TransferError):
        fetch(spoilt)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, ANSWER - 1))
def test_an_answer_that_ends_early_is_none(length):
    with serving(Role()) as address, spoiling(address, cut=length) as cut, pytest.raises(TransferError):
        fetch(cut)


def test_nothing_spoilt_is_an_answer():
    with serving(Role()) as address, spoiling(address, flip=10**6, cut=ANSWER) as through:
        assert len(fetch(through).records) == 3


def test_a_record_at_another_place_is_another():
    record = bytes(40)
    assert page_checksum(1, record) != page_checksum(2, record)
    assert page_checksum(1, record) == page_checksum(1, memoryview(record))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (PageRecords(2, 7, RECORDS), "another prompt"),
        (PageRecords(1, 8, RECORDS), "another prompt"),
        (None, "it was told to"),
    ],
)
def test_an_answer_to_something_else_is_refused(given, message):
    role = Role()
    role.pages_given, role.error = given, None if given else TransferError("it was told to")
    with serving(role) as address, pytest.raises(TransferError, match=message):
        fetch(address)


def test_who_does_not_know_the_secret_gets_nothing():
    role = Role()
    with serving(role) as address, pytest.raises(TransferError):
        fetch(address, "t")
    assert not hasattr(role, "asked")


def test_a_port_behind_which_nobody_is_left_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        with pytest.raises(TransferError, match="timed out"):
            fetch(address, ack_seconds=0.5)
    with pytest.raises(TransferError, match="refused"):
        fetch(address)


def test_strangers_cannot_hold_a_role_up():
    connect = socket.create_connection
    with serving(Role()) as address, connect(address) as silent, connect(address) as rude:
        rude.sendall(b"\xff" * 64)
        assert len(fetch(address).records) == 3
        silent.settimeout(60)
        assert silent.recv(1) == b"+"


def test_closing_ends_what_is_waited_for():
    import threading

    held, free = threading.Event(), threading.Event()

    class Slow(Role):
        def pages(self, asked):
            held.set()
            free.wait(60)
            return super().pages(asked)

    found = []
    with serving(Slow()) as address:
        connector = TcpConnector([address], "s", 600.0, 600.0)  # longer than the test waits

        def ask():
            try:
                connector.fetch(ASKED)
            except TransferError as error:
                found.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        assert held.wait(60)
        connector.close()
        asking.join(60)
        assert found and not free.is_set()
        free.set()


DIES = """
import os, socket, sys, torch
from arcforge_serving.disaggregation.contract import PageRecords
from arcforge_serving.disaggregation import tcp

def pages(asked):
    return PageRecords(1, 7, [torch.zeros(40, dtype=torch.uint8)] * 3)

def dying(number, record):
    if number == 2:
        os.kill(os.getpid(), 9)
    return original(number, record)

original, tcp.page_checksum = tcp.page_checksum, dying
listener = socket.socket(fileno=int(sys.argv[1]))
tcp.PrefillServer(pages, listener, "s")
import time; time.sleep(60)
"""


@pytest.mark.slow(reason="starts a process that imports torch")
def test_a_role_that_is_killed_between_two_pages_gives_none():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        command = [sys.executable, "-c", DIES, str(listener.fileno())]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
            connector = TcpConnector([listener.getsockname()[:2]], "s", 60.0, 60.0)
            with pytest.raises(TransferError, match=r"ended \d+ bytes early|reset"):
                connector.fetch(ASKED)
            assert process.wait(60) == -9
