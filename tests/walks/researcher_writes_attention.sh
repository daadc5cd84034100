# A researcher copies the attention of docs/plugins_reference.md, tests it, packs it as a plugin and trains with it.
set -euo pipefail
mkdir -p mine/src/one_key
python - <<'PY'
import os, pathlib, re
page = pathlib.Path(os.environ["REPOSITORY"], "docs/plugins_reference.md").read_text()
[block] = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class OneKey(" in text]
start, end = block.index("@dataclass"), block.index("class OneKey(")
config, attention = block[start:end], block[: block.index("class TestOneKey(")].replace("import pytest\n", "")
head = "from dataclasses import dataclass\nfrom arcforge_core.config.schema import AttentionConfig\n"
pathlib.Path("mine/src/one_key/configs.py").write_text(head + config)
suite = "import pytest\nfrom arcforge_core.testing import AttentionSuite\nfrom one_key.configs import OneKeyConfig\n"
pathlib.Path("test_one_key.py").write_text(suite + block[block.index("class TestOneKey(") :])
pathlib.Path("mine/src/one_key/attention.py").write_text(attention.replace(config, ""))
PY
touch mine/src/one_key/__init__.py
cat > mine/src/one_key/plugin.py <<'PY'
from arcforge_core.plugins.hookspecs import hookimpl
@hookimpl
def arcforge_plugin_api():
    return 2
@hookimpl
def arcforge_register_components(registry):
    registry.add("attention", "one_key", "one_key.attention:OneKey", schema="one_key.configs:OneKeyConfig", summary="Mine")
PY
cat > mine/pyproject.toml <<'TOML'
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "one-key"
version = "0.1.0"
entry-points."arcforge.plugins".one-key = "one_key.plugin"
TOML
install_here mine
pytest -q test_one_key.py
arcforge-train experiment=smoke attention=one_key trainer.max_steps=2 trainer.samples=0
grep -q "name: one_key" outputs/latest/config.yaml
test -s outputs/latest/report.html
