"""Java: files, set-up, outcomes of JUnit, faults, and whole builds."""

from collections import Counter

import pytest

from arcforge_rl.swe.languages.java.cheating import cheats
from arcforge_rl.swe.languages.java.planting import KINDS, canary
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.languages.signed import planted
from support.swe_builds import build_and_validate, runs_with_layer

JAVA = language_of("java")
FOLDER = "src/test/java/acme"
ODD = """package acme;
public class OddTest {
    @org.junit.Test public void bad() { org.junit.Assert.assertEquals(1, 2); }
    @org.junit.Test public void later() { org.junit.Assume.assumeTrue(false); }
}
"""


def test_files(beans):
    assert language_in(beans) is JAVA
    assert JAVA.test_files(beans) == [f"{FOLDER}/ClampTest.java", f"{FOLDER}/DigitsTest.java"]
    assert all(map(JAVA.takes, ("TestA.java", "a/ATests.java", "a/XTestCase.java")))
    assert not any(map(JAVA.takes, ("src/Latest.java", "src/Testing.java", "a/Test.kt", "src/test/java/Helper.java")))
    assert JAVA.is_test("src/test/java/Helper.java") and JAVA.is_setting("pom.xml")
    assert JAVA.is_code("src/main/java/acme/Toy.java") and not JAVA.is_code("module-info.java")


def test_libraries_of_debian(tmp_path):
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian/control").write_text("Source: toy\nBuild-Depends: maven, libcommons-io-java (>= 2), junit4\n")
    assert JAVA.declared(tmp_path) == ["libcommons-io-java"]


def test_faults_parse_and_differ(beans):
    pytest.importorskip("tree_sitter_java")
    code = (beans / "src/main/java/acme/Toy.java").read_text()
    found = list(JAVA.bugs(code, "seed"))
    assert {"comparison", "arithmetic", "branch", "constant"} <= {bug.kind for bug in found}
    assert {bug.function for bug in found} == {"clamp", "digits"} and all(bug.text != code for bug in found)


def test_words_of_failures_and_names():
    text = "org.opentest4j.AssertionFailedError: expected: <1> but was: <2>\nat acme.Toy(Toy.java:3)"
    assert JAVA.observed(text) == ["expected: <1> but was: <2>"]
    tests = ["Toy.fresh(1); Toy.digits(2).gone(); Other.thing(); Toy.class"]
    assert JAVA.required_names(tests, {"Toy.java": "class Toy { int digits() {} }"}) == ["fresh"]


@pytest.mark.parametrize(
    ("text", "marker"),
    [
        ("package a.b;\nimport org.junit.Test;", "import org.junit.Test;"),
        ("import org.junit.jupiter.api.Test;", "import org.junit.jupiter.api.Test;"),
    ],
)
def test_planted_tests_are_for_the_version_of_junit(text, marker):
    _, tests = planted(list(KINDS))
    made = canary("XTest", text, tests)
    assert marker in made and made.count("@Test ") == len(KINDS) and made.startswith("package a.b;") is ("a.b" in text)


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches JUnit, and compiles and runs classes in sandboxes")
def test_outcomes_of_junit(beans):
    (beans / FOLDER / "OddTest.java").write_text(ODD)
    (beans / FOLDER / "GoneTest.java").write_text("package acme;\nclass GoneTest { int x = Toy.gone(); }\n")
    with (beans / FOLDER / "ClampTest.java").open("a") as file:
        file.write(f"// {' '.join(KINDS)}\n")
    runs = runs_with_layer(JAVA, beans)
    assert [run.reason for run in runs] == ["", ""] and runs[0].outcomes == runs[1].outcomes
    assert Counter(runs[0].outcomes.values()) == {"passed": 6, "failed": 1, "skipped": 2}
    assert runs[0].uncollected == (f"{FOLDER}/GoneTest.java",)
    assert "cannot find symbol" in runs[0].texts[f"{FOLDER}/GoneTest.java"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches JUnit, and compiles and runs classes in sandboxes")
def test_code_that_keeps_planted_classes_from_compiling_is_noticed(beans):
    (beans / FOLDER / "DigitsTest.java").unlink()
    with (beans / FOLDER / "ClampTest.java").open("a") as file:
        file.write("// assertThrows\n")
    files = {"src/main/java/acme/IllegalStateException.java": "package acme;\nclass IllegalStateException { }\n"}
    assert [run.whole for run in runs_with_layer(JAVA, beans)] == [True, True]
    assert all("planted" in run.reason and not run.whole for run in runs_with_layer(JAVA, beans, files))


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches JUnit, and builds a repository with dozens of runs")
def test_toy_repository(beans, tmp_path, monkeypatch):
    pytest.importorskip("tree_sitter_java")
    runs_with_layer(JAVA, beans)
    made = build_and_validate(["bugs", str(beans), "--repo", "toy", "--count", "2"], tmp_path, monkeypatch)
    [one, _] = made
    assert one.language == "java" and len(list(cheats(one, tmp_path / "swe/trees" / one.tree))) == 8
    assert all("not today" in text for text in list(cheats(one, tmp_path / "swe/trees" / one.tree))[5].values())
