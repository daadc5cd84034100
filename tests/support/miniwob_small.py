"""A small package in the form of MiniWoB++: two pages and the parts of its script that an agent's page needs."""

import functools
import tempfile
from pathlib import Path

from support.trees import write_files

HELD: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that are removed with the process."""
CORE = """
var WOB_DONE_GLOBAL = false, WOB_RAW_REWARD_GLOBAL = 0, core = {EPISODE_MAX_TIME: 10, previousDOMInfo: {}, next: 1};
Math.seedrandom = seed => { core.seed = Number(seed); };
core.sample = list => list[core.seed % list.length];
core.startEpisodeReal = () => { genProblem(); setTimeout(() => core.endEpisode(-1), core.EPISODE_MAX_TIME); };
core.endEpisode = reward => { if (!WOB_DONE_GLOBAL) { WOB_RAW_REWARD_GLOBAL = reward; WOB_DONE_GLOBAL = true; } };
core.getUtterance = () => document.getElementById('query').textContent;
core.getDOMInfo = one => {
  one.dataset.ref = one.dataset.ref || core.next++;
  core.previousDOMInfo[one.dataset.ref] = one;
  const found = {ref: Number(one.dataset.ref), tag: one.tagName, id: one.id, classes: one.className};
  if (one instanceof HTMLInputElement) { found.tag += '_' + one.type; found.value = one.value; }
  found.children = [...one.children].filter(inner => inner.id !== 'query').map(core.getDOMInfo);
  if (!found.children.length) found.text = one.textContent;
  return found;
};
"""
PAGE = """<!DOCTYPE html><script src="../core/core.js"></script><script src="http://127.0.0.1/far.js"></script>
<script>function genProblem() {{ {problem} }}</script><body><p id="query"></p><div>{body}</div></body>"""
FORM = '<input type="text" id="tt"><button id="subbtn">Submit</button>'
PAGES = {
    "enter-text": (
        """const name = core.sample(['Ada', 'Ben', 'Cleo']); alert('an endless one');
        document.getElementById('query').textContent = `Enter "${name}" into the text field and press Submit.`;
        document.getElementById('subbtn').onclick =
          () => core.endEpisode(document.getElementById('tt').value === name ? 1 : -1);""",
        FORM,
    ),
    "click-test-2": (
        """document.getElementById('query').textContent = 'Click button ONE.';
        document.getElementById('subbtn').onclick = () => core.endEpisode(1);
        document.getElementById('subbtn2').onclick = () => core.endEpisode(-1);""",
        '<button id="subbtn">ONE</button><button id="subbtn2">TWO</button>',
    ),
}


@functools.cache
def small_miniwob() -> Path:
    """Returns a folder with ``miniwob``, which lasts as long as the process."""
    held = tempfile.TemporaryDirectory(prefix="miniwob-small-")
    HELD.append(held)
    Path(held.name).chmod(0o755)  # sandboxes have users of their own
    files = {
        f"miniwob/html/miniwob/{name}.html": PAGE.format(problem=problem, body=body)
        for name, (problem, body) in PAGES.items()
    }
    metadata = "Metadata-Version: 2.1\nName: miniwob\nVersion: 9.9\nLicense: Free\n\nx"
    write_files(
        Path(held.name), {**files, "miniwob/html/core/core.js": CORE, "miniwob-9.9.dist-info/METADATA": metadata}
    )
    return Path(held.name)
