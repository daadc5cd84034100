"""Markdown becomes elements, and nothing that a model or a user writes becomes more than text."""

import time

import pytest

from support.browsing import answer, ask, opened

END = "<|user|>"

REL = 'target="_blank" rel="noopener noreferrer nofollow"'
BOX = '<input type="checkbox" disabled="" aria-label="Task">'
DONE = BOX.replace("aria", 'checked="" aria')


def link(url, text):
    return f'<a href="{url}" title="{url}" {REL}>{text}</a>'


CASES = [
    (
        "Hello *a* **b** ~~d~~ ***c***",
        "<p>Hello <em>a</em> <strong>b</strong> <s>d</s> <em><strong>c</strong></em></p>",
    ),
    ("snake_case_name 2 * 3 * 4 _a_ __b__", "<p>snake_case_name 2 * 3 * 4 <em>a</em> <strong>b</strong></p>"),
    ("**a *b* c**, *d **e** f*", "<p><strong>a <em>b</em> c</strong>, <em>d <strong>e</strong> f</em></p>"),
    ("**open and *closed*", "<p>**open and <em>closed</em></p>"),
    ("重要**「引用」**です", "<p>重要<strong>「引用」</strong>です</p>"),
    ("`a * b` and `` ` `` and `open", "<p><code>a * b</code> and <code>`</code> and `open</p>"),
    (r"\*not\* \_this\_ \a", r"<p>*not* _this_ \a</p>"),
    ("one\ntwo<br>three", "<p>one<br>two<br>three</p>"),
    ("# One\n## Two\n#no", '<h3 class="level-1">One</h3><h4 class="level-2">Two</h4><p>#no</p>'),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("- a\n- b\n  1. c\n  2. d\n- e", "<ul><li>a</li><li>b<ol><li>c</li><li>d</li></ol></li><li>e</li></ul>"),
    ("3. a\n\n4. b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'),
    ("1. a\n   - b\n\n   c", "<ol><li><p>a</p><ul><li>b</li></ul><p>c</p></li></ol>"),
    ("1. a\n   - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
    ("text\n- a\nmore", "<p>text</p><ul><li>a<br>more</li></ul>"),
    ("- [x] a\n- [ ] b", f'<ul><li class="task">{DONE}a</li><li class="task">{BOX}b</li></ul>'),
    ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
    (
        "$$a_1 * b * c$$ \\(x * y * z\\)",
        '<p><span class="math">$$a_1 * b * c$$</span> <span class="math">\\(x * y * z\\)</span></p>',
    ),
    ("\\[\na_1 * b * c\n\\]\nso", '<pre class="math" tabindex="0">\\[\na_1 * b * c\n\\]</pre><p>so</p>'),
    (
        "| a | b |\n|:--|--:|\n| 1 \\| 2 | `x\\|y` |",
        '<div class="table" tabindex="0"><table>'
        '<thead><tr><th class="to-left">a</th><th class="to-right">b</th></tr></thead>'
        '<tbody><tr><td class="to-left">1 | 2</td><td class="to-right"><code>x|y</code></td></tr></tbody>'
        "</table></div>",
    ),
    ("[a *b*](https://c.org/d_(e)_f)", f"<p>{link('https://c.org/d_(e)_f', 'a <em>b</em>')}</p>"),
    (
        "<https://g.org> https://h.org/i.",
        f"<p>{link('https://g.org', 'https://g.org')} {link('https://h.org/i', 'https://h.org/i')}.</p>",
    ),
    (
        "[x](javascript:alert(1)) [y](data:text/html,z) [z](/v1)",
        "<p>[x](javascript:alert(1)) [y](data:text/html,z) [z](/v1)</p>",
    ),
    ("![cat](https://c.org/cat.png)", f"<p>{link('https://c.org/cat.png', 'Picture: cat')}</p>"),
    ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
    ("text\n-", "<p>text<br>-</p>"),  # the list that begins is no heading until then
    ("[a][b]\n\nc\n\n[b]: https://c.org/d", f"<p>{link('https://c.org/d', 'a')}</p><p>c</p>"),
    ("[a] [b][c] ] [d](e f) ![", "<p>[a] [b][c] ] [d](e f) ![</p>"),
]
RENDER = """async (text) => {
  const { render } = await import("/page/markdown.js");
  const target = document.createElement("div");
  render(target, text);
  return target.innerHTML;
}"""
HACK = "window.hacked=1"
IMAGE = f"<img src=x onerror={HACK}>"
HOSTILE = [
    IMAGE, f"<script>{HACK}</script>", f"<svg onload={HACK}>", f"<a href=javascript:{HACK}>a</a>",
    f"[a](javascript:{HACK})", f"[a](JaVaScRiPt:{HACK})", f"[a](java\nscript:{HACK})", f"<javascript:{HACK}>",
    f"[a](&#106;avascript:{HACK})", f"[a](\x01javascript:{HACK})", f"[a](data:text/html,<script>{HACK}</script>)",
    f'![a](x" onerror="{HACK})', f'[a](https://a.org/"onmouseover="{HACK})', f"[a](vbscript:{HACK})",
    f'```"><script>{HACK}</script>\nx\n```', f"```html\n{IMAGE}\n```", f"`{IMAGE}`",
    f"| {IMAGE} | b |\n| --- | --- |\n| <iframe srcdoc='<script>1</script>'> | d |",
    "<style>*{display:none}</style>", "<base href=https://a.org>", "<form action=https://a.org><button>b",
    f"# {IMAGE}", f"1. {IMAGE}", f"> <math><mi xlink:href=javascript:{HACK}>",
    f"[{IMAGE}](https://a.org)", f"https://a.org/{IMAGE}",
]  # fmt: skip
ALLOWED = """P BR EM STRONG S CODE PRE SPAN DIV A UL OL LI INPUT H3 H4 H5 H6 HR BLOCKQUOTE TABLE THEAD TBODY TR TH TD
BUTTON svg path"""
UNITS = [
    "*", "**a ", "_", "[", "](", "![", "`", "`` ` ", "> ", "- ", "<", "$$", "\\(", "| ", "~~", "#", "*a _b ", "[a](b ",
    "http://", " ", "\n", "1. \n",
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_markdown(page, text, wanted):
    assert page.evaluate(RENDER, text) == wanted


@pytest.fixture(scope="module")
def page(browser, served):
    """One page for all cases of this file that look at its functions alone."""
    page = browser.new_page()
    page.goto(served[1])
    yield page
    page.close()


def test_code_has_its_language_and_colours(page):
    shown = page.evaluate(RENDER, "```python\nif x: # no\n    return 'a' + 1\n```")
    for part in ('<span class="language">python</span>', '<span class="code-keyword">if</span>',
                 '<span class="code-comment"># no</span>', "<span class=\"code-text\">'a'</span>",
                 '<span class="code-number">1</span>'):  # fmt: skip
        assert part in shown
    assert "<code>&lt;b&gt;</code>" in page.evaluate(RENDER, "```constructor\n<b>\n```")  # no language of that name
    assert "<code>a\n\nb</code>" in page.evaluate(RENDER, "~~~\na\n\nb")  # still being written


def test_hostile_texts_are_texts(page):
    seen = page.evaluate(
        """async (texts) => {
      const { render } = await import("/page/markdown.js");
      const target = document.createElement("div");
      document.body.append(target);
      render(target, texts.join("\\n\\n"));
      const all = [...target.querySelectorAll("*")];
      all.forEach((each) => each.tagName === "A" && each.href.startsWith("java") && each.click());
      await new Promise((done) => setTimeout(done, 50));
      const found = { names: [...new Set(all.map((each) => each.tagName))], hacked: window.hacked ?? null,
        links: all.filter((each) => each.tagName === "A").map((each) => each.href),
        attributes: [...new Set(all.flatMap((each) => each.getAttributeNames()))] };
      target.remove();
      return found;
    }""",
        HOSTILE,
    )
    assert seen["hacked"] is None
    assert set(seen["names"]) <= set(ALLOWED.split())
    assert all(link.startswith("https://a.org/") for link in seen["links"])
    assert not [name for name in seen["attributes"] if name.startswith("on") or name in ("style", "src", "srcdoc")]


def test_hostile_models_and_users_change_nothing(context, served, engine, faults):
    """The same through the whole page: contents, reasoning, calls, results, titles, errors."""
    value = "<arg_key><b>k</b></arg_key><arg_value><script>hacked=1</script></arg_value>"
    call = f"<tool_call>{IMAGE}{value}</tool_call>"
    engine.script = lambda prompt: f"{IMAGE}</think>{IMAGE}{call}<|observation|>"
    page = opened(context, served[1], faults)
    last = ask(page, HOSTILE[0])
    last.locator("textarea").fill(HOSTILE[1])
    engine.script = lambda prompt: f"</think>{HOSTILE[-3]}{END}"
    last.get_by_role("button", name="Send the result").click()
    answer(page)
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=400, json={"error": {"message": HOSTILE[0]}})
    )
    ask(page, HOSTILE[1])
    assert HOSTILE[0] in page.locator(".message .error").inner_text()
    page.reload()
    page.locator("#messages").wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#messages :is(img, script, iframe, style, b:not(.call-name b))").count() == 0
    assert page.locator("#conversations .title").inner_text().startswith("<img src=x")


def test_the_browser_itself_lets_no_text_become_markup(page):
    """Trusted types: were there a hole, assigning markup would fail."""
    assign = "document.createElement('p').innerHTML = '<b>'"
    assert page.evaluate(f"(() => {{ try {{ {assign}; return 'open' }} catch {{ return 'shut' }} }})()") == "shut"


@pytest.mark.parametrize("unit", UNITS)
def test_no_text_takes_long(page, unit):
    text = unit * (60_000 // len(unit))
    began = time.monotonic()
    page.evaluate(RENDER, text)
    page.evaluate(RENDER, f"{text}x")
    assert time.monotonic() - began < 10


def test_only_what_has_changed_is_made_anew(page):
    same = page.evaluate(
        """async () => {
      const { render } = await import("/page/markdown.js");
      const target = document.createElement("div");
      const texts = ["# A\\n\\n", "- b\\n", "- c\\n\\n```\\nd", "\\n```\\n\\ne"];
      texts.forEach((text, n) => { texts[n] = (texts[n - 1] ?? "") + text; });
      const seen = texts.map((text) => { render(target, text); return [...target.childNodes]; });
      const last = document.createElement("div");
      render(last, texts.at(-1));
      const same = (a, b, n) => seen[a][n] === seen[b][n];
      return [same(0, 3, 0), same(2, 3, 1), same(1, 2, 1), last.innerHTML === target.innerHTML];
    }"""
    )
    assert same == [True, True, False, True]


def test_a_long_answer_grows_without_delay(page):
    """12 kB in 600 pieces, each of which shows the whole text again."""
    unit = "Some *text* with `code` and **more**.\n\n- a\n- b\n\n| a | b |\n|-|-|\n| 1 | 2 |\n\n```py\nx = 1\n```\n\n"
    took = page.evaluate(
        """async (text) => {
      const { render } = await import("/page/markdown.js");
      const target = document.createElement("div");
      const began = performance.now();
      for (let end = 20; end <= text.length; end += 20) render(target, text.slice(0, end));
      return performance.now() - began;
    }""",
        (unit * 200)[:12_000],
    )
    assert took < 600 * 16, "one picture of the screen each"


def test_a_link_follows_its_reference_when_that_comes(page):
    shown = page.evaluate(
        """async () => {
      const { render } = await import("/page/markdown.js");
      const target = document.createElement("div");
      for (const text of ["[a][b]\\n\\nc", "[a][b]\\n\\nc\\n\\n[b]: https://c.org/d\\n"]) render(target, text);
      return target.innerHTML;
    }"""
    )
    assert shown == f"<p>{link('https://c.org/d', 'a')}</p><p>c</p>"


def test_events_are_the_same_however_they_are_cut(page):
    whole = 'data: {"a":1}\n\n: comment\ndata: x\ndata: y\r\n\r\ndata:z\n\nevent: e\n\ndata: [DONE]\n\n'
    assert page.evaluate(
        """async (whole) => {
      const { EventReader } = await import("/page/api.js");
      const read = (size) => {
        const events = new EventReader();
        const parts = whole.match(new RegExp(`[^]{1,${size}}`, "g"));
        return JSON.stringify(parts.flatMap((part) => events.push(part)));
      };
      return [...new Set([1, 2, 3, 5, 8, 1000].map(read))];
    }""",
        whole,
    ) == ['["{\\"a\\":1}","x\\ny","z","[DONE]"]']
