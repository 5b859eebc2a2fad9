from contextlib import chdir
from pathlib import Path

import browser
import pytest
import report_fixtures as profile

from rankcollapse.report import write_report

CLAIMS = 36
# Wide screen, telephone, and a window between them; light and dark.
VIEWS = [(1280, 900, "light"), (390, 844, "light"), (700, 900, "dark")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser") / "a folder"
    profile.build(folder)
    with chdir(folder):
        write_report(Path("config.yaml"), Path("report.html"))
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as started:
        yield started


@pytest.fixture(params=VIEWS, ids=lambda view: f"{view[0]}-{view[2]}")
def page(request, chromium, report):
    """The report, opened from disk; `problems` collects what went wrong."""
    width, height, scheme = request.param
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
    )
    opened = context.new_page()
    problems = []
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("requestfailed", lambda request: problems.append(request.url[:100]))
    requests = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(report.as_uri())
    opened.problems, opened.requests = problems, requests
    yield opened
    context.close()


def test_it_opens_without_an_error_and_asks_for_nothing_else(page, report):
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith("data:")] == [report.as_uri()]


def test_every_picture_is_loaded(page):
    sizes = page.evaluate("[...document.images].map(i => [i.naturalWidth, i.complete])")
    assert len(sizes) == 28
    assert all(width > 0 and complete for width, complete in sizes)


def test_the_page_is_as_wide_as_its_window(page):
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    width, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= window


def test_text_stands_out_from_its_background(page):
    contrast = page.evaluate(
        """() => {
            const light = rgb => rgb.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
                .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
            const paper = light(getComputedStyle(document.body).backgroundColor);
            return [...document.querySelectorAll('p, a, figcaption, td, th, .verdict')].map(e => {
                const ink = light(getComputedStyle(e).color);
                return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
            });
        }"""
    )
    assert min(contrast) >= 4.5  # WCAG 2, level AA


def test_all_points_and_claims_unfold(page):
    for name, count in (("all-points", 312), ("all-claims", CLAIMS)):
        rows = page.locator(f"#{name} tbody tr")
        assert rows.count() == count
        assert not rows.first.is_visible()
        page.locator(f"#{name} summary").click()
        assert rows.first.is_visible()
