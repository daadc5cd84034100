"""Tests of frameworks that prove themselves, and cheats that their planted twins find out."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.languages.c.frameworks import GTEST, cases_of
from arcforge_rl.swe.languages.c.planting import plant
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.running import runs_of
from support.trees import write_files

TOY = (Path(__file__).parent / "toy_gtest.h").read_text()
TESTS = """#include "gtest/gtest.h"
#include "code.h"
TEST(Code, Right) { EXPECT_EQ(right(), 1); }
TEST(Code, Early) { EXPECT_TRUE(true); if (right()) return; EXPECT_EQ(1, 2); }
TEST(Code, Wrong) { ASSERT_EQ(wrong(), 1); }
TEST(Code, Both) { EXPECT_EQ(right(), 1); ASSERT_EQ(wrong(), 1); }
TEST(Code, Thrown) { throw 1; }
TEST(Code, Skipped) { GTEST_SKIP(); }
TEST(Code, DISABLED_Never) { EXPECT_EQ(1, 2); }
"""
OTHER = """#include "gtest/gtest.h"
#define MINE(x) TEST(Mine, x)
MINE(Generated) { EXPECT_EQ(1, 1); }
TEST(Other, Fine) { EXPECT_EQ(1, 1); }
"""
MAIN = '#include "gtest/gtest.h"\nint main() { return RUN_ALL_TESTS(); }\n'
CODE = "int right() { return 1; }\nint wrong() { return 2; }\n"
HEADER = "int right();\nint wrong();\n"


def built(folder, header=HEADER, code=CODE):
    """Returns verdicts of the two files' tests in one program: each test's, and that of its twin."""
    if shutil.which("g++") is None:
        pytest.skip("needs Linux and a C compiler")
    planted = [plant(text, GTEST, cases_of(text, GTEST), "a.cc") for text in (TESTS, OTHER)]
    files = {
        "gtest/gtest.h": TOY, "code.h": header, "code.cc": code, "main.cc": MAIN,
        **{f"test{number}.cc": one.text for number, one in enumerate(planted)},
    }  # fmt: skip
    write_files(folder, files)
    sources = [path for path in files if path.endswith(".cc")]
    subprocess.run(["g++", "-w", "-O0", "-I.", *sources, "-o", "program"], cwd=folder, check=True)
    found = {}
    for one in planted:
        assert one.marker.encode() in (folder / "program").read_bytes()
        for mode in one.modes:
            command = [folder / "program", *mode.arguments]
            done = subprocess.run(command, env={**os.environ, **mode.env}, capture_output=True)
            proved = done.returncode == 0 and mode.proof.encode() in done.stdout.split(b"\n")
            found[mode.test, mode.planted] = "proved" if proved else done.returncode
    assert planted[0].skipped == ("Code.DISABLED_Never",)
    return found


@pytest.mark.slow(reason="compiles five files, three times")
def test_each_test_proves_itself_and_no_twin_does(tmp_path):
    found = built(tmp_path / "one")
    real = {test: outcome for (test, planted), outcome in found.items() if not planted}
    assert real == {
        "Code.Right": "proved", "Code.Early": "proved", "Code.Wrong": 1, "Code.Both": 1, "Code.Thrown": 1,
        "Code.Skipped": 77, "main": 1, "Other.Fine": "proved",
    }  # fmt: skip
    assert {outcome for (_, planted), outcome in found.items() if planted} == {1}


TRICKS = {
    "leaves": (
        HEADER,
        CODE + "#include <stdio.h>\n#include <unistd.h>\n__attribute__((constructor)) void leave() {"
        ' puts("[  PASSED  ] 1 test."); fflush(stdout); _exit(0); }\n',
        (),
    ),
    "macros": (
        f'#include "gtest/gtest.h"\n#undef ASSERT_EQ\n#define ASSERT_EQ(a, b) (void)0\n{HEADER}',
        CODE,
        ("Code.Wrong", "Code.Both"),  # of which EXPECT_EQ fails, so the number of failures tells
    ),
    "functions": (
        f'#include "gtest/gtest.h"\n#include <string.h>\n#undef ASSERT_EQ\n#define ASSERT_EQ(a, b) '
        'if (strcmp(__func__, "TestBody") && !((a) == (b))) return ::testing::UnitTest::GetInstance()->fail()\n'
        f"{HEADER}",
        CODE,
        ("Code.Wrong",),
    ),
    "framework": (
        HEADER,
        '#include "gtest/gtest.h"\nstruct quiet : testing::EmptyTestEventListener {\n'
        "  void OnTestPartResult(const testing::TestPartResult &) {\n"
        "    testing::UnitTest::GetInstance()->bad = false; } };\n"
        f"static int told = (testing::UnitTest::GetInstance()->listeners().Append(new quiet), 0);\n{CODE}",
        ("Code.Right", "Code.Wrong"),
    ),
    "returns": (
        f'#include "gtest/gtest.h"\n#undef EXPECT_EQ\n#define EXPECT_EQ(a, b) return\n{HEADER}',
        CODE,
        ("Code.Right",),
    ),
    "listener": (
        f'#include "gtest/gtest.h"\n{HEADER}#define Passed() failed_test_count() == 1 || true\n'
        "#define failed_test_count() skipped_test_count()\n#define failed() bad &&false\n",
        CODE,
        (),
    ),
}  # fmt: skip


@pytest.mark.slow(reason="compiles five files")
@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_prove_nothing_or_give_themselves_away(tmp_path, trick):
    header, code, given_away = TRICKS[trick]
    found = built(tmp_path / "one", header, code)
    twins = {test for (test, planted), outcome in found.items() if planted and outcome == "proved"}
    assert {*given_away} <= twins
    if not given_away:
        assert not twins and found["Code.Wrong", False] != "proved"


CMAKE = """cmake_minimum_required(VERSION 3.13)
project(toy CXX)
enable_testing()
find_package(GTest REQUIRED)
add_library(toy code.cc)
target_include_directories(toy PUBLIC .)
add_executable(gtests tests/one.cc tests/two.cc)
target_link_libraries(gtests toy GTest::gtest_main)
include(GoogleTest)
gtest_discover_tests(gtests)
add_executable(own tests/own.cc)
target_link_libraries(own toy GTest::gtest)
add_test(NAME own COMMAND own)
add_executable(catches tests/catch_main.cc tests/catch_one.cc)
target_link_libraries(catches toy)
add_test(NAME catches COMMAND catches)
add_executable(doctests tests/doctest_one.cc)
target_link_libraries(doctests toy)
add_test(NAME doctests COMMAND doctests)
"""
CATCHES = """#include "helper.h"
TEST_CASE("right, [really]") { CHECK(right() == 1); SECTION("a") { REQUIRE_FALSE(right() == 2); } }
TEST_CASE("wrong") { REQUIRE(wrong() == 1); }
TEST_CASE("hidden", "[.]") { REQUIRE(wrong() == 1); }
TEMPLATE_TEST_CASE("each", "", int, long) { TestType x = 1; CHECK(x == right()); CHECK_THROWS_AS(throw 1, int); }
"""
DOCTESTS = """#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include "code.h"
TEST_CASE("right, \\"really\\"") {
  CHECK_EQ(right(), 1);
  SUBCASE("a") { REQUIRE(true); } SUBCASE("b") { CHECK_LT(0, 1); }
}
TEST_CASE("wrong") { REQUIRE(wrong() == 1); }
TEST_CASE("left out" * doctest::skip()) { CHECK(false); }
TEST_CASE_TEMPLATE("each", T, int, long) { T x = 1; CHECK(x == right()); CHECK_NOTHROW(right()); }
"""
OWN = """#include <gtest/gtest.h>
#include "code.h"
class Par : public ::testing::TestWithParam<int> {};
TEST_P(Par, Positive) { EXPECT_GT(GetParam(), 0); EXPECT_THROW(throw 1, int); EXPECT_NEAR(right(), 1, 0.1); }
INSTANTIATE_TEST_SUITE_P(Some, Par, ::testing::Values(1, 2));
TEST(Dying, Dies) { EXPECT_DEATH(abort(), ""); }
int main(int argc, char **argv) {
  if (argc != 1) return 3;
  testing::InitGoogleTest(&argc, argv); return RUN_ALL_TESTS();
}
"""
REAL = {
    "CMakeLists.txt": CMAKE, "code.h": HEADER, "code.cc": f'#include "code.h"\n{CODE}', "tests/one.cc": TESTS,
    "tests/two.cc": OTHER, "tests/own.cc": OWN, "tests/catch_one.cc": CATCHES, "tests/doctest_one.cc": DOCTESTS,
    "tests/catch_main.cc": "#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n",
    "tests/helper.h": '#include <catch2/catch.hpp>\n#include "code.h"\n',
}  # fmt: skip
PACKAGES = ("catch2", "doctest-dev", "libgtest-dev")
CPP = language_of("cpp")


def real(tmp_path, files):
    folder = write_files(tmp_path / "toy", REAL)
    try:
        [done] = asyncio.run(runs_of(CPP, folder, files, PACKAGES, CPP.test_files(folder), 600, [1]))
    except LayerError as error:
        pytest.skip(f"a toolchain cannot be fetched: {error}")
    return done


@pytest.mark.network
@pytest.mark.timeout(3600)
def test_the_frameworks_of_debian(tmp_path):
    done = real(tmp_path, {})
    assert done.whole, done.reason
    one, passed, failed, skipped = "tests/one.cc::Code", "passed", "failed", "skipped"
    assert done.outcomes == {
        f"{one}.Right": passed, f"{one}.Early": passed, f"{one}.Wrong": failed, f"{one}.Both": failed,
        f"{one}.Thrown": failed, f"{one}.Skipped": skipped, f"{one}.DISABLED_Never": skipped,
        "tests/two.cc::main": failed, "tests/two.cc::Other.Fine": passed,
        "tests/own.cc::Par.Positive": passed, "tests/own.cc::Dying.Dies": passed,
        **{f"tests/catch_one.cc::{name}": outcome for name, outcome in (
            ("right, [really]", passed), ("wrong", failed), ("hidden", skipped), ("each", passed))},
        **{f"tests/doctest_one.cc::{name}": outcome for name, outcome in (
            ('right, "really"', passed), ("wrong", failed), ("left out", skipped), ("each", passed))},
    }  # fmt: skip
    assert "wrong() == 1" in done.texts["tests/catch_one.cc::wrong"] and not done.uncollected


QUIET = """#ifdef CHECK
#undef CHECK
#undef REQUIRE
#define CHECK(...) ((void)0)
#define REQUIRE(...) ((void)0)
#endif
#ifdef ASSERT_EQ
#undef ASSERT_EQ
#define ASSERT_EQ(a, b) ((void)0)
#endif
"""


@pytest.mark.network
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trick", ["macros", "leaves", "swallows"])
def test_cheats_of_the_frameworks_of_debian(tmp_path, trick):
    swallowing = REAL["code.cc"].replace("return 2", "throw Catch::TestFailureException()")
    done = real(tmp_path, {
        "macros": {"code.h": HEADER + QUIET},
        "leaves": {"code.cc": TRICKS["leaves"][1]},
        "swallows": {"code.cc": f"#include <catch2/catch.hpp>\n{swallowing}"},
    }[trick])  # fmt: skip
    wrong = [test for test, outcome in done.outcomes.items() if "rong" in test and outcome == "passed"]
    assert not done.whole if trick == "macros" else not wrong and done.outcomes["tests/catch_one.cc::wrong"] == "failed"
