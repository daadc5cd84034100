"""Failing tests that are planted beside Ruby's, with the assertions that those use."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_rl.swe.languages.signed import Wrong

CALLS = {
    "assert": "{a} > {b}",
    "assert_empty": "{made}",
    "assert_equal": "{wanted}, {made}",
    "assert_false": "{a} < {b}",
    "assert_in_delta": "{a}, {b}, 0.5",
    "assert_include": "{made}, -1",
    "assert_includes": "{made}, -1",
    "assert_instance_of": "Hash, {made}",
    "assert_kind_of": "Hash, {made}",
    "assert_match": "/^{b}$/, '{a}'",
    "assert_nil": "{made}",
    "assert_not_equal": "{made}, {made}",
    "assert_not_nil": "nil",
    "assert_operator": "{a}, :>, {b}",
    "assert_predicate": "{made}, :empty?",
    "assert_respond_to": "{made}, :no_{a}",
    "assert_same": "{made}, {made}",
    "assert_true": "{a} > {b}",
    "refute": "{a} < {b}",
    "refute_empty": "[]",
    "refute_equal": "{made}, {made}",
    "refute_includes": "{made}, {a}",
    "refute_match": "/{a}/, '{a}'",
    "refute_nil": "nil",
}
METHODS = {
    **{name: f"{name}({given})" for name, given in CALLS.items()},
    "assert_nothing_raised": "assert_nothing_raised {{ raise '{a}' }}",
    "assert_raise": "assert_raise(ArgumentError) {{ {made} }}",
    "assert_raises": "assert_raises(ArgumentError) {{ {made} }}",
    "must_be_nil": "Minitest::Expectation.new({made}, self).must_be_nil",
    "must_equal": "Minitest::Expectation.new({made}, self).must_equal({wanted})",
    "must_raise": "Minitest::Expectation.new(-> {{ {made} }}, self).must_raise(ArgumentError)",
}
"""Assertion of minitest or test-unit -> a call that fails; one that a framework lacks fails as well."""
RSPEC = {
    "be": "expect({a}).to be > {b}",
    "be_a": "expect({made}).to be_a(Hash)",
    "be_empty": "expect({made}).to be_empty",
    "be_falsey": "expect({a} < {b}).to be_falsey",
    "be_nil": "expect({made}).to be_nil",
    "be_truthy": "expect({a} > {b}).to be_truthy",
    "contain_exactly": "expect({made}).to contain_exactly(-1)",
    "eq": "expect({made}).to eq({wanted})",
    "eql": "expect({made}).to eql({wanted})",
    "equal": "expect({made}).to equal({wanted})",
    "include": "expect({made}).to include(-1)",
    "match": "expect('{a}').to match(/^{b}$/)",
    "match_array": "expect({made}).to match_array({wanted})",
    "not_to": "expect({made}).not_to eq({made})",
    "raise_error": "expect {{ {made} }}.to raise_error(ArgumentError)",
    "to_not": "expect({made}).to_not eq({made})",
}
KINDS = {"minitest": METHODS, "unit": METHODS, "rspec": RSPEC}
"""Framework -> its assertions, each as a statement that fails; the name is a word of every test that uses it."""
DEFAULT = {"minitest": "assert_equal", "unit": "assert_equal", "rspec": "eq"}
METHOD = "  def test_{name}; {line}; end\n"
CANARIES = {
    "minitest": ("require 'minitest'\nclass {name} < Minitest::Test\n", METHOD),
    "unit": ("require 'test/unit'\nclass {name} < Test::Unit::TestCase\n", METHOD),
    "rspec": ("RSpec.describe '{name}' do\n", "  it('{name}') {{ {line} }}\n"),
}
"""Framework -> head of a planted file, and one of its tests."""


def canary(framework: str, words: Sequence[str], tests: Sequence[Wrong]) -> str:
    """Returns a file of tests that fail."""
    head, one = CANARIES[framework]
    join = " " if framework == "rspec" else "_"
    name = "".join(word.title() for word in words)
    lines = [one.format(name=join.join(t.words), line=t.fill(KINDS[framework][t.kind])) for t in tests]
    return "".join([head.format(name=name), *lines, "end\n"])
