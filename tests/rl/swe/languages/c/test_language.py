"""C and C++: files, wrapped programs, build systems, faults, and whole builds."""

import asyncio
import json
import shutil
import subprocess

import pytest

from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.languages.c.building import CMAKE, FOLDER, MAKE, OPTIONS, calls_of, system_of
from arcforge_rl.swe.languages.c.wrapping import functions_of, has_main, wrap
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.running import runs_of
from support.swe_builds import build_and_validate

C, CPP = language_of("c"), language_of("cpp")
PROGRAM = "int main(void) { return 0; } // main() {\n"


@pytest.fixture
def toolchain():
    """The compilers' layer, where the system has none."""
    try:
        for recipe in C.tools():
            ensure(recipe)
    except LayerError as error:
        pytest.skip(f"a toolchain cannot be fetched: {error}")


def test_files(c_repository):
    assert all(map(C.takes, ("tests/a.c", "test_a.c", "src/list-test.c", "src/unittest.c")))
    assert not any(map(C.takes, ("tests/a.h", "src/latest.c", "contest.c", "attest.c", "tests/a.cc")))
    assert all(map(CPP.takes, ("xmltest.cpp", "src/ListTest.cc", "src/ListTests.cc", "src/TestList.cc")))
    assert not any(map(CPP.takes, ("src/Latest.cc", "src/greatest.cc", "src/Testament.cc", "src/Contest.cc")))
    assert CPP.takes("tests/a.cc") and CPP.is_code("src/a.h") and not C.is_code("tests/a.h")
    assert all(map(C.is_setting, ("CMakeLists.txt", "x/Makefile.am", "configure", "cmake/x.cmake")))
    assert language_in(c_repository) is C
    (c_repository / "toy.c").rename(c_repository / "toy.cc")
    for path in list((c_repository / "tests").iterdir()):
        path.rename(path.with_suffix(".cc"))
    assert language_in(c_repository) is CPP


def test_programs_that_have_a_main():
    assert has_main(PROGRAM) and has_main("int\nmain (argc, argv) {}") and has_main("void main(){")
    assert has_main("int X_CDECL main(void)\n{")
    assert not has_main("// int main(void) {\nint domain(void) {}") and not has_main('s = "int main() {";')
    text = "#include <assert.h>\nstatic void test_a(void) { assert(1); }\nint b_test() { return 0; }\n"
    assert functions_of(text) == [("test_a", "void"), ("b_test", "int")]
    assert functions_of("static void test_a(void) { failures++; }") == []


def test_debian_names_libraries(c_repository):
    (c_repository / "debian").mkdir()
    control = "Source: toy\nBuild-Depends: debhelper-compat (= 13),\n libfoo-dev (>= 2), cmake, libbar2-dev, catch2,\n"
    control += " doctest-dev\nX: y\n"
    (c_repository / "debian/control").write_text(control)
    assert C.declared(c_repository) == ["catch2", "doctest-dev", "libbar2-dev", "libfoo-dev"]


def test_options_that_have_tests_built(tmp_path):
    listed = """option(TOY_BUILD_TESTS "Build" OFF)
option ( ENABLE_TOY_TESTING "Build the tests" OFF )
option(
  TOY_TEST "TEST" OFF)
option(NO_TESTS "none" OFF)
option(TOY_DOCS "TESTS of docs" OFF)
"""
    (tmp_path / "CMakeLists.txt").write_text(listed)
    done = subprocess.run(["/bin/sh", "-c", OPTIONS], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-DTOY_BUILD_TESTS=ON", "-DENABLE_TOY_TESTING=ON", "-DTOY_TEST=ON"]


@pytest.mark.parametrize(
    ("script", "name", "text", "made"),
    [
        (MAKE, "Makefile", "program: once\n\ttouch program\nonce:\n\tsh once.sh\n", "program"),
        (
            CMAKE,
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.13)\nproject(toy NONE)\n"
            "add_custom_target(once COMMAND sh ${CMAKE_SOURCE_DIR}/once.sh)\n"
            "add_custom_target(program ALL COMMAND touch program)\nadd_dependencies(program once)\n",
            "build/program",
        ),
    ],
    ids=["make", "cmake"],
)
def test_a_build_that_fails_beside_itself_is_continued_alone(tmp_path, script, name, text, made):
    """A step fails the first time, as two targets do that write one file beside each other."""
    if name == "CMakeLists.txt" and shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    (tmp_path / name).write_text(text)
    (tmp_path / "once.sh").write_text("test -e seen && exit 0\ntouch seen\nexit 1\n")
    words = ["/bin/sh", "-c", script.replace(FOLDER, f"{tmp_path}/build")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
    assert (tmp_path / made).exists(), done.stderr.decode()


def test_calls_of_ctest():
    listed = {"tests": [
        {"name": "a", "command": ["/tmp/b/t", "one"], "properties": [
            {"name": "ENVIRONMENT", "value": ["X=1=2"]}, {"name": "WORKING_DIRECTORY", "value": "/tmp/b"}]},
        {"name": "b", "command": ["/tmp/b/t"], "properties": [{"name": "WILL_FAIL", "value": True}]},
        {"name": "c"},
    ]}  # fmt: skip
    [call] = calls_of(b"-- words\n" + json.dumps(listed).encode())["/tmp/b/t"]
    assert (call.name, call.arguments, call.cwd, call.env) == ("a", ("one",), "/tmp/b", {"X": "1=2"})
    assert calls_of(b"no tests") == {}
    assert system_of(["configure", "CMakeLists.txt"]) == "cmake" and system_of(["README"]) == "plain"


def built(text, code, folder, compiler="gcc"):
    """Returns a wrapped program and its modes."""
    cpp = compiler == "g++"
    made, marker, modes = wrap(text, cpp, "test.c")
    source = folder / f"test{'.cc' if cpp else '.c'}"
    source.write_text(made)
    (folder / "code.c").write_text(code)
    command = [compiler, "-Wall", "-Werror", "-Wno-nonnull-compare", f"-I{folder}", str(source), str(folder / "code.c")]
    subprocess.run([*command, "-o", str(folder / "program")], check=True)
    assert marker.encode() in (folder / "program").read_bytes()
    return str(folder / "program"), modes


def proved(program, mode):
    done = subprocess.run([program, *mode.arguments], capture_output=True)
    return done.returncode == 0 and mode.proof.encode() in done.stdout.split(b"\n")


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_a_wrapped_program(c_repository, tmp_path, compiler):
    if shutil.which(compiler) is None:
        pytest.skip("needs Linux and a C compiler")
    header, code = [(c_repository / name).read_text() for name in ("toy.h", "toy.c")]
    (tmp_path / "toy.h").write_text(header)
    code = f'extern "C" {{\n{code}\n}}\n' if compiler == "g++" else code
    for name, tests in (("clamp", 3), ("digits", 1), ("names", 1)):
        text = (c_repository / f"tests/test_{name}.c").read_text()
        program, modes = built(text, code, tmp_path, compiler)
        assert len(modes) == tests + 2 and [mode.planted for mode in modes] == [False] * tests + [True] * 2
        assert [proved(program, mode) for mode in modes] == [not mode.planted for mode in modes]
        assert subprocess.run([program]).returncode == 0
    program, modes = built(text, code.replace('"one"', '"won"'), tmp_path, compiler)
    assert not any(proved(program, mode) for mode in modes)


@pytest.mark.parametrize(
    "trick",
    [
        "#include <unistd.h>\n__attribute__((constructor)) static void leave(void) { _exit(0); }\n",
        "#include <stdlib.h>\n#include <unistd.h>\nstatic void end(void) { _exit(0); }\n"
        "__attribute__((constructor)) static void late(void) { atexit(end); }\n",
        "#include <signal.h>\n#include <unistd.h>\nstatic void end(int n) { _exit(n - n); }\n"
        "__attribute__((constructor)) static void late(void) { signal(SIGABRT, end); }\n",
    ],
)
def test_code_that_ends_the_process_proves_nothing(tmp_path, trick):
    if shutil.which("gcc") is None:
        pytest.skip("needs Linux and a C compiler")
    text = "#include <assert.h>\nextern int right;\nint main(void) { assert(right); return 0; }\n"
    program, modes = built(text, f"int right = 0;\n{trick}", tmp_path)
    assert not any(proved(program, mode) for mode in modes)


def test_macros_that_hide_failures_make_planted_tests_pass(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("needs Linux and a C compiler")
    (tmp_path / "toy.h").write_text(
        "#include <assert.h>\n#undef assert\n#define assert(x) ((void)0)\nextern int right;\n"
    )
    program, modes = built('#include "toy.h"\nint main(void) { assert(right); return 0; }\n', "int right;\n", tmp_path)
    assert proved(program, modes[0]) and any(mode.planted and proved(program, mode) for mode in modes)


@pytest.mark.parametrize("language", [C, CPP], ids=["c", "cpp"])
def test_faults_parse_and_differ(c_repository, language):
    pytest.importorskip("tree_sitter_c")
    pytest.importorskip("tree_sitter_cpp")
    text = (c_repository / "toy.c").read_text()
    found = list(language.bugs(text, "seed"))
    assert found == list(language.bugs(text, "seed"))
    assert {"comparison", "arithmetic", "branch", "constant"} <= {bug.kind for bug in found}
    assert all(bug.function in ("clamp", "digits", "name_of") and bug.text != text for bug in found)


def test_words_of_failures_and_names():
    text = "a: tests/a.c:5: main: Assertion `f(1) == 2' failed.\nodd value\nAborted\n"
    assert C.observed(text) == ["main: Assertion `f(1) == 2' failed.", "odd value"]
    tests = [
        '#include "toy.h"\nstatic int toy_help(int x) { return x; }\n'
        'int main() { toy_old(toy_new("toy_b(")); puts(1); }'
    ]
    assert C.required_names(tests, {"toy.h": "int toy_old(int);"}) == ["toy_new"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="builds a library in sandboxes, twice with each of three build systems")
def test_outcomes_of_each_build_system(c_system, toolchain):
    system, folder = c_system
    call = {"cmake": "clamp"}.get(system, "main")

    def run(files):
        [done] = asyncio.run(runs_of(C, folder, files, (), C.test_files(folder), 120, [0]))
        assert done.whole, done.reason
        return done

    names = {f"tests/test_{n}.c::{n if system == 'cmake' else 'main'}" for n in ("clamp", "digits", "names")}
    functions = {f"tests/test_clamp.c::test_{n}" for n in ("low", "high")}
    assert run({}).outcomes == dict.fromkeys(names | functions, "passed")
    wrong = (folder / "toy.c").read_text().replace("return high", "return low")
    done = run({"toy.c": wrong})
    failed = {name for name, outcome in done.outcomes.items() if outcome == "failed"}
    assert failed == {f"tests/test_clamp.c::{call}", "tests/test_clamp.c::test_high"}
    broken = run({"tests/test_names.c": "int main(void) { return gone; }\n"})
    assert broken.uncollected == ("tests/test_names.c",) and "gone" in broken.texts["tests/test_names.c"]


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="builds a library dozens of times in sandboxes")
@pytest.mark.parametrize("language", ["c", "cpp"])
def test_the_command_builds_and_validates(c_repository, toolchain, tmp_path, monkeypatch, language):
    pytest.importorskip("tree_sitter_cpp")
    if language == "cpp":
        (c_repository / "toy.c").rename(c_repository / "toy.cc")
        for path in list((c_repository / "tests").iterdir()):
            path.rename(path.with_suffix(".cc"))
    [one] = build_and_validate(["bugs", str(c_repository), "--count", "1"], tmp_path, monkeypatch, 120)
    assert one.language == language
