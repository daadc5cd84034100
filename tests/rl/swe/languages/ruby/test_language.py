"""Ruby: files, set-up, frameworks, faults, and a whole build."""

from collections import Counter

import pytest

from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.languages.ruby.planting import METHODS, RSPEC
from arcforge_rl.swe.languages.ruby.setup import declared, framework_of, missed
from support.swe_builds import build_and_validate, runs_with_layer

RUBY = language_of("ruby")


def test_files(rubies):
    assert language_in(rubies) is RUBY
    assert RUBY.test_files(rubies) == ["spec/toy_spec.rb", "test/digits_test.rb", "test/test_clamp.rb"]
    assert not any(map(RUBY.takes, ("test/test_helper.rb", "spec/support/a.rb", "lib/latest.rb", "lib/unit_test.rb")))
    assert RUBY.is_setting(".rspec") and not RUBY.is_code("spec/support/a.rb") and RUBY.is_code("lib/toy.rb")


def test_frameworks(rubies):
    texts = {path: (rubies / path).read_text() for path in RUBY.test_files(rubies)}
    assert [framework_of(path, text) for path, text in texts.items()] == ["rspec", "unit", "minitest"]
    assert framework_of("spec/a_spec.rb", "describe 'x' do", ["require 'minitest/spec'"]) == "minitest"
    assert framework_of("test/a_test.rb", "class A < Case", ["require 'test/unit'"]) == "unit"
    assert framework_of("test/data_test.rb", "X = 1") == ""


def test_set_up_by_rules(tmp_path):
    (tmp_path / "toy.gemspec").write_text(
        "Gem::Specification.new do |s|\n  s.add_dependency 'tzinfo_data', '~> 1'\n"
        "  s.add_development_dependency('minitest')\nend\n"
    )
    assert declared(tmp_path) == ["ruby-tzinfo-data"]
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian/control").write_text(
        "Source: ruby-toy\nBuild-Depends: rake,\n ruby-rspec, ruby-concurrent (>= 1), ruby-toy\n\nPackage: ruby-toy\n"
    )
    assert declared(tmp_path) == ["ruby-concurrent"]
    assert missed({"t": "LoadError: cannot load such file -- active_support/all"}) == ["ruby-active-support"]


def test_faults_parse_and_differ(rubies):
    pytest.importorskip("tree_sitter_ruby")
    code = (rubies / "lib/toy.rb").read_text()
    found = list(RUBY.bugs(code, "seed"))
    assert {"comparison", "arithmetic", "branch", "constant", "omission"} <= {bug.kind for bug in found}
    assert {bug.function for bug in found} == {"clamp", "digits"} and all(bug.text != code for bug in found)


def test_names_that_only_tests_know():
    tests = ["Toy.fresh(1); Toy::Part.made; Toy::Gone.more; Toy.old.deep; Other.thing; Toy.new"]
    code = {"lib/toy.rb": "module Toy\n  class Part\n  end\n  def old; end\nend\n"}
    assert RUBY.required_names(tests, code) == ["Gone", "deep", "fresh", "made"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches Ruby and its test frameworks, and runs them in sandboxes")
def test_all_frameworks_report(rubies):
    (rubies / "test/odd_test.rb").write_text(
        "require 'minitest/autorun'\nclass OddTest < Minitest::Test\n  def test_bad = assert_equal(1, 2)\n"
        "  def test_later = skip('not today')\nend\n"
    )
    (rubies / "spec/broken_spec.rb").write_text("require 'nothing/here'\nRSpec.describe('x') { it('y') {} }\n")
    runs = runs_with_layer(RUBY, rubies)
    assert [run.whole for run in runs] == [True, True] and runs[0].outcomes == runs[1].outcomes
    assert Counter(runs[0].outcomes.values()) == {"passed": 8, "failed": 1, "skipped": 1}
    assert runs[0].uncollected == ("spec/broken_spec.rb",) and RUBY.missed(runs[0]) == ["ruby-nothing"]
    assert "Expected: 1" in runs[0].texts["test/odd_test.rb::OddTest#test_bad"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches Ruby and its test frameworks, and runs them in sandboxes")
def test_each_planted_assertion_fails(rubies):
    for path, kinds in (("test/test_clamp.rb", METHODS), ("test/digits_test.rb", METHODS), ("spec/toy_spec.rb", RSPEC)):
        with (rubies / path).open("a") as file:
            file.write(f"# {' '.join(kinds)}\n")
    assert [run.reason for run in runs_with_layer(RUBY, rubies)] == ["", ""]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="fetches Ruby, and builds a repository with dozens of runs")
def test_toy_repository(rubies, tmp_path, monkeypatch):
    pytest.importorskip("tree_sitter_ruby")
    runs_with_layer(RUBY, rubies)
    made = build_and_validate(["bugs", str(rubies), "--repo", "toy", "--count", "3"], tmp_path, monkeypatch)
    assert [one.language for one in made] == ["ruby"] * 3
