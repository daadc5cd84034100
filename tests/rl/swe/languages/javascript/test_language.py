"""JavaScript: rules of set-up, faults, and whole builds from npm's archives."""

import asyncio
import json
import shutil
import subprocess
import sys
from importlib import resources

import pytest

from arcforge_rl.cli import main
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.instance import read_instances
from arcforge_rl.swe.languages.javascript.planting import ASSERT, CHAI, TAPE, VITEST
from arcforge_rl.swe.languages.javascript.setup import declared, missed, runner_of
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.results import read_run
from arcforge_rl.swe.running import runs_of

JAVASCRIPT = language_of("javascript")
CODE = "function add(a, b) {\n  if (a < 0) { throw new Error('no'); }\n  return a + b;\n}\nmodule.exports = { add };\n"


def test_runners():
    assert runner_of("const t = require('node:test');\nit('x')") == "node"
    assert runner_of("var test = require('tape');\ntest('test', f)") == "tape"
    assert runner_of("describe('x', () => {})") == "mocha"
    assert runner_of("module.exports = 1; // 'test'") == ""


def test_set_up_by_rules(tmp_path):
    project = {"name": "own", "dependencies": {"a": "^1"}, "devDependencies": {"tape": "^5.2", "eslint": "8"}}
    (tmp_path / "package.json").write_text(json.dumps(project))
    (tmp_path / "test").mkdir()
    (tmp_path / "test/x.js").write_text("var t = require('tape'); require('fs'); require('@s/p/q'); require('../');\n")
    assert language_in(tmp_path) is JAVASCRIPT and JAVASCRIPT.test_files(tmp_path) == ["test/x.js"]
    assert declared(tmp_path, ["test/x.js"]) == ["@s/p@*", "a@^1", "tape@^5.2", "-own"]
    assert missed({"t": "Error: Cannot find module 'chai/register'\nCannot find module 'fs'"}) == ["chai@*"]


def test_files():
    assert all(map(JAVASCRIPT.takes, ("test/a.js", "src/a.test.mjs", "lib/__tests__/b.cjs", "test.js")))
    assert not any(map(JAVASCRIPT.takes, ("test/fixtures/a.js", "lib/a.js", "test/a.json", "contest.js")))
    assert JAVASCRIPT.is_setting("package.json") and not JAVASCRIPT.is_code("test/a.js")


def test_faults_parse_and_differ():
    pytest.importorskip("tree_sitter_javascript")
    found = list(JAVASCRIPT.bugs(CODE, "seed"))
    assert found == list(JAVASCRIPT.bugs(CODE, "seed"))
    assert {"comparison", "arithmetic", "branch"} <= {bug.kind for bug in found}
    assert all(bug.function == "add" and bug.text != CODE for bug in found)
    assert list(JAVASCRIPT.bugs("function (", "seed")) == []


def test_names_that_only_tests_know():
    tests = ["const { fresh, old } = require('../lib');\nimport whole from './x';\nwhole.other(1)\n"]
    assert JAVASCRIPT.required_names(tests, {"lib.js": "function old() {}"}) == ["fresh", "other"]


def test_names_at_any_depth():
    tests = ["import whole, { part } from './x';\nimport * as all from './y';\nwhole.old.fresh(1).map(f); part.made"]
    tests.append("const { old } = require('./z');\nold.deep.other; all.old.fresh.more; fs.unrelated();")
    code = {"lib.js": "function old() {} exports.part = 1; exports.deep = 2;"}
    assert JAVASCRIPT.required_names(tests, code) == ["fresh", "made", "other"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches packages from npm and builds two repositories, with dozens of runs of node")
def test_two_repositories_from_npm(tmp_path, monkeypatch):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    pytest.importorskip("tree_sitter_javascript")
    archives = ("minimist@1.2.7", "minimist@1.2.8", "qs@6.14.0")
    done = subprocess.run(["npm", "pack", "--silent", *archives], cwd=tmp_path, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"minimist cannot be fetched by npm: {done.stderr[-200:]}")
    to = tmp_path / "swe"
    shared = ["--language", "javascript", "--to", str(to), "--seconds", "60"]
    old, new, other = [str(tmp_path / name) for name in done.stdout.split()]
    for words in (
        ["releases", old, new, "--repo", "minimist", "--version", "1.2.8"],
        ["bugs", other, "--repo", "qs", "--count", "1"],
    ):
        monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words, *shared])
        assert main() == 0
    assert [(one.repo, one.kind) for one in read_instances(to)] == [("minimist", "release"), ("qs", "bug")]
    words = ["environment=swe", f"environment.path={to}", "environment.whole=true", f"hydra.run.dir={tmp_path}/out"]
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "validate", *words])
    assert main() == 0


FILES = {
    "a.test.js": ("const test = require('tape');\ntest('a', (t) => { t.ok(1); t.end(); });\n", TAPE),
    "b.test.js": ("const { expect } = require('chai');\nit('b', () => { expect(1).to.equal(1); });\n", CHAI),
    "c.test.js": ("const test = require('node:test');\nrequire('assert');\ntest('c', () => {});\n", ASSERT),
    "d.test.mjs": ("import { test, expect } from 'vitest';\ntest('d', () => { expect(1).toBe(1); });\n", VITEST),
}


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches four test frameworks from npm, and runs them in a sandbox")
@pytest.mark.parametrize(("packages", "letters"), [(("tape@^5", "mocha@^11", "chai@^4"), "abc"), (("vitest@^4",), "d")])
def test_each_planted_assertion_fails_in_each_framework(tmp_path, packages, letters):
    paths = [path for path in FILES if path[0] in letters]
    for path in paths:
        text, kinds = FILES[path]
        (tmp_path / path).write_text(f"{text}// {' '.join(kinds)}\n")
    try:
        [run] = asyncio.run(runs_of(JAVASCRIPT, tmp_path, {}, packages, paths, 300, [0]))
    except LayerError as error:
        pytest.skip(f"packages cannot be fetched: {error}")
    assert run.whole, run
    assert run.outcomes == {f"{path}::{path[0]}": "passed" for path in paths}


def test_code_under_test_sees_no_name_of_the_runner(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    names = ("key", "send", "report", "given", "number", "write")
    seen = ", ".join(f"{name}: typeof {name}" for name in names)
    (tmp_path / "probe.js").write_text(
        f"process.on('exit', () => require('fs').writeFileSync('seen.json', JSON.stringify({{{seen}}})));\n"
    )
    program = (resources.files("arcforge_rl.swe.languages.javascript") / "inside.cjs").read_text("utf-8")
    shell = 'exec 3>signed; exec "$0" -r ./probe.js -e "$1"'
    given = json.dumps({"key": "secret", "files": {}, "seed": ""})
    subprocess.run(["/bin/sh", "-c", shell, node, program], cwd=tmp_path, input=given, text=True, check=True)
    assert json.loads((tmp_path / "seen.json").read_text()) == dict.fromkeys(names, "undefined")
    assert '"end":0' in (tmp_path / "signed").read_text()


def test_processes_of_node_test_do_not_run_the_program_again(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    slow = "test('two', { timeout: 50 }, () => new Promise((resolve) => setTimeout(resolve, 500)));\n"
    (tmp_path / "x.test.cjs").write_text(f"const test = require('node:test');\ntest('one', () => {{}});\n{slow}")
    program = (resources.files("arcforge_rl.swe.languages.javascript") / "inside.cjs").read_text("utf-8")
    (tmp_path / "run.cjs").write_text(program)
    given = json.dumps({"key": "secret", "files": {"node": ["x.test.cjs"]}, "seed": ""})
    subprocess.run(
        ["/bin/sh", "-c", 'exec 3>signed; exec "$0" run.cjs', node],
        cwd=tmp_path, input=given, text=True, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    run = read_run((tmp_path / "signed").read_bytes(), "secret")
    assert run.outcomes == {"x.test.cjs::one": "passed", "x.test.cjs::two": "failed"}
    assert run.endless == {"x.test.cjs::two"}
