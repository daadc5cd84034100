"""PHP: files, set-up, outcomes of PHPUnit, faults, and whole builds."""

from collections import Counter

import pytest

from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.languages.php.planting import KINDS
from arcforge_rl.swe.languages.php.setup import bootstraps, missed
from support.swe_builds import build_and_validate, runs_with_layer

PHP = language_of("php")
ODD = """<?php

class OddTest extends PHPUnit\\Framework\\TestCase
{
    public function testBad() { $this->assertSame([1], [2]); }
    public function testLater() { $this->markTestSkipped('not today'); }
    public function testBroken() { Acme\\Toy::gone(); }
    /** @depends testBad */
    public function testAfter() { $this->assertTrue(true); }
}
"""


def test_files(elephants):
    assert language_in(elephants) is PHP
    assert PHP.test_files(elephants) == ["tests/ClampTest.php", "tests/DigitsTest.php"]
    assert not any(map(PHP.takes, ("tests/bootstrap.php", "tests/_files/ATest.php", "src/Latest.php")))
    assert PHP.is_test("Test/Helper.php") and PHP.is_setting("phpunit.xml") and PHP.is_setting("x/composer.json")
    assert PHP.is_code("src/Toy.php") and not PHP.is_code("tests/Helper.php")


def test_set_up_by_rules(tmp_path):
    assert bootstraps({"phpunit.xml": '<phpunit\n  bootstrap="./tests/start.php">'}) == ["tests/start.php"]
    assert bootstraps({"phpunit.xml.dist": "<phpunit bootstrap='vendor/autoload.php'/>"}) == bootstraps({}) == []
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian/control").write_text(
        "Source: php-toy\nBuild-Depends: phpunit, php-symfony-yaml (>= 5),\n php-toy, pkg-php-tools\n\n"
        "Package: php-toy\n"
    )
    assert PHP.declared(tmp_path) == ["php-symfony-yaml"]
    assert missed({"t": "Error: Call to undefined function mb_strlen()"}) == ["php-mbstring"]
    assert missed({"t": "Call to undefined function Acme\\bcadd()\nCall to undefined function bcadd()"}) == [
        "php-bcmath"
    ]


def test_faults_parse_and_differ(elephants):
    pytest.importorskip("tree_sitter_php")
    for name, functions in (("Toy", {"clamp"}), ("digits", {"digits"})):
        code = (elephants / f"src/{name}.php").read_text()
        found = list(PHP.bugs(code, "seed"))
        assert {"comparison", "branch"} <= {bug.kind for bug in found}
        assert {bug.function for bug in found} == functions and all(bug.text != code for bug in found)


def test_names_that_only_tests_know():
    tests = [
        "Toy::fresh(1); Toy::old(); Other::thing(); Toy::class; new Toy(); Toy::MOST; function own() {} Toy::own();"
    ]
    assert PHP.required_names(tests, {"src/Toy.php": "class Toy { function old() {} }"}) == ["MOST", "fresh"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches PHP and PHPUnit, and runs them in sandboxes")
def test_outcomes_of_phpunit(elephants):
    (elephants / "tests/OddTest.php").write_text(ODD)
    (elephants / "tests/NoneTest.php").write_text("<?php\nclass NoneTest extends Acme\\Gone {}\n")
    runs = runs_with_layer(PHP, elephants)
    assert [run.whole for run in runs] == [True, True], [run.reason for run in runs]
    assert runs[0].outcomes == runs[1].outcomes
    assert Counter(runs[0].outcomes.values()) == {"passed": 6, "failed": 2, "skipped": 2}
    assert runs[0].passed('tests/ClampTest.php::testInside with data set "high"')
    assert runs[0].uncollected == ("tests/NoneTest.php",)
    assert "undefined method Acme\\Toy::gone()" in runs[0].texts["tests/OddTest.php::testBroken"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches PHP and PHPUnit, and runs them in sandboxes")
def test_each_planted_assertion_fails(elephants):
    with (elephants / "tests/ClampTest.php").open("a") as file:
        file.write(f"// {' '.join(KINDS)}\n")
    assert [run.reason for run in runs_with_layer(PHP, elephants)] == ["", ""]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches PHP, and builds a repository with dozens of runs")
def test_toy_repository(elephants, tmp_path, monkeypatch):
    pytest.importorskip("tree_sitter_php")
    runs_with_layer(PHP, elephants)
    made = build_and_validate(["bugs", str(elephants), "--repo", "toy", "--count", "3"], tmp_path, monkeypatch)
    assert [one.language for one in made] == ["php"] * 3
