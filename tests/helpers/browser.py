"""A headless browser for tests of pages: the system's Chromium, or playwright's."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from tests.helpers.cases import beside
from tests.helpers.waiting import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE = {"width": 390, "height": 844}
WIDTHS = (390, 768, 1280)
CLASHES = beside(__file__, "clashes.js")


def barriers(page: Page) -> list[str]:
    """Return axe's findings on barriers for readers with a keyboard or a screen reader."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    actual = axe.run(page).response["violations"]
    return [f"{violation['id']}: {violation['nodes'][0]['html']}" for violation in actual]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; if none is installed, skip the test, or fail if CI is set."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox"], timeout=1000 * PATIENCE
            )
        except PlaywrightError as error:
            if os.environ.get("CI"):
                raise
            why = error.message.splitlines()[0]
            pytest.skip(f"no Chromium ({why}): playwright install chromium")
        yield browser
        browser.close()


class Watched:
    """A collector of a page's warnings, errors and requested addresses."""

    def __init__(self, page: Page) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.said.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            self.asked.append(request.url)
