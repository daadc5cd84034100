"""Runs in a sandbox: shows a document in Chromium without scripts; prints measures and pictures as JSON.

Reads ``{"program", "html", "selector", "width", "height", "pictures", "pdf"}`` from standard input. The browser is
spoken to through a pipe; requests for anything except the document are refused and counted.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

Json = dict[str, Any]

OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-extensions", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--font-render-hinting=none",
    "--disable-lcd-text", "--no-zygote", "--disable-breakpad",
)  # fmt: skip


class Browser:
    """The browser's protocol: null-terminated JSON messages over two pipes."""

    def __init__(self, program: str, folder: str) -> None:
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()

        def wire() -> None:
            first, second = os.dup(to_browser), os.dup(to_us)
            os.dup2(first, 3)
            os.dup2(second, 4)

        with open(f"{folder}/log", "wb") as log:
            self.child = subprocess.Popen(
                [program, *OPTIONS, f"--user-data-dir={folder}/profile"], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=log, close_fds=False, preexec_fn=wire,
            )  # fmt: skip
        os.close(to_browser)
        os.close(to_us)
        self.write, self.read = from_us, from_browser
        self.number, self.left, self.session, self.refused, self.address = 0, b"", "", 0, ""

    def send(self, method: str, **given: Any) -> int:
        self.number += 1
        message: Json = {"id": self.number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data) :]
        return self.number

    def call(self, method: str, **given: Any) -> Json:
        number = self.send(method, **given)
        while True:
            message = self.receive()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error'].get('message')}")
                result: Json = message["result"]
                return result

    def wait(self, event: str) -> None:
        while self.receive().get("method") != event:
            pass

    def permits(self, url: str) -> bool:
        return url == self.address

    def receive(self) -> Json:
        while b"\0" not in self.left:
            data = os.read(self.read, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self.left += data
        line, self.left = self.left.split(b"\0", 1)
        message: Json = json.loads(line)
        if message.get("method") == "Fetch.requestPaused":
            request = message["params"]
            if self.permits(request["request"]["url"]):
                self.send("Fetch.continueRequest", requestId=request["requestId"])
            else:
                self.refused += 1
                self.send("Fetch.failRequest", requestId=request["requestId"], errorReason="BlockedByClient")
        return message


def show(given: Json, folder: str) -> Json:
    path = f"{folder}/deck.html"
    with open(path, "w", encoding="utf-8") as file:
        file.write(given["html"])
    browser = Browser(given["program"], folder)
    target = browser.call("Target.createTarget", url="about:blank")
    browser.session = browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
    browser.address = f"file://{path}"
    browser.call("Page.enable")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    size = {"width": given["width"], "height": given["height"], "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.call("Fetch.enable", patterns=[{"urlPattern": "*"}])
    browser.send("Page.navigate", url=browser.address)
    browser.wait("Page.loadEventFired")
    snapshot = browser.call("DOMSnapshot.captureSnapshot", computedStyles=[])
    found = {"version": browser.call("Browser.getVersion")["product"], **measures(snapshot, given["selector"])}
    if given["pictures"]:
        found["pictures"] = []
        for left, top, wide, high in found["pages"][:20]:
            clip = {"x": left, "y": top, "width": min(wide, 2000), "height": min(high, 2000), "scale": 1}
            taken = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
            found["pictures"].append(taken["data"])
    if given["pdf"]:
        inches = {"paperWidth": given["width"] / 96, "paperHeight": given["height"] / 96}
        margins = {f"margin{side}": 0 for side in ("Top", "Bottom", "Left", "Right")}
        found["pdf"] = browser.call("Page.printToPDF", printBackground=True, **inches, **margins)["data"]
    found["refused"] = browser.refused
    browser.child.kill()
    browser.child.wait()
    return found


def measures(snapshot: Json, selector: list[str]) -> Json:
    """Returns the rectangles of pages, boxes and lines of text; a rectangle is left, top, width, height in px."""
    tag, wanted = selector
    words, document = snapshot["strings"], snapshot["documents"][0]
    nodes, layout, lines = document["nodes"], document["layout"], document["textBoxes"]
    place = {node: n for n, node in enumerate(layout["nodeIndex"])}

    def word(number: int) -> str:
        return str(words[number]) if number >= 0 else ""

    def attributes(node: int) -> dict[str, str]:
        pairs = nodes["attributes"][node]
        return {word(pairs[n]): word(pairs[n + 1]) for n in range(0, len(pairs), 2)}

    page_of: dict[int, int] = {}
    pages: list[list[float]] = []
    for node, parent in enumerate(nodes["parentIndex"]):
        name = word(nodes["nodeName"][node]).lower()
        in_body = parent >= 0 and word(nodes["nodeName"][parent]).lower() == "body"
        if name == tag and in_body and wanted in attributes(node).get("class", "").split():
            page_of[node] = len(pages)
            pages.append(layout["bounds"][place[node]] if node in place else [0, 0, 0, 0])
        elif parent in page_of:
            page_of[node] = page_of[parent]
    boxes: list[Json] = []
    drawn: dict[int, list[tuple[list[float], int, int]]] = {}
    for n, layout_index in enumerate(lines["layoutIndex"]):
        drawn.setdefault(layout_index, []).append((lines["bounds"][n], lines["start"][n], lines["length"][n]))
    texts: list[Json] = []
    hidden: list[Json] = []
    for node, kind in enumerate(nodes["nodeType"]):
        value = word(nodes["nodeValue"][node]) if nodes["nodeValue"][node] >= 0 else ""
        if kind == 1 and node in page_of and node in place:
            boxes.append({"page": page_of[node], "node": node, "parent": nodes["parentIndex"][node],
                          "rect": layout["bounds"][place[node]]})  # fmt: skip
        if kind != 3 or node not in page_of or not value.strip():
            continue
        at = place.get(node, -1)
        if at not in drawn:
            hidden.append({"page": page_of[node], "text": value.strip()[:200]})
            continue
        shown = word(layout["text"][at])
        texts.append({
            "page": page_of[node], "node": node, "parent": nodes["parentIndex"][node],
            "lines": [{"rect": rect, "text": shown[start : start + length]} for rect, start, length in drawn[at]],
        })  # fmt: skip
    return {"pages": pages, "boxes": boxes, "texts": texts, "hidden": hidden}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            answer = show(json.load(sys.stdin), folder)
        except (RuntimeError, OSError) as error:
            with open(f"{folder}/log", "rb") as log:
                answer = {"error": str(error), "log": log.read()[-600:].decode(errors="replace")}
        json.dump(answer, sys.stdout)
