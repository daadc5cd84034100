# A chip vendor types the files of docs/tutorial_chip_plugin.md, sees the kernels pass, breaks one and sees its name.
set -euo pipefail
export ACME_NPU_SIMULATE=1

python - <<'PY'
import os, pathlib, re
page = pathlib.Path(os.environ["REPOSITORY"], "docs/tutorial_chip_plugin.md").read_text()
for name, text in re.findall(r"```\w+ title=(\S+)\n(.*?)```", page, re.DOTALL):
    file = pathlib.Path("acme_npu", name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
pathlib.Path("acme_npu/src/acme_arcforge_npu/__init__.py").write_text("")
PY
install_here acme_npu
arcforge-plugins | grep "acme-arcforge-npu 0.1.0"
arcforge-conformance hardware=acme_npu > passed.txt
grep -qE "swiglu +acme_npu.swiglu +float32 .*pass$" passed.txt

sed -i 's/(1 + gate \* (1 - sigmoid))/(gate * (1 - sigmoid))/' acme_npu/src/acme_arcforge_npu/kernels.py
install_here acme_npu
set +e
arcforge-conformance hardware=acme_npu > broken.txt 2>&1
code=$?
set -e
test $code = 2
grep -q "failed: swiglu" broken.txt
