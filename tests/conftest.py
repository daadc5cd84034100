"""Settings of all tests."""

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from arcforge_core.errors import ConfigError
from support.browsing import OTHER_SCREENS, SCREENS, Screens, chromium, find_chromium
from support.marks import nightly_case

# Triton reads it when it is imported, which torch does in several of its modules.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Processes that tests start find `support` too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

# A shell starts its background jobs deaf to Ctrl-C, and their processes inherit that; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["support.calibrations", "support.garbage", "support.skips"]

# The first call of a torch operator can take seconds on a busy machine; pytest's timeout is the limit.
settings.register_profile("arcforge", deadline=None, max_examples=25)
settings.register_profile("nightly", deadline=None, max_examples=200)
settings.load_profile("arcforge")


@pytest.fixture(scope="module")
def browser():
    """Chromium, one for a module: while it runs, no other test of this process can run an event loop."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    try:
        find_chromium()
    except ConfigError as error:
        pytest.skip(str(error))
    with chromium() as browser:
        yield browser


@pytest.fixture(params=[SCREENS, nightly_case(OTHER_SCREENS)], ids=["screens", "other screens"])
def screens(request: pytest.FixtureRequest) -> Screens:
    """Screens that a page is looked at on."""
    return request.param
