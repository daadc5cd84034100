# A chip vendor installs the finished example, trains on the chip and loads the checkpoint without it.
set -euo pipefail
export ACME_NPU_SIMULATE=1

cp -r "$REPOSITORY/examples/plugins/acme_npu" .
install_here acme_npu
arcforge-train experiment=smoke hardware=acme_npu trainer.max_steps=2 2>&1 | tee said.txt
grep -q "hardware acme_npu: simulated as the device acme" said.txt
grep -q "trainer.precision" said.txt # the chip asks for fp32 and says so

# the checkpoint loads, also without the chip
env -u ACME_NPU_SIMULATE python - <<'PY'
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core import load_pretrained
assert load_pretrained(find_checkpoint("outputs/latest"))
PY
arcforge doctor | grep -i "acme"
