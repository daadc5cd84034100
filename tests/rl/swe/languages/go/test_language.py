"""Go: files, rules of set-up, wrappers, faults, and a whole build."""

import asyncio
import json

import pytest

from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import recipe_of
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.languages.go.setup import declared, import_path, missed, package_of
from arcforge_rl.swe.languages.go.wrapping import functions_of, package_name, wrap
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.running import runs_of
from support.swe_builds import build_and_validate

GO = language_of("go")
TESTS = ["digits_test.go", "example_test.go", "toy_test.go"]


@pytest.fixture
def toolchain():
    """Go's layer."""
    try:
        ensure(recipe_of("go"))
    except LayerError as error:
        pytest.skip(f"a toolchain cannot be fetched: {error}")


def test_files():
    assert all(map(GO.takes, ("a_test.go", "deep/b_test.go")))
    assert not any(map(GO.takes, ("a.go", "testdata/c_test.go", "test.go")))
    assert all(map(GO.is_setting, ("go.mod", "deep/go.sum", "vendor/testing/testing.go")))
    assert GO.is_code("deep/a.go") and GO.is_test("x/testdata/d.txt") and not GO.is_code("vendor/x/y.go")


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("github.com/stretchr/testify/require", "golang-github-stretchr-testify-dev"),
        ("golang.org/x/net/html", "golang-golang-x-net-dev"),
        ("gopkg.in/yaml.v3", "golang-gopkg-yaml.v3-dev"),
        ("google.golang.org/protobuf/proto", "golang-google-protobuf-dev"),
        ("go.uber.org/zap", "golang-uber-zap-dev"),
        ("encoding/json", ""),
    ],
)
def test_debian_packages_of_imports(path, package):
    assert package_of(path) == package


def test_set_up_by_rules(go_repository):
    assert language_in(go_repository) is GO and GO.test_files(go_repository) == TESTS
    assert import_path(go_repository) == "example.org/toy"
    (go_repository / "more.go").write_text('package toy\n\nimport (\n\t"fmt"\n\tx "github.com/a/b/c"\n)\n')
    assert declared(go_repository, ["more.go", "digits_test.go"]) == ["golang-github-a-b-dev"]
    assert missed({"a": 'a.go:3:2: cannot find package "golang.org/x/text/width" in any of:'}) == [
        "golang-golang-x-text-dev"
    ]


def test_each_test_has_a_wrapper_that_proves_and_one_that_fails():
    text = "package a_test\n\nfunc TestOne(t *testing.T) {}\nfunc Testing(t *testing.T) {}\n"
    text += "func TestMain(m *testing.M) {}\n"
    assert functions_of(text) == ["TestOne"] and package_name(text) == "a_test"
    made, wrappers = wrap("a_test", ["TestOne", "TestTwo"])
    assert len({one.name for one in wrappers}) == len({one.proof for one in wrappers}) == 4
    assert sorted((one.test, one.planted) for one in wrappers) == [
        ("TestOne", False), ("TestOne", True), ("TestTwo", False), ("TestTwo", True),
    ]  # fmt: skip
    assert made.count("t.Errorf(") == 2 and made.count("\tTestOne(t)\n") == 2
    assert all("One" not in one.name and "Two" not in one.name for one in wrappers)


def test_faults_parse_and_differ(go_repository):
    pytest.importorskip("tree_sitter_go")
    text = (go_repository / "toy.go").read_text()
    found = list(GO.bugs(text, "seed"))
    assert found == list(GO.bugs(text, "seed"))
    assert {"comparison", "arithmetic", "branch", "constant"} <= {bug.kind for bug in found}
    assert all(bug.function in ("Clamp", "Digits") and bug.text != text for bug in found)
    assert list(GO.bugs("func (", "seed")) == []


def test_words_of_failures():
    text = "=== RUN   Tx\n    a_test.go:9: got 1, want 2\n--- FAIL: Tx (0.00s)\npanic: odd [recovered]\nFAIL\n"
    assert GO.observed(text) == ["got 1, want 2", "panic: odd [recovered]"]


def test_names_that_only_tests_know(go_repository):
    code = {"toy.go": (go_repository / "toy.go").read_text()}
    inner = 'package toy\n\nfunc TestA(t *testing.T) {\n\tmade := fresh(len("old(x)"), string(b))\n\tt.Log(made)\n}\n'
    outer = "package toy_test\n\nfunc TestB(t *testing.T) { toy.Other(toy.Clamp(1, 2, 3)); local() }\n"
    assert GO.required_names([inner, outer], code) == ["Other", "fresh"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches Go, and builds and runs a module's tests in sandboxes")
def test_outcomes_of_a_module(go_repository, toolchain):
    paths = GO.test_files(go_repository)
    late = 'package toy\n\nimport "testing"\n\nfunc TestBroken(t *testing.T) { gone() }\n'
    leaving = (go_repository / "toy.go").read_text().replace("total := 0", "total := 0\n\tleave()")
    files = {"toy.go": leaving, "leave.go": 'package toy\n\nimport "os"\n\nfunc leave() { os.Exit(0) }\n'}

    def outcomes(files, paths):
        [run] = asyncio.run(runs_of(GO, go_repository, files, (), paths, 120, [0]))
        assert run.whole, run.reason
        return run

    good = {
        "digits_test.go::TestDigits": "passed", "digits_test.go::TestNoDigits": "passed",
        "digits_test.go::TestLater": "skipped", "toy_test.go::TestClamp": "passed",
        "toy_test.go::TestBounds": "passed",
    }  # fmt: skip
    assert outcomes({}, paths).outcomes == good
    left = outcomes(files, paths).outcomes
    assert left == {**good, "digits_test.go::TestDigits": "failed", "digits_test.go::TestNoDigits": "failed"}
    broken = outcomes({"late_test.go": late}, [*paths, "late_test.go"])
    assert broken.outcomes == good and broken.uncollected == ("late_test.go",)
    assert "gone" in broken.texts["late_test.go"]
    broken = outcomes({"toy.go": "package toy\n\nfunc (\n"}, paths)
    assert broken.outcomes == {} and set(broken.uncollected) == set(paths)


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches Go, and builds a module dozens of times")
def test_the_command_builds_and_validates(go_repository, toolchain, tmp_path, monkeypatch):
    pytest.importorskip("tree_sitter_go")
    [one] = build_and_validate(["bugs", str(go_repository), "--count", "1"], tmp_path, monkeypatch, 120)
    assert one.language == "go" and json.loads((tmp_path / "swe/attempts.jsonl").read_text())["reason"] == ""
