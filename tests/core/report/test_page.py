import base64
import hashlib
import html.parser

from arcforge_core.report.charts import Chart, chart_cards
from arcforge_core.report.html import table
from arcforge_core.report.page import Page, Section


class Tags(html.parser.HTMLParser):
    """The words of a page by tag."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words = [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_data(self, data):
        if self.open and data.strip():
            self.words.setdefault(self.open[-1], []).append(data.strip())


def test_titles_are_escaped_and_sections_come_in_order():
    text = Page("run", "<b>", [Section("first", "<p>1</p>"), Section("", "<i>2</i>", headline=True)]).render()
    words = Tags(text).words
    assert words["h1"] == ["<b>"] and words["h2"] == ["first"]
    assert text.index("<p>1</p>") < text.index('<section class="headline">') < text.index("<i>2</i>")


def test_only_the_pages_own_script_may_run():
    without = Page("run", "a", []).render()
    assert "script-src 'none'" in without and "<script" not in without
    script = "if (1 < 2 && true) {}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = Page("run", "a", [], script=script).render()
    assert f"script-src 'sha256-{digest}'" in text and f"<script>{script}</script>" in text


def test_a_written_page_replaces_lone_surrogates(tmp_path):
    path = Page("run", "half \ud800", []).write(tmp_path / "page.html")
    assert "half ?" in path.read_text(encoding="utf-8")


def test_a_chart_says_what_is_missing_or_marks_warnings():
    charts = [
        Chart("gap", "No data", "How to read it.", lambda axes, run: "loss in metrics.csv"),
        Chart("line", "Line", "A line.", lambda axes, run: axes.plot([0, 9], run) and "", lambda run: (3.0,)),
        Chart("plain", "Plain", "No marks.", lambda axes, run: axes.plot([0, 9], run) and ""),
    ]
    gap, line, plain = chart_cards(charts, [1.0, 2.0]).split('<div class="card">')[1:]
    assert "loss in metrics.csv" in gap and "<svg" not in gap
    assert "<svg" in line and "A line. Dashed: a warning." in line
    assert "<svg" in plain and "Dashed" not in plain


def test_a_chart_of_a_run_without_a_step_is_drawn():
    def draw(axes, run):
        axes.plot([], [], label="loss")
        axes.axhline(2.0, label="gzip")
        return ""

    assert '"x": [0.0, 1.0], "y": [2.0, 2.0]' in Chart("empty", "Empty", "Nothing yet.", draw).card(None)


def test_integers_of_a_table_are_grouped_and_stand_to_the_right():
    text = table(["name", "tokens"], [["a", 1234], ["b", "missing"]])
    assert '<th>name</th><th class="n">tokens</th>' in text
    assert '<td>a</td><td class="n">1,234</td>' in text and "<td>b</td><td>missing</td>" in text
