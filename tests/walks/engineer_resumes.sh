# A post-training engineer's training is killed; it resumes where it was, and transformers loads what comes out.
set -euo pipefail

run="experiment=smoke name=long trainer.samples=0 trainer.max_steps=12 trainer.checkpoint_every=2"
arcforge-train $run & job=$!
until compgen -G "outputs/by-name/long/checkpoints/step-*" >/dev/null; do kill -0 $job; sleep 0.1; done
kill -9 $job
wait $job || true

arcforge-train $run resume=latest
test "$(find outputs -name config.yaml | wc -l)" = 1
python - <<'PY'
import csv, json
summary = json.load(open("outputs/latest/summary.json"))
assert (summary["status"], summary["steps"]) == ("finished", 12), summary
steps = [int(row["step"]) for row in csv.DictReader(open("outputs/latest/metrics.csv"))]
assert steps == sorted(set(steps)) and steps[-1] == 12, steps
PY

arcforge-convert long for_transformers
python - <<'PY'
import torch
from transformers import AutoModelForCausalLM
from arcforge_core import load_pretrained
ids_BS = torch.tensor([[1, 2, 3, 4]])
theirs = AutoModelForCausalLM.from_pretrained("for_transformers", dtype=torch.float32)(ids_BS).logits
ours = load_pretrained("for_transformers", dtype=torch.float32)(ids_BS).logits
assert torch.allclose(theirs, ours, atol=1e-4), (theirs - ours).abs().max()
PY
