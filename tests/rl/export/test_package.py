"""`arcforge-env export` writes a package, and refuses before it writes."""

import ast
import json
import sys
import tomllib
from pathlib import Path

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.cli import main
from arcforge_rl.configs.export import EnvExportConfig
from arcforge_rl.export.package import needs, run
from arcforge_rl.export.playing import Exported, environment_of


def export(folder: Path, *overrides: str) -> Path:
    return run(compose_config("env_export", EnvExportConfig, [*overrides, f"to={folder}"])).dir


def test_the_written_package(tmp_path, capsys, monkeypatch):
    words = ["environment=tool_math", "environment.split=heldout", f"to={tmp_path}", "package=sums", "version=1.2rc1"]
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "export", *words])
    assert main() == 0
    folder = tmp_path / "sums"
    assert capsys.readouterr().out.splitlines()[:2] == [str(folder), f"pip install -e {folder}"]
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"pyproject.toml", "README.md", "sums/__init__.py", "sums/environment.json"}
    assert not [path for path in folder.rglob("*.*") if path.is_file() and "$" in path.read_text()]
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "sums" and project["project"]["version"] == "1.2rc1"
    assert project["project"]["dependencies"][-1] == "verifiers>=0.4,<0.5"
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["sums"]
    assert "vf-eval sums" in (folder / "README.md").read_text() and "`heldout`" in (folder / "README.md").read_text()
    tree = ast.parse((folder / "sums/__init__.py").read_text())
    public = ast.literal_eval(tree.body[-1].value)
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert public == ["ArcforgeEnv", "SumsHarness", "SumsTaskset", "load_environment"]
    assert defined == {*public} - {"ArcforgeEnv"}


def test_the_environment_is_the_one_that_was_exported(tmp_path):
    folder = export(tmp_path, "environment=math", "environment.kinds=[arithmetic]", "environment.digits=1")
    exported = Exported.beside(str(folder / "arcforge_math/__init__.py"))
    environment = environment_of(exported.fields(None, {}))
    assert environment.config.kinds == ["arithmetic"] and environment.config.digits == 1


def test_files_are_named_by_absolute_paths(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n' * 3)
    monkeypatch.chdir(tmp_path)
    folder = export(tmp_path, "environment=dataset", "environment.path=rows.jsonl", "package=rows")
    config = json.loads((folder / "rows/environment.json").read_text())
    assert config["environment"]["path"] == str(tmp_path / "rows.jsonl")
    assert f"not in the package: {tmp_path / 'rows.jsonl'}." in (folder / "README.md").read_text()


def test_further_agents_are_part_of_it(tmp_path):
    with pytest.raises(ConfigError, match=r"needs reviewer: \+agents.reviewer.url=URL"):
        export(tmp_path, "environment=reviewed_math")
    folder = export(tmp_path, "environment=reviewed_math", "+agents.reviewer={url: 'http://127.0.0.1:9', model: m}")
    config = json.loads((folder / "arcforge_reviewed_math/environment.json").read_text())
    assert config["agents"]["reviewer"]["model"] == "m"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["package=Upper"], "package='Upper': must be lower-case"),
        (["package=a--b"], "must be lower-case"),
        (["package=verifiers"], "is taken"),
        (["package=harbor"], "is taken"),
        (["package=json"], "is taken"),
        (["package=arcforge-core"], "is taken"),
        (["version=one"], "version='one': must be a version"),
        (["environment=nothing"], "nothing"),
        (["environment.digits=many"], "digits"),
        (["+agents.user={url: 'http://127.0.0.1:9'}"], "environment=arithmetic asks no other agent"),
        (["+agents.user={engine: policy}"], "agents.user.engine='policy': cannot be exported"),
        (["environment=reviewed_math", "+agents.reviewer={engine: policy}"], "cannot be exported"),
        (["environment=search", "environment.path=absent"], "absent"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, overrides, message):
    with pytest.raises(ArcforgeError, match=message):
        export(tmp_path, *overrides)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    folder = export(tmp_path, "environment=math")
    with pytest.raises(ConfigError, match="exists already"):
        export(tmp_path, "environment=math")
    assert folder.name == "arcforge-math"


def test_replies_that_are_compared_are_refused(tmp_path, monkeypatch):
    from arcforge_core.contracts.environment import Environment
    from arcforge_core.plugins.loader import registry

    made: type[Environment] = registry().get("environment", "math").load()
    monkeypatch.setattr(made, "compares", True, raising=False)
    with pytest.raises(ConfigError, match="compares the replies"):
        export(tmp_path, "environment=math")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArcforgeError, match="cannot write"):
        export(tmp_path / "file", "environment=math")


def test_requirements():
    assert needs("arcforge-rl 0.1.0", {"name": "math"})[0].startswith("arcforge-rl>=")
    mixed = {"name": "mixture", "parts": {"science": 1.0, "own": 1.0}, "environments": {"own": "slides"}}
    assert needs("arcforge-rl 0.1.0", mixed)[0].startswith("arcforge-rl[science,slides]>=")
    assert needs("letters-environment 0.1.0", {"name": "letters"})[1] == "letters-environment"
