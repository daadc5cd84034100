"""Rust: files, rules of set-up, wrappers, faults, and a whole build."""

import asyncio

import pytest

from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import recipe_of
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.languages.rust.setup import declared, missed
from arcforge_rl.swe.languages.rust.wrapping import functions_of, wrap
from arcforge_rl.swe.running import runs_of
from support.swe_builds import build_and_validate

RUST = language_of("rust")


@pytest.fixture
def toolchain():
    """Rust's layer."""
    try:
        ensure(recipe_of("rust"))
    except LayerError as error:
        pytest.skip(f"a toolchain cannot be fetched: {error}")


def test_files(rust_repository):
    assert language_in(rust_repository) is RUST
    assert RUST.test_files(rust_repository) == ["tests/clamp.rs", "tests/digits.rs"]
    assert not any(map(RUST.takes, ("tests/data/a.rs", "src/tests.rs", "tests/a.txt")))
    assert RUST.is_test("src/tests.rs") and RUST.is_code("src/config.rs")
    assert all(map(RUST.is_setting, ("Cargo.toml", "x/Cargo.lock", "build.rs", ".cargo/config")))
    assert not RUST.is_setting("src/config")


def test_set_up_by_rules(rust_repository):
    manifest = rust_repository / "Cargo.toml"
    more = '[dependencies]\nserde_json = "1"\nown = { path = "own" }\n[dev-dependencies]\nx = { package = "y_z" }\n'
    manifest.write_text(manifest.read_text() + more)
    assert declared(rust_repository) == ["librust-serde-json-dev", "librust-y-z-dev"]
    assert missed({"a": "error: no matching package named `quick_check` found"}) == ["librust-quick-check-dev"]


def test_functions_and_their_calls(rust_repository):
    [low, high, bounds] = functions_of((rust_repository / "tests/clamp.rs").read_text())
    assert (low.call, high.call, low.ignored) == ("low();", "high();", False)
    assert 'contains("above high")' in bounds.call
    [some, later] = functions_of((rust_repository / "tests/digits.rs").read_text())
    assert some.call == "some().unwrap();" and later.ignored
    assert functions_of("mod x {\n    #[test]\n    fn y() {}\n}\n") == []


def test_each_test_has_a_wrapper_that_proves_and_one_that_fails(rust_repository):
    text = (rust_repository / "tests/clamp.rs").read_text()
    made, wrappers = wrap(text)
    assert made.startswith(text) and len({one.name for one in wrappers}) == len({one.proof for one in wrappers}) == 6
    assert sorted(one.test for one in wrappers if one.planted) == ["bounds", "high", "low"]
    added = made[len(text) :]
    assert added.count("assert") == 3 and all(one.proof in added for one in wrappers)


def test_faults_parse_and_differ(rust_repository):
    pytest.importorskip("tree_sitter_rust")
    text = (rust_repository / "src/lib.rs").read_text()
    found = list(RUST.bugs(text, "seed"))
    assert found == list(RUST.bugs(text, "seed"))
    assert {"comparison", "arithmetic", "branch", "constant"} <= {bug.kind for bug in found}
    assert all(bug.function in ("clamp", "digits") and bug.text != text for bug in found)


def test_words_of_failures_and_names():
    text = "running 1 test\nthread 'T1' panicked at 'low must be low', src/lib.rs:6:9\n  left: `1`,\nnote: run with x\n"
    assert RUST.observed(text) == ["low must be low", "left: `1`,"]
    tests = ["use toy::{old, fresh};\nuse std::fmt::Gone;\nuse toy::deep::Other;\nfn helper() {}\n"]
    assert RUST.required_names(tests, {"src/lib.rs": "pub fn old() {} // toy deep"}) == ["Other", "fresh"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches Rust, and builds and runs a crate's tests in sandboxes")
def test_outcomes_of_a_crate(rust_repository, toolchain):
    def run(files):
        [done] = asyncio.run(runs_of(RUST, rust_repository, files, (), RUST.test_files(rust_repository), 240, [0]))
        assert done.whole, done.reason
        return done

    names = [f"tests/clamp.rs::{name}" for name in ("low", "high", "bounds")]
    good = {**dict.fromkeys([*names, "tests/digits.rs::some"], "passed"), "tests/digits.rs::later": "skipped"}
    assert run({}).outcomes == good
    text = (rust_repository / "src/lib.rs").read_text()
    left = run({"src/lib.rs": text.replace("Ok(total)", "std::process::exit(0)").replace("low > high", "low < high")})
    assert left.outcomes == {
        **good, **dict.fromkeys([*names, "tests/digits.rs::some"], "failed"),
    }  # fmt: skip
    broken = run({"tests/digits.rs": "#[test]\nfn some() { toy::gone(); }\n"})
    assert broken.uncollected == ("tests/digits.rs",) and "gone" in broken.texts["tests/digits.rs"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches Rust, and builds a crate dozens of times")
def test_the_command_builds_and_validates(rust_repository, toolchain, tmp_path, monkeypatch):
    pytest.importorskip("tree_sitter_rust")
    [one] = build_and_validate(["bugs", str(rust_repository), "--count", "1"], tmp_path, monkeypatch, 240)
    assert one.language == "rust"
