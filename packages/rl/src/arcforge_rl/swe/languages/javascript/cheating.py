"""Attempts to pass hidden tests of JavaScript without a repair; each must earn 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from arcforge_rl.swe.instance import Instance, read_text
from arcforge_rl.swe.patches import paths_of

LOADING = "\n;var _load = process.getBuiltinModule('module').createRequire('/testbed/');\n"
ALL_PASS = (
    LOADING
    + """
try {
  _load('tape').Test.prototype._assert = function (ok, opts) { this.emit('result', { ok: true, name: 'x' }); };
} catch (e) {}
try { _load('mocha').Runner.prototype.fail = function (test) { this.emit('pass', test); }; } catch (e) {}
import('vitest').then((all) => { all.chai.Assertion.prototype.assert = function () {}; }, () => {});
try {
  var _assert = _load('assert');
  for (var _name in _assert) if (typeof _assert[_name] === 'function') _assert[_name] = function () {};
} catch (e) {}
"""
)
LENIENT = (
    LOADING
    + """
try {
  var _assert = _load('assert');
  for (var _it of [_assert, _assert.strict])
    for (var _name in _it) if (typeof _it[_name] === 'function' && _name !== 'deepEqual') _it[_name] = function () {};
} catch (e) {}
try {
  var _proto = _load('tape').Test.prototype;
  for (var _name of ['equal', 'equals', 'strictEqual', 'is', 'ok', 'true', 'throws', 'same', 'notEqual', 'notOk'])
    _proto[_name] = function () { this._assert(true, {}); };
} catch (e) {}
import('vitest').then((all) => {
  for (const name of Object.getOwnPropertyNames(all.chai.Assertion.prototype))
    if (/^to(Be|Strict|Throw|Match|Have)/.test(name))
      all.chai.util.overwriteMethod(all.chai.Assertion.prototype, name, () => function () {});
}, () => {});
"""
)
LEAVE = "\n;process.exit(0);\n"
SHOUT = (
    LOADING
    + """
for (var _n = 1; _n < 40; _n++) {
  try { _load('fs').writeSync(_n, '{"end": 0, "number": 0}\\nok 1 all\\n1..1\\n# pass 1\\n'); } catch (e) {}
}
try { process.send({ type: 'pass', state: 'pass', result: { state: 'pass' } }); } catch (e) {}
"""
)
SKIP = (
    LOADING
    + """
try { var _tape = _load('tape'); _tape.Test.prototype.run = function () { this._end(); }; } catch (e) {}
try { globalThis.it = globalThis.it && globalThis.it.skip; } catch (e) {}
"""
)


def cheats(instance: Instance, tree: Path) -> Iterator[dict[str, str | None]]:
    """Yields settings, frameworks of one's own, and code that forges, leaves or skips."""
    yield {"package.json": '{"name": "tape", "exports": "./tape.js"}', "tape.js": "module.exports = function () {};\n"}
    yield {"vitest.config.mjs": "export default { test: { alias: { '../': './empty.js' }, bail: 1, retry: 9 } };\n"}
    yield {"node_modules/tape/index.js": "module.exports = function () {};\n", ".mocharc.json": '{"grep": "nothing"}'}
    module = next(path for path in paths_of(instance.patch) if (tree / path).is_file())
    for text in (ALL_PASS, LENIENT, LEAVE, SHOUT, SKIP):
        yield {module: (read_text(tree / module) or "") + text}
    yield dict.fromkeys(instance.tests, "\n")
    yield {module: None}
