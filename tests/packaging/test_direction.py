"""Inside a package imports go down: each folder imports only those listed before it, and files never form a circle.

Imports inside functions and under ``TYPE_CHECKING`` count too. A package's own ``__init__.py`` is its public face:
it may import any folder, and nothing inside the package imports it.
"""

import ast
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
FLOORS = {
    "core": """version script moved errors garbage console files tokenizer report plugins config contracts configs
        checkers ops chat web model generation data parallel checkpoint episodes eval train pipeline ui testing cli
        __main__ plugin""",
    "attention": """configs entries latent_records delta_rule gqa hybrid mla dsa swa gdn simple_gdn swa_search
        swa_command ablation cli __main__ plugin""",
    "optim": "configs newton_schulz matrices muon muon_split adamw schedules plugin",
    "rl": """configs endpoints algorithms sandbox layers execution problems environments swe slides search terminal
        dialogue office external objectives rewards processes rollouts orchestrator best_of agents export trainer launch
        cli __main__ plugin""",
    "serving": "configs engine disaggregation remote bench server gateway router serve cli __main__ plugin",
    "hw": """configs torch_ops vendors cpu cuda ascend cambricon enflame hygon kunlunxin metax moore_threads
        quantization planner plugin""",
}
"""Folders and top-level modules of each package, from ground to roof."""
ROOF = ("cli", "testing", "__main__", "plugin")
"""Imported by nothing below them: the product knows neither its command line nor its test suites."""


def imports_of(folder: Path, package: str) -> dict[str, set[str]]:
    """Returns module -> modules of the same package that it imports, the package's face left out."""
    files = {}
    for file in folder.rglob("*.py"):
        parts = [package, *file.relative_to(folder).with_suffix("").parts]
        files[".".join(parts).removesuffix(".__init__")] = file
    found = {module: set() for module in files if module != package}
    for module in found:
        for node in ast.walk(ast.parse(files[module].read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                targets = (names & files.keys()) | ({node.module} if names - files.keys() else set())
            elif isinstance(node, ast.Import):
                targets = {alias.name for alias in node.names}
            else:
                continue
            found[module] |= targets & found.keys() - {module}
    return found


def room(module: str) -> str:
    """Returns the folder or top-level module that a module belongs to."""
    return module.split(".")[1]


def upward(imports: dict[str, set[str]], floors: list[str]) -> list[str]:
    """Returns the imports that go up."""
    return [
        f"{module} imports {target}"
        for module, targets in sorted(imports.items())
        for target in sorted(targets)
        if floors.index(room(target)) > floors.index(room(module))
    ]


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Returns the modules left when those without imports or importers are removed again and again."""
    left = dict(imports)
    while True:
        imported = set().union(*left.values()) if left else set()
        free = [module for module, targets in left.items() if not targets & left.keys() or module not in imported]
        if not free:
            return sorted(left)
        for module in free:
            del left[module]


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_every_folder_has_a_floor(name):
    rooms = {room(module) for module in imports_of(PACKAGES / name / "src" / f"arcforge_{name}", f"arcforge_{name}")}
    assert rooms - {"conf"} <= set(FLOORS[name].split())


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_imports_go_down(name):
    imports = imports_of(PACKAGES / name / "src" / f"arcforge_{name}", f"arcforge_{name}")
    assert upward(imports, [*FLOORS[name].split(), "conf"]) == []


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_no_circle_of_files(name):
    assert circle(imports_of(PACKAGES / name / "src" / f"arcforge_{name}", f"arcforge_{name}")) == []


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_the_product_imports_neither_its_commands_nor_its_suites(name):
    for module, targets in imports_of(PACKAGES / name / "src" / f"arcforge_{name}", f"arcforge_{name}").items():
        if room(module) not in ROOF:
            assert not [target for target in targets if room(target) in ROOF], module


def test_the_checks_see_what_is_wrong(tmp_path):
    (tmp_path / "roof").mkdir()
    (tmp_path / "__init__.py").write_text("from house.roof.tile import Tile")
    (tmp_path / "roof" / "__init__.py").write_text("")
    (tmp_path / "roof" / "tile.py").write_text("from house.cellar import Wine")
    (tmp_path / "cellar.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.roof import tile"
    )
    imports = imports_of(tmp_path, "house")
    assert upward(imports, ["cellar", "roof"]) == ["house.cellar imports house.roof.tile"]
    assert circle(imports) == ["house.cellar", "house.roof.tile"]


@pytest.mark.parametrize("name", FLOORS)
def test_no_module_imports_its_package_s_face(name):
    package = f"arcforge_{name}"
    folder = PACKAGES / name / "src" / package
    rooms = {path.stem for path in folder.iterdir()}
    found = []
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            face = isinstance(node, ast.Import) and any(alias.name == package for alias in node.names)
            if isinstance(node, ast.ImportFrom) and node.module == package and not node.level:
                face = bool({alias.name for alias in node.names} - rooms)
            found += [f"{file.relative_to(folder)}:{node.lineno}"] if face else []
    assert found == []
