"""Packages that a model names are those of a registry, whatever it writes."""

import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import InvalidRequirement, Requirement

from arcforge_rl.layers.npm import _split
from arcforge_rl.swe.packages import KINDS, LONGEST, flaw_in, name_of

GOOD = {
    "wheels": ("requests", "PyYAML", "zope.interface", "a", "ruamel.yaml>=0.17,<0.19", "x[test,dev]==1.0.*", "b~=1.4"),
    "npm": ("tape", "@types/node@*", "chai@^4.3.10", "mocha@10", "x@1.x", "lodash.merge@4.6.2", "a@1.0.0-beta.1"),
    "debian": ("libz-dev", "g++", "librust-serde+default-dev", "golang-github-pkg-errors-dev", "python3.11"),
}
HOSTILE = (
    "", " ", "-r", "--index-url=http://evil", "--index-url http://evil", "-e .", "-own", "http://evil/a.whl",
    "git+https://evil/x", "file:///etc/passwd", "x @ http://evil/x.whl", "x@http://evil", "x@git+ssh://evil",
    "x@file:../..", "x@npm:y@1", "x@user/repo", "user/repo", "./x", "../x", "/etc/passwd", "~/x", "x/../y",
    "x;rm -rf ~", "x && y", "$(id)", "`id`", "x|y", "x\n--pre", "x\n", "x\0", "x y", "x=1", "x/stable", "x.whl",
    "x.zip", "x.tar.gz", "x-1.0-py3-none-any.whl", "x.zip[a]", "x==1.0.zip", "x@1.0.0-a.tgz", "x.deb",
    "x; python_version>'3'", "x===1", "x==1+local", "x>=1 <2", "x[", "x[]", "x@latest;", "@/x", "@a/@b", "..", ".",
    "x*", "é", "a" * (LONGEST + 1),
)  # fmt: skip
PIECES = st.sampled_from([*"-_.@/[]<>=!~,;+*$ \n\0ab1é", ".whl", ".tgz", "==", "x", "--", "://", "git+", "file:"])


@pytest.mark.parametrize("source", KINDS)
def test_packages_that_can_be_named(source):
    assert {name: flaw_in(name, source) for name in GOOD[source]} == dict.fromkeys(GOOD[source], "")


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("text", HOSTILE)
def test_texts_that_are_no_package(text, source):
    flaw = flaw_in(text, source)
    assert flaw.endswith(f"is not {KINDS[source].words}") and len(flaw) < 6 * LONGEST and "\n" not in flaw


def test_a_debian_package_is_never_removed():
    assert flaw_in("libz-dev-", "debian") and flaw_in("x", "debian") and not flaw_in("xz", "debian")


@given(st.lists(PIECES, max_size=8).map("".join) | st.text(string.printable, max_size=20))
@example("x==1.0,<2")
def test_an_installer_reads_an_accepted_text_as_a_package(text):
    for source in KINDS:
        if flaw_in(text, source):
            continue
        assert re.match(r"[A-Za-z0-9@]", text) and not re.search(r"\s|://|\.\.[/\\]|[;|&$`'\"\\]", text)
        assert not text.lower().endswith((".whl", ".zip", ".tgz", ".tar.gz", ".deb"))
        if source == "npm":
            name, version = _split(text)
            assert name.count("/") == name.startswith("@") and not re.search("[/:]", version)
        else:
            assert "/" not in text and "@" not in text
        if source == "wheels":
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue  # pip refuses it, and reads it as nothing else
            assert requirement.url is None and requirement.marker is None
            assert name_of(text) == re.sub(r"[-_.]+", "-", requirement.name).lower()
