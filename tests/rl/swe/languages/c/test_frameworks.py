"""Names and bodies of the tests of GoogleTest, Catch2 and doctest, read from sources."""

import pytest

from arcforge_rl.swe.languages.c.building import TestCall as Call
from arcforge_rl.swe.languages.c.building import framework_call
from arcforge_rl.swe.languages.c.frameworks import CATCH, DOCTEST, GTEST, cases_of, framework_of, literal, runs_tests


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        ("#include <gtest/gtest.h>", GTEST), ('# include "gmock/gmock.h"', GTEST),
        ('#include "gtest/gtest-spi.h"', GTEST),
        ("#include <catch2/catch.hpp>", CATCH), ("#include <catch2/catch_test_macros.hpp>", CATCH),
        ("#include <catch2/matchers/catch_matchers.hpp>", CATCH), ('#include "../catch.hpp"', CATCH),
        ('#include "catch_amalgamated.hpp"', CATCH),
        ("#include <doctest/doctest.h>", DOCTEST), ('#include "doctest.h"', DOCTEST),
        ("// #include <gtest/gtest.h>", None), ('#include "catcher.hpp"', None), ("#include <mygtest.h>", None),
    ],
)  # fmt: skip
def test_frameworks_by_their_headers(line, framework):
    assert framework_of([f"int x;\n{line}\n"]) is framework
    assert framework_of(["int x;\n", f"{line}\n"]) is framework


def named(text, framework, headers=()):
    found = cases_of(text, framework, headers)
    return {case.name: case.filter for case in found.found}, found.unread


def test_names_of_googletest():
    text = """
TEST(Alpha, One) { EXPECT_EQ(1, 1); }
TEST_F(Fix,
       Two)
{ ASSERT_EQ(1, 1); }
TEST_P(Par, Three) {}
TYPED_TEST(Ty, Four) { }
// TEST(No, One) {
/* TEST(No, Two) { */
const char *a = "TEST(No, Three) {", *b = R"x(" TEST(No, Four) { )x";
int big = 1'000'000; char c = '"'; TEST(Alpha, DISABLED_Five) {}
#define OTHER(x) 1
"""
    assert named(text, GTEST) == (
        {
            "Alpha.One": "Alpha.One", "Fix.Two": "Fix.Two", "Par.Three": "*/Par.Three/*:Par.Three/*",
            "Ty.Four": "Ty/*.Four", "Alpha.DISABLED_Five": "Alpha.DISABLED_Five",
        },
        False,
    )  # fmt: skip
    cases = cases_of(text, GTEST)
    assert [case.skipped for case in cases.found] == [False] * 4 + [True]
    assert cases.found[1].assertions == ("ASSERT_EQ",) and cases.assertions == ("EXPECT_EQ", "ASSERT_EQ")
    assert text[cases.found[0].start : cases.found[0].end] == " EXPECT_EQ(1, 1); "


def test_tests_that_cannot_be_read_are_noticed():
    assert named("#define MY(x) TEST(Mine, x)\nMY(One) { }\n", GTEST) == ({}, True)
    assert named("#define MY(x) TEST(Mine, x)\n", GTEST) == ({}, False)
    assert named("GEN(One)\n", GTEST, ["#define GEN(x) \\\n  TEST(Mine, x) { f(); }\n"]) == ({}, True)
    assert named("MY_TEST(One) {\n}\n", GTEST) == ({}, True)
    assert named("TEST_CASE(NAME) {}\n", CATCH) == ({}, True)
    assert named("TEST_CASE() {}\n", CATCH) == ({}, True)
    assert named('TEST_SUITE(x) {\nTEST_CASE("a") {}\n}\n', DOCTEST) == ({"a": "a"}, False)
    assert named("void f() { if (TEST_MODE(x)) { } }\nINSTANTIATE_TEST_SUITE_P(A, B, C);\n", GTEST) == ({}, False)


def test_names_of_catch_and_doctest():
    text = """
TEST_CASE("one, [two]" " more", "[tag]") { CHECK(f()); SECTION("x") { REQUIRE(1); } }
TEST_CASE_METHOD(F, "m") { }
TEMPLATE_TEST_CASE("t", "[x]", int, (std::pair<int, int>)) { }
CATCH_SCENARIO("s") { }
TEST_CASE("hidden", "[.]") { }
TEST_CASE("fails", "[!mayfail]") { }
"""
    assert named(text, CATCH) == (
        {
            "one, [two] more": "one\\, \\[two\\] more", "m": "m", "t": "t - *", "s": "Scenario\\: s",
            "hidden": "hidden", "fails": "fails",
        },
        False,
    )  # fmt: skip
    found = cases_of(text, CATCH).found
    assert [case.name for case in found if case.skipped] == ["hidden", "fails"]
    assert found[0].assertions == ("CHECK", "REQUIRE") and found[3].prefix == "CATCH_"
    text = """
TEST_CASE("a, b*" * doctest::description("d")) { CHECK_EQ(1, 1); }
TEST_CASE_FIXTURE(F, "f") { }
TEST_CASE_TEMPLATE("t", T, int, long) { }
SCENARIO("s") { }
TEST_CASE("no" * doctest::skip()) { }
"""
    filters = {"a, b*": "a? b?", "f": "f", "t": "t<*", "s": "  Scenario: s", "no": "no"}
    assert named(text, DOCTEST) == (filters, False)
    assert [case.skipped for case in cases_of(text, DOCTEST).found] == [False] * 4 + [True]


def test_bodies_with_conditional_compilation_have_no_certain_end():
    [case] = cases_of("TEST(A, B) {\n#if X\n if (x) {\n#else\n if (y) {\n#endif\n }\n}\n", GTEST).found
    assert case.end is None and case.name == "A.B"


def test_literals():
    assert literal(' "a" "b\\"" ') == 'ab"' and literal('"a" * f()') == "a"
    assert literal("NAME") is None and literal('"a\\n"') is None and literal('"a" NAME') is None


def test_main_functions_of_frameworks():
    assert runs_tests("int main() { return RUN_ALL_TESTS(); }") and not runs_tests("int main() { return f(); }")


def test_calls_of_programs_whose_tests_ctest_lists():
    calls = [Call("a", ("data", "--gtest_filter=A.B"), "/x", {"A": "1"})]
    assert framework_call(calls, "gtest") == Call("", ("data",), "/x", {"A": "1"})
    assert framework_call(calls * 2, "gtest").arguments == () and framework_call(calls, "catch").arguments == ()
