"""Two environments of each language, built from a registry's sources with nothing fetched before."""

import sys
from collections import Counter

import pytest

from arcforge_rl.cli import main
from arcforge_rl.swe.instance import read_instances

SOURCES = """
bugs parse==1.20.2 --version 1.20.2 --count 1
releases parse==1.20.1 parse==1.20.2 --version 1.20.2
bugs npm:minimist==1.2.8 --count 1
releases npm:qs==6.11.0 npm:qs==6.11.1 --version 6.11.1
bugs debian:node-regexpp --count 2
bugs debian:golang-github-google-uuid --count 1
bugs debian:golang-github-pkg-errors --count 1
bugs debian:cjson --count 2
bugs debian:snappy --count 2
bugs debian:ruby-dotenv --count 1
bugs debian:ruby-ole --count 1
bugs debian:php-webmozart-assert --count 1
bugs debian:php-doctrine-inflector --count 1
bugs debian:libandroid-json-org-java --count 2
"""


@pytest.mark.network
@pytest.mark.timeout(7200)
def test_two_environments_of_each_language(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sources.txt").write_text(SOURCES)
    folder = tmp_path / "swe"
    words = ["all", str(tmp_path / "sources.txt"), "--to", str(folder), "--minutes", "60"]
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words])
    assert main() == 0
    built = Counter(one.language for one in read_instances(folder))
    languages = ("c", "cpp", "go", "java", "javascript", "php", "python", "ruby", "typescript")
    assert {name: built[name] for name in languages} == dict.fromkeys(languages, 2)
    out = f"hydra.run.dir={tmp_path}/out"
    words = ["environment=swe", f"environment.path={folder}", "environment.whole=true", "environment.seconds=300"]
    words += ["concurrency=2", out]
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "validate", *words])
    assert main() == 0
