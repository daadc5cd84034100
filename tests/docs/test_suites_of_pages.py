"""The components that plugins_reference.md writes, registered by a plugin, pass the suites that it writes for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "plugins_reference.md"
PLUGIN = """
from arcforge_core.plugins.hookspecs import hookimpl

@hookimpl
def arcforge_plugin_api():
    return 2

@hookimpl
def arcforge_register_components(registry):
    registry.add("attention", "one_key", "page:OneKey", schema="page:OneKeyConfig", summary="One key for all heads")
    registry.add("correction", "cap", "page:Cap", schema="page:CapConfig", summary="A capped ratio")
"""


@pytest.mark.nightly(reason="five conformance suites in a fresh process")
def test_the_components_of_the_page_pass_its_suites(pages, tmp_path):
    found = [block.text for block in pages[PAGE] if block.language == "python" and not block.needs and not block.title]
    (tmp_path / "page.py").write_text("\n".join(found))
    (tmp_path / "page_plugin.py").write_text(PLUGIN)
    installed = tmp_path / "page-0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: page\nVersion: 0.1\n")
    (installed / "entry_points.txt").write_text("[arcforge.plugins]\npage = page_plugin\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "page.py", "-k", "not MyChip"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    for suite in ("TestOneKey", "TestOptimizer", "TestCap", "TestBracketParser", "TestRhymes"):
        assert f"class {suite}(" in (tmp_path / "page.py").read_text()
