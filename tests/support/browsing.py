"""The page in Chromium, for tests and pictures of it; needs the package playwright and a Chromium.

``python -m support.browsing`` prints the path of the Chromium that tests use, or exits with status 2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from arcforge_core.errors import ConfigError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Locator, Page

CHROMIUM = "CHROMIUM"
"""Environment variable with the program's path."""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Names that systems give it; after them comes the build that ``playwright install chromium`` fetches."""
Screens = Sequence[tuple[str, int]]
"""Colour scheme and width of each."""
SCREENS: Screens = (("light", 360), ("dark", 1280))
"""Both schemes and both widths: those of default runs."""
OTHER_SCREENS: Screens = (("dark", 360), ("light", 1280))
"""The other pairs: those of nightly runs."""
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


@cache
def find_chromium() -> str:
    """Returns the path of Chromium.

    Raises:
        ConfigError: there is none that starts.
    """
    chosen = os.environ.get(CHROMIUM)
    paths = map(shutil.which, [chosen] if chosen else PROGRAMS)
    found = next(filter(_starts, filter(None, paths)), None) or (None if chosen else _own_build())
    if found is None:
        raise ConfigError(CHROMIUM, chosen, "no such program; scripts/setup_browser.sh brings one")
    return found


def _starts(path: str) -> bool:
    """Whether it says its version: Ubuntu's package is a script that needs snap, which containers lack."""
    return subprocess.run([path, "--version"], capture_output=True, check=False, timeout=60).returncode == 0


def _own_build() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = Path(playwright.chromium.executable_path)
    headless = sorted(found.parents[2].glob("chromium_headless_shell-*/chrome-*/*headless[-_]shell*"))
    return next((str(path) for path in (found, *headless[-1:]) if path.is_file()), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yields a browser. While it runs no other event loop can run in this thread.

    Raises:
        ConfigError: there is none.
    """
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def opened(context: BrowserContext, address: str, faults: list[str]) -> Page:
    """Returns a new tab with the page, which has asked the server what it serves.

    Args:
        context: of the browser.
        address: of the server.
        faults: gets what the page writes as errors, and texts of dialogues, of which it has none.
    """
    page = context.new_page()
    page.on("console", lambda said: faults.append(said.text) if _is_fault(said.type, said.text) else None)

    def refuse(dialog: Dialog) -> None:
        faults.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", refuse)
    page.goto(address)
    page.locator("#model-length:not(:empty)").or_(page.locator("#banner:not([hidden])")).first.wait_for()
    return page


def _is_fault(kind: str, text: str) -> bool:
    return kind == "error" and "Failed to load resource" not in text  # statuses other than 200: the page shows them


def ask(page: Page, text: str) -> Locator:
    """Says something and waits for the end of the answer; returns its element."""
    page.fill("#input", text)
    page.press("#input", "Enter")
    return answer(page)


def answer(page: Page) -> Locator:
    """Waits until the last answer is complete; returns its element."""
    last = page.locator(".message").last
    last.locator(".footer").wait_for(state="attached")
    return last


if __name__ == "__main__":
    try:
        print(find_chromium())
    except ConfigError as error:
        sys.exit(f"error: {error}")
