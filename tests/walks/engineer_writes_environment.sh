# A post-training engineer writes an environment, checks it, and trains the small fine-tuned model on it for a step.
set -euo pipefail

arcforge-env new letters
install_here letters-environment
arcforge-env validate environment=letters episodes=2

arcforge-rl init=demo environment=letters name=letters trainer.max_steps=1 evaluation.tasks=2 \
  rollout.groups=2 rollout.group_size=2 rollout.max_new_tokens=8
run=$(find outputs -name report.html -printf '%h\n')
grep -q "letters" "$run/report.html"

# each sampled answer has its reward and the verifier's reason
python - "$run" <<'PY'
import json, pathlib, sys
file, *_ = pathlib.Path(sys.argv[1]).rglob("*rollouts*.jsonl")
rows = [json.loads(line) for line in file.read_text().splitlines()]
assert rows and all(0 <= row["rewards"]["reward"] <= 1 for row in rows), rows[:1]
PY
