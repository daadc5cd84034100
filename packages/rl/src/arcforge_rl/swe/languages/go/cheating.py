"""Attempts to pass hidden tests of Go without a repair; each must earn 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from arcforge_rl.swe.instance import Instance, read_text
from arcforge_rl.swe.languages.go.wrapping import package_name
from arcforge_rl.swe.patches import paths_of

LEAVE = """package {package}

import "os"

func init() {{ os.Exit(0) }}
"""
SHOUT = """package {package}

import (
	"os"
	"strings"
	"syscall"
)

func init() {{
	for _, given := range os.Args {{
		if strings.HasPrefix(given, "-test.run=^") {{
			name := strings.Trim(strings.TrimPrefix(given, "-test.run="), "^$")
			os.Stdout.WriteString("=== RUN   " + name + "\\n--- PASS: " + name + " (0.00s)\\nPASS\\n")
			syscall.Exit(0)
		}}
	}}
}}
"""
UNFAILED = """package {package}

import (
	"reflect"
	"syscall"
	"unsafe"
)

//go:linkname fail testing.(*common).Fail
func fail(unsafe.Pointer)

func init() {{
	start := reflect.ValueOf(fail).Pointer()
	page := unsafe.Slice((*byte)(unsafe.Pointer(start&^4095)), 8192)
	if syscall.Mprotect(page, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC) == nil {{
		*(*byte)(unsafe.Pointer(start)) = 0xc3
	}}
}}
"""
"""The machine code of a failure returns before it notes one; a function without a body needs a file of assembly."""
FAKE_TESTING = """package testing

type T struct{}

func (*T) Errorf(string, ...interface{}) {}
func (*T) Failed() bool { return false }
func (*T) Skipped() bool { return false }
func (*T) Cleanup(done func()) { done() }
"""
FAKE_TESTS = """package {package}

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {{ os.Exit(0) }}
"""


def cheats(instance: Instance, tree: Path) -> Iterator[dict[str, str | None]]:
    """Yields files to write: a TestMain, a testing package, and code that leaves, forges output or undoes failures."""
    module = next(path for path in paths_of(instance.patch) if path.endswith(".go") and (tree / path).is_file())
    text, folder = read_text(tree / module) or "", PurePosixPath(module).parent
    package = package_name(text)
    for name, part in (("aaa.go", LEAVE), ("aaa.go", SHOUT), ("zzz_test.go", FAKE_TESTS)):
        yield {str(folder / name): part.format(package=package)}
    yield {str(folder / "aaa.go"): UNFAILED.format(package=package), str(folder / "aaa.s"): "// none\n"}
    yield {str(folder / "vendor/testing/testing.go"): FAKE_TESTING, "vendor/testing/testing.go": FAKE_TESTING}
    yield {module: re.sub(r"(?m)^(func (?!init\b)[^\n]*\{)$", r"\1 leaving()", text) + LEAVING, **_aid(folder, package)}
    yield dict.fromkeys(instance.tests, f"package {package}\n")
    yield {module: None}


LEAVING = "\nfunc leaving() { leave() }\n"


def _aid(folder: PurePosixPath, package: str) -> dict[str, str | None]:
    """Returns a file whose function prints what a test that passes does, and ends the process."""
    text = SHOUT.format(package=package).replace("func init()", "func leave()")
    return {str(folder / "leave.go"): text}
