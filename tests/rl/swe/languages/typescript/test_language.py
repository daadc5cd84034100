"""TypeScript: files, set-up, planted tests, faults, and whole builds."""

import shutil
import subprocess

import pytest

from arcforge_rl.swe.languages.javascript.planting import inside
from arcforge_rl.swe.languages.javascript.setup import runner_of
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.languages.signed import Wrong
from support.swe_builds import build_and_validate

TYPESCRIPT = language_of("typescript")
WRONG = [Wrong(("order", "copy"), (1,), (2,), "deepEqual")]


def test_files_and_set_up(typed):
    assert language_in(typed) is TYPESCRIPT
    assert TYPESCRIPT.test_files(typed) == ["test/clamp.test.ts", "test/step.test.ts", "test/way.test.ts"]
    assert TYPESCRIPT.declared(typed) == ["tape@^5", "tsx@*", "vitest@^4", "-toy"]
    assert TYPESCRIPT.is_setting("tsconfig.json") and TYPESCRIPT.is_setting("vitest.config.mts")
    assert TYPESCRIPT.is_code("src/toy.tsx") and not TYPESCRIPT.is_code("src/toy.test.tsx")
    assert TYPESCRIPT.not_code.search("types/index.d.ts") and not TYPESCRIPT.not_code.search("src/index.ts")


def test_runners():
    assert runner_of("import { it } from 'vitest';") == "vitest"
    assert runner_of("it('x', f)", ["vitest@^4"]) == "vitest" and runner_of("it('x', f)", ["chai@*"]) == "mocha"


@pytest.mark.parametrize(
    ("path", "text", "head"),
    [
        ("a.ts", "import x from '../x';", "import {}"),
        ("a.js", "const x = require('x');\nimport('y');", "const {}"),
        ("a.mjs", "", "import {}"),
        ("a.cts", "import x = require('x');", "const {}"),
    ],
)
def test_planted_tests_load_their_runner_as_the_file_loads_modules(path, text, head):
    planted = inside(path, text, "node", WRONG)
    assert planted.startswith(head.removesuffix("{}")) and '"order copy"' in planted and "[1], [2]" in planted


def test_faults_of_types_and_elements():
    pytest.importorskip("tree_sitter_typescript")
    plain = "export const add = <T extends number>(a: T, b: T): number => { if (a < 0) { return b; } return a + b; };\n"
    found = list(TYPESCRIPT.bugs(plain, "seed"))
    assert {"comparison", "arithmetic", "branch"} <= {bug.kind for bug in found}
    element = "function Box(p: { n: number }) { return <b>{p.n + 1}</b>; }\n"
    assert {bug.kind for bug in TYPESCRIPT.bugs(element, "seed")} == {"arithmetic", "constant"}


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches packages from npm and builds a repository, with dozens of runs of node")
def test_toy_repository(typed, tmp_path, monkeypatch):
    [one] = build(["bugs", str(typed), "--repo", "toy", "--count", "1"], tmp_path, monkeypatch)
    assert one.language == "typescript"


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches two releases and packages from npm, with dozens of runs of node")
def test_release_from_npm(tmp_path, monkeypatch):
    archives = ("zod@4.1.12", "zod@4.1.13")
    done = subprocess.run([npm(), "pack", "--silent", *archives], cwd=tmp_path, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"zod cannot be fetched by npm: {done.stderr[-200:]}")
    old, new = [str(tmp_path / name) for name in done.stdout.split()]
    words = ["releases", old, new, "--repo", "zod", "--version", "4.1.13", "--language", "typescript"]
    [one] = build(words, tmp_path, monkeypatch)
    assert one.kind == "release" and len(one.FAIL_TO_PASS) >= 1 and len(one.PASS_TO_PASS) > 1000


def build(words, tmp_path, monkeypatch):
    """Builds and validates; skips where it cannot."""
    npm()
    pytest.importorskip("tree_sitter_typescript")
    return build_and_validate(words, tmp_path, monkeypatch, seconds=900)


def npm():
    """Returns npm's path."""
    if (path := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    return path
