# A chip vendor has a package written, sees its kernel pass, adds the tutorial's second one, breaks it and sees its name.
set -euo pipefail

arcforge-plugins new hardware acme_npu
install_here acme-npu-arcforge
arcforge-plugins | grep "acme-npu-arcforge 0.1.0"
arcforge-conformance hardware=acme_npu --quick > written.txt
grep -qE "rms_norm +acme_npu.rms_norm +float32 .*pass$" written.txt

python - <<'PY'
import os, pathlib, re
page = pathlib.Path(os.environ["REPOSITORY"], "docs/tutorial_chip_plugin.md").read_text()
for name, text in re.findall(r"```\w+ title=(\S+)\n(.*?)```", page, re.DOTALL):
    pathlib.Path("acme-npu-arcforge", name).write_text(text)
PY
install_here acme-npu-arcforge
arcforge-conformance hardware=acme_npu > passed.txt
grep -qE "swiglu +acme_npu.swiglu +float32 .*pass$" passed.txt

sed -i 's/(1 + gate \* (1 - sigmoid))/(gate * (1 - sigmoid))/' acme-npu-arcforge/src/acme_npu_arcforge/kernels.py
install_here acme-npu-arcforge
set +e
arcforge-conformance hardware=acme_npu > broken.txt 2>&1
code=$?
set -e
test $code = 2
grep -q "failed: model training, swiglu" broken.txt
