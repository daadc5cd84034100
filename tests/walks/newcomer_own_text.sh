# A newcomer trains on texts of their own, after a typing mistake, and looks at report, figure and model.
set -euo pipefail

mkdir "my texts"
for page in "$REPOSITORY"/docs/*.md; do cp "$page" "my texts/$(basename "$page" .md).txt"; done

set +e
said=$(arcforge-train experimnt=smoke 2>&1)
code=$?
set -e
test $code = 2
grep -q "experiment" <<<"$said"

arcforge-train experiment=smoke data=files "data.paths=['my texts']" data.heldout=0.2 name=sheep trainer.max_steps=8
grep -q "sheep" outputs/latest/report.html
arcforge-eval checkpoint=sheep suite=language_model data=files "data.paths=['my texts']" data.heldout=0.2 | tee said.txt
grep -q "bits per byte" said.txt

python - <<'PY'
import torch
from arcforge_core import load_pretrained
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.tokenizer.tokenizer import Tokenizer
folder = find_checkpoint("sheep")
tokenizer, model = Tokenizer.load(folder), load_pretrained(folder, dtype=torch.float32)
ids_BS = torch.tensor([[tokenizer.bos_id, *tokenizer.encode("The")]])
assert tokenizer.decode(model.generate(ids_BS, max_new_tokens=8, temperature=0.0)[0].tolist())
PY
