# A researcher compares two attention variants at equal budgets and opens the page with both.
set -euo pipefail

arcforge-train -m experiment=smoke attention=gqa,mla trainer.max_steps=3 trainer.samples=0
page=$(find outputs -name index.html)
grep -q "attention=gqa" "$page"
grep -q "attention=mla" "$page"

# both saw the same tokens, and each has a figure to compare
python - <<'PY'
import json, pathlib
one, two = (json.loads(file.read_text()) for file in pathlib.Path("outputs").rglob("summary.json"))
assert one["tokens"] == two["tokens"] > 0
assert one["bits_per_byte"] != two["bits_per_byte"]
assert 0 < min(one["bits_per_byte"], two["bits_per_byte"]) < 10
PY
