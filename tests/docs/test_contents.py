"""The pages say what the code says: hooks, kinds, ops, variables, recipes; and their links lead somewhere."""

import inspect
import re
from pathlib import Path

import pytest

from arcforge_core.contracts.attention import Attention
from arcforge_core.contracts.chat import ChatParser, ChatTemplate
from arcforge_core.contracts.conversation import Checker
from arcforge_core.contracts.data import DocumentSource
from arcforge_core.contracts.engine import Engine
from arcforge_core.contracts.environment import Environment
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.contracts.optimizer import ROLES, OptimizerFactory
from arcforge_core.contracts.sandbox import SandboxBackend
from arcforge_core.ops.specs import SPECS
from arcforge_core.plugins import hookspecs
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import FIRST_PARTY, Registrar
from arcforge_core.testing import SUITES

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "plugins_reference.md").read_text(encoding="utf-8")
LINKED = sorted(
    file
    for pattern in ("*.md", "conf/*.md", "docs/**/*.md", "packages/*/*.md", "examples/plugins/*/*.md")
    for file in ROOT.glob(pattern)
)
OURS = [c for c in registry() if c.distribution.split()[0].removeprefix("arcforge-") in FIRST_PARTY]
CONTRACTS = {
    "attention": Attention,
    "optimizer": OptimizerFactory,
    "hardware": Hardware,
    "engine": Engine,
    "environment": Environment,
    "reward": Checker,
    "chat_template": ChatTemplate,
    "parser": ChatParser,
    "data": DocumentSource,
    "sandbox": SandboxBackend,
}
HOOKS = [name for name in vars(hookspecs) if name.startswith("arcforge_")]
SOURCES = ("packages/*/src/**/*.py", "examples/plugins/*/src/**/*.py", "scripts/*", "Makefile")
VARIABLE = re.compile(r"ARCFORGE_[A-Z_]+|environ(?:\.get\(|\[)\"(\w+)\"")


def signature(function):
    return str(inspect.signature(function)).replace("'", "")


def section(text, heading):
    """Returns what stands below a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    _, _, rest = text.partition(f"\n{heading}\n")
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


# ---- plugins_reference.md ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_has_its_exact_signature(hook):
    assert f"`{hook}{signature(getattr(hookspecs, hook))}`" in section(REFERENCE, "## Hooks")


def test_no_other_hook_is_described():
    assert set(re.findall(r"`(arcforge_\w+)\(", REFERENCE)) == set(HOOKS)


def test_add_has_its_exact_signature():
    assert f"`add{signature(Registrar.add).replace('self, ', '')}`" in REFERENCE


def test_plugin_api_number():
    assert f"now {hookspecs.PLUGIN_API}" in section(REFERENCE, "## Compatibility")
    assert f"now {hookspecs.PLUGIN_API}" in section(REFERENCE, "## Hooks")


@pytest.mark.parametrize("kind", sorted({c.kind for c in OURS}))
def test_kind_has_a_section_that_covers_its_contract(kind):
    text = section(REFERENCE, f"### {kind}")
    assert text, f"docs/plugins_reference.md has no section {kind}"
    contract = CONTRACTS.get(kind)
    members = [] if contract is None else [*vars(contract), *vars(contract).get("__annotations__", ())]
    for name in members:
        if not name.startswith("_") or name == "__call__":
            assert f"`{name}" in text, f"{kind}: {name} is not described"


def test_table_of_kinds_lists_our_components_and_suites():
    rows = re.findall(r"^\| (\w+) \| .+? \| (.+?) \| (.+?) \|$", section(REFERENCE, "## Kinds"), re.MULTILINE)
    listed = {kind: set(re.findall(r"`(\w+)`", names)) for kind, _, names in rows if kind != "kind"}
    assert listed == {kind: {c.name for c in OURS if c.kind == kind} for kind in {c.kind for c in OURS}}
    assert {suite for _, suites, _ in rows for suite in re.findall(r"`(\w+Suite)`", suites)} == set(SUITES)


@pytest.mark.parametrize("op", sorted(SPECS))
def test_op_has_its_arguments_and_sizes(op):
    arguments = ", ".join(inspect.signature(SPECS[op].reference).parameters)
    assert f"| `{op}` | `{arguments}` | `{' '.join(SPECS[op].sizes)}` |" in REFERENCE


def test_roles():
    assert f"`{' '.join(ROLES)}`" in REFERENCE


# ---- env.md --------------------------------------------------------------------------------------------------------


def table_of_variables():
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "env.md").read_text(encoding="utf-8"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def source_text():
    return "\n".join(f.read_text(encoding="utf-8") for pattern in SOURCES for f in ROOT.glob(pattern) if f.is_file())


def test_every_variable_that_is_read_is_described():
    read = {match[1] or match[0] for match in VARIABLE.finditer(source_text())}
    assert {"ARCFORGE_CACHE", "RANK"} <= read, "the search finds nothing"
    assert read - table_of_variables() == set()


def test_every_variable_that_is_described_is_read():
    assert {name for name in table_of_variables() if not re.search(rf"\b{name}\b", source_text())} == set()


# ---- README.md, conf/README.md, links ------------------------------------------------------------------------------


def test_readme_opens_with_what_it_is_a_picture_and_the_two_commands():
    opening = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    assert re.fullmatch(
        r"# arcforge\n\n[^#!`]+\n\n!\[.+\]\(.+\)\n\n```bash\nmake run .*\nmake test .*\n```\n\n.+", opening, re.S
    )


def test_readme_names_every_package_and_command():
    text = section((ROOT / "README.md").read_text(encoding="utf-8"), "## Packages")
    for name in FIRST_PARTY:
        assert f"[arcforge-{name}](packages/{name}/README.md)" in text
    for project in ROOT.glob("packages/*/pyproject.toml"):
        for script in re.findall(r"^arcforge(-\w+)? = ", project.read_text(), re.MULTILINE):
            assert script in text, f"arcforge{script}"


def test_readme_is_short_and_says_where_to_read_on():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert all(len(cell) <= 300 for cell in re.split(r"\n|\|", text))


def test_commands_of_the_readmes_table_are_run_on_some_page(pages):
    rows = re.findall(r"^\| .+? \| `(.+?)` \| \[", section((ROOT / "README.md").read_text(), "## I want to ..."), re.M)
    run = {line.split("  #")[0].strip() for found in pages.values() for b in found for line in b.text.splitlines()}
    assert len(rows) > 10
    assert set(rows) - run == set()


def test_architecture_names_every_folder():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package in FIRST_PARTY:
        for init in ROOT.glob(f"packages/{package}/src/arcforge_{package}/*/__init__.py"):
            name = init.parent.name
            assert name == "conf" or re.search(rf"[`/]{name}/", text), f"docs/architecture.md lacks {init.parent}"


def test_the_log_lists_every_entry_and_entries_are_newest_first():
    index = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs" / "log").glob("*.md")):
        entries = re.findall(r"^## ((\d{4}-\d\d-\d\d): .*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert [entry for entry, _ in entries if f"[{entry[12:]}](log/{page.name}#" not in index] == []
        dates = [date for _, date in entries]
        assert dates == sorted(dates, reverse=True), page.name


def test_every_recipe_is_described():
    text = (ROOT / "conf" / "README.md").read_text(encoding="utf-8")
    recipes = {
        f.relative_to(ROOT / "conf").with_suffix("").as_posix().replace("/", "=") for f in ROOT.glob("conf/*/*.yaml")
    }
    assert set(re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE)) == recipes


def anchors(file):
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", LINKED, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_links_resolve(file):
    text = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), f"{link}: {target.relative_to(ROOT)} is not there"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"
