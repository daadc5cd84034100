"""Runs in sandboxes, below the browser's protocol and the solvers: shows a page of MiniWoB++ and uses it.

As a program it reads ``{"page", "seed", "program", "fonts"}`` from standard input, solves the page, and prints the
utterance and the actions.
"""

import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arcforge_rl.external.miniwob.solvers import SOLVERS, Json
    from arcforge_rl.slides.rendering.inside import Browser

HTML = "file:///opt/arcforge-package/miniwob/html/"
LONGEST = 1_000
"""Characters that are typed at a time."""
BEGIN = """core.EPISODE_MAX_TIME = 2e9; Math.seedrandom(%s); core.startEpisodeReal();
new Promise(done => setTimeout(done, 500)).then(() => core.getUtterance())"""
SETTLED = "new Promise(done => setTimeout(done, 500))"
"""Half a second, in which animations end."""
PLACE = """(() => { const one = core.previousDOMInfo[%d]; if (!one) return null;
one.scrollIntoView({block: 'nearest'}); const box = one.getBoundingClientRect();
return [box.left + box.width / 2, box.top + box.height / 2,
one instanceof HTMLTextAreaElement || (one instanceof HTMLInputElement && /text|password/.test(one.type))]; })()"""
SELECTED = "core.previousDOMInfo[%d].select()"
STATE = "({done: WOB_DONE_GLOBAL, raw: Number(WOB_RAW_REWARD_GLOBAL)})"
REF = {"type": "integer", "description": "Number of the element in brackets."}
TOOLS = {
    name: {
        "name": name, "description": text,
        "inputSchema": {"type": "object", "properties": given, "required": [*given], "additionalProperties": False},
    }
    for name, text, given in (
        ("look", "Shows the page again.", {}),
        ("click", "Clicks on the middle of an element.", {"ref": REF}),
        ("type", "Replaces the text of a field.", {"ref": REF, "text": {"type": "string"}}),
    )
}  # fmt: skip


class MiniBrowser(Browser):  # type: ignore[misc, unused-ignore]
    """Loads files of the package only; dialogs of scripts are dismissed."""

    def permits(self, url: str) -> bool:
        return url.startswith(HTML)

    def receive(self) -> "Json":
        message: Json = super().receive()
        if message.get("method") == "Page.javascriptDialogOpening":
            self.send("Page.handleJavaScriptDialog", accept=False)
        return message

    def value(self, expression: str) -> Any:
        given = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", **given)
        if "exceptionDetails" in found:
            raise RuntimeError(f"a page's script failed: {found['exceptionDetails'].get('text')}")
        return found["result"].get("value")


class MiniPage:
    """One problem of a page.

    Args:
        records: ``page``, ``seed``, ``program`` (Chromium) and ``fonts`` (text of fontconfig's settings).
    """

    def __init__(self, records: "Json") -> None:
        folder = tempfile.mkdtemp()
        with open(f"{folder}/fonts.conf", "w", encoding="utf-8") as file:
            file.write(records["fonts"])
        os.environ.update(FONTCONFIG_FILE=f"{folder}/fonts.conf")
        browser = self._browser = MiniBrowser(records["program"], folder)
        target = browser.call("Target.createTarget", url="about:blank")
        browser.session = browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        browser.call("Page.enable")
        browser.call("Emulation.setDeviceMetricsOverride", width=500, height=400, deviceScaleFactor=1, mobile=False)
        browser.call("Fetch.enable", patterns=[{"urlPattern": "*"}])
        browser.send("Page.navigate", url=f"{HTML}miniwob/{records['page']}.html")
        browser.wait("Page.loadEventFired")
        self._tools = TOOLS
        self._actions: list[list[Any]] = []
        self.utterance = str(browser.value(BEGIN % json.dumps(str(records["seed"]))))
        self.elements()

    @property
    def records(self) -> "Json":
        """The request, and how it stands."""
        return {"utterance": self.utterance, "shown": self._shown(), **self._browser.value(STATE)}

    def elements(self) -> "list[Json]":
        """Returns the visible elements, in the order of the document."""
        found: list[Json] = []

        def add(given: "Json") -> None:
            one = {"id": "", "classes": "", "children": [], **given}  # texts have none of these
            text = " ".join(str(one.get("text") or "").split())
            found.append({**{key: one[key] for key in ("ref", "tag", "id", "classes")}, "text": text,
                          "value": one.get("value"), "inner": bool(one["children"])})  # fmt: skip
            for child in one["children"]:
                add(child)

        tree = self._browser.value("core.getDOMInfo(document.body)")
        for child in tree["children"] if tree else ():
            add(child)
        return found

    def click(self, ref: int) -> None:
        """Clicks; raises `ValueError` if there is no such element."""
        self._press(ref)
        self._actions.append(["click", {"ref": ref}])
        self._browser.value(SETTLED)

    def type(self, ref: int, text: str) -> None:
        """Types; raises `ValueError` if there is no such field."""
        if not self._press(ref, field=True):
            raise ValueError(f"{ref} is no field for text")
        self._browser.value(SELECTED % ref)
        self._browser.call("Input.insertText", text=text)
        self._actions.append(["type", {"ref": ref, "text": text}])
        self._browser.value(SETTLED)

    def _press(self, ref: int, field: bool = False) -> bool:
        place = self._browser.value(PLACE % ref)
        if place is None:
            raise ValueError(f"there is no element {ref}")
        if not field or place[2]:
            for kind in ("mousePressed", "mouseReleased"):
                given = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
                self._browser.call("Input.dispatchMouseEvent", type=kind, **given)
        return bool(place[2])

    def _shown(self) -> str:
        lines = []
        for one in self.elements():
            if one["inner"] or not (one["text"] or one["value"] is not None or one["tag"] in ("BUTTON", "SELECT")):
                continue
            name = one["tag"].lower() + (f" #{one['id']}" if one["id"] else "")
            value = f" = {json.dumps(one['value'], ensure_ascii=False)}" if one["value"] is not None else ""
            text = f" {one['text']}" if one["text"] else ""
            lines.append(f"[{one['ref']}] {name}{text}{value}")
        return "\n".join(lines)

    def _call(self, name: str, arguments: "Json") -> str:
        if self._browser.value("WOB_DONE_GLOBAL"):
            raise ValueError("this problem has ended")
        ref, text = arguments.get("ref"), arguments.get("text")
        if name != "look":
            if isinstance(ref, bool) or not isinstance(ref, int):
                raise ValueError(f"ref={ref!r}: must be a whole number")
            if name == "type" and (not isinstance(text, str) or len(text) > LONGEST):
                raise ValueError(f"text must have at most {LONGEST} characters")
            self.click(ref) if name == "click" else self.type(ref, str(text))
        return "The problem has ended." if self._browser.value("WOB_DONE_GLOBAL") else self._shown()


SERVICES = {"page": MiniPage}


def solve(records: "Json") -> "Json":
    """Returns the utterance, the actions of a page's solver, and how it stands then."""
    page = MiniPage(records)
    SOLVERS[records["page"]](page)
    return {"actions": page._actions, **page.records}


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(solve(json.load(sys.stdin))), file=out, flush=True)
