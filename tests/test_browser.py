"""The tests' own browser, in a file of its own: Playwright allows one at a time."""

import browser
import pytest


def test_a_missing_browser_fails_and_says_what_to_install(monkeypatch):
    monkeypatch.setattr(browser, "CHROMIUM", None)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", "/nowhere")
    with pytest.raises(pytest.fail.Exception, match="apt-get install -y chromium"):
        browser.chromium().__enter__()
