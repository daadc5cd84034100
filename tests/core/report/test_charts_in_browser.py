"""Charts in Chromium: any width, values by keys, log scale, a second run; a picture without scripts."""

import numpy as np
import pytest

from arcforge_core.report.charts import Chart, chart_cards, draw_curve, draw_stack, legend_above
from arcforge_core.report.html import card, table
from arcforge_core.report.page import Page, Section
from support.page_checks import looked_at

STEPS = np.arange(1.0, 101.0)


def loss(axes, scale):
    draw_curve(axes, STEPS, scale / STEPS, "#0072b2", "training")
    axes.plot([50, 100], [scale, 2 * scale], color="#d55e00", marker="o", label="held-out")
    axes.axhline(0.5 * scale, color="#009e73", linestyle="--", label="gzip")
    axes.set_ylabel("nats")
    legend_above(axes)
    return ""


def phases(axes, scale):
    draw_stack(axes, STEPS, {"sampling": 2 * scale * np.ones(100), "training": 3 * scale * np.ones(100)})
    axes.set(xlabel="step", ylabel="seconds")
    legend_above(axes)
    return ""


CHARTS = (
    Chart("loss", "Loss", "A note.", loss, lambda scale: (20.0,)),
    Chart("phases", "Where the time goes", "Each step.", phases),
)


def page_of(folder, name, scale):
    rows = [["b", "10"], ["a", "9"], ["c", "missing"]]
    sections = [
        Section("Curves", chart_cards(CHARTS, scale)),
        Section("Jobs", card("", table(["job", "figure"], rows, sortable=True))),
        Section("Files", card("", "<p>none</p>")),
    ]
    return Page("run", name, sections, about={"recipe": "smoke"}).write(folder / f"{name}.html").as_uri()


@pytest.fixture
def address(tmp_path):
    return page_of(tmp_path, "first", 1.0)


@pytest.fixture
def page(browser, address):
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def legend(page, n=0):
    """Returns names and values of a chart."""
    rows = page.locator(".u-legend").nth(n).locator("tr:visible")
    return dict(
        zip(rows.locator(".u-label").all_inner_texts(), rows.locator(".u-value").all_inner_texts(), strict=True)
    )


@pytest.mark.slow(reason="opens a page twice and runs axe-core")
def test_it_fits_every_screen_and_is_accessible(browser, screens, address):
    looked_at(browser, address, screens)


def test_the_contents_lead_to_every_section(page):
    links = page.get_by_role("navigation", name="Contents").get_by_role("link")
    assert links.all_inner_texts() == ["Curves", "Jobs", "Files"]
    for link in links.all():
        assert page.locator(link.get_attribute("href")).count() == 1
    assert page.locator(".about dd").first.inner_text() == "smoke"


def test_the_legend_has_the_last_values_and_then_those_under_the_cursor(page):
    assert legend(page) == {"step": "100", "training": "0.010051", "held-out": "2", "gzip": "0.5"}
    page.locator(".plot").first.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert legend(page)["step"] == "2" and legend(page)["held-out"] == "1", "the nearest that it has"
    page.keyboard.press("ArrowLeft")
    assert legend(page)["step"] == "1"
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    assert legend(page)["step"] in ("50", "51")


def test_parts_of_a_stack_are_shown_and_not_their_sums(page):
    assert legend(page, 1) == {"step": "100", "training": "3", "sampling": "2"}


def test_the_axis_becomes_logarithmic_and_linear_again(page):
    button = page.get_by_role("button", name="Log scale: Loss")
    scale = "Charts[0].plot.scales.y.distr"
    assert page.evaluate(scale) == 1 and button.get_attribute("aria-pressed") == "false"
    button.click()
    assert page.evaluate(scale) == 3 and button.get_attribute("aria-pressed") == "true"
    button.click()
    assert page.evaluate(scale) == 1


def test_a_narrow_chart_is_drawn_again_and_not_shrunk(page):
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function("Charts[0].plot.width < 340")
    assert page.evaluate("Charts[0].plot.axes[0].font[0]").startswith("12px")


def test_curves_of_a_second_run_are_added_and_named(page, tmp_path):
    page_of(tmp_path, "second", 3.0)
    page.set_input_files("#compare", tmp_path / "second.html")
    page.get_by_text("dotted: second").wait_for()
    assert legend(page)["second: held-out"] == "6" and legend(page)["held-out"] == "2"
    (tmp_path / "other.html").write_text("<p>no page of ours</p>")
    page.set_input_files("#compare", tmp_path / "other.html")
    page.get_by_text("has no chart of this kind").wait_for()
    assert "second: held-out" not in legend(page)


def test_a_table_is_sorted_by_number_and_missing_ones_come_last(page):
    rows = page.locator("table.sortable tbody tr td:first-child")
    page.get_by_role("button", name="figure").click()
    assert rows.all_inner_texts() == ["a", "b", "c"]
    page.get_by_role("button", name="figure").press("Enter")
    assert rows.all_inner_texts() == ["b", "a", "c"]
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"


@pytest.mark.slow(reason="opens a page twice and runs axe-core")
def test_without_scripts_there_are_pictures_that_can_be_read(browser, address):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 800})
    page = context.new_page()
    page.goto(address)
    for picture in page.locator("figure > svg").all():
        assert picture.is_visible() and picture.bounding_box()["width"] >= 500, "it scrolls, and is not shrunk"
        assert "training" in picture.inner_html()
    context.close()
