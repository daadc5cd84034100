# A serving engineer has a program for vLLM, types vLLM's options, and changes nothing in the program but its address.
set -euo pipefail

cat > program.py <<'PY'
from openai import OpenAI  # its address is OPENAI_BASE_URL
client = OpenAI()
[model] = client.models.list()
extra = {"structured_outputs": {"choice": ["yes", "no"]}, "min_tokens": 1, "top_k": 5}
reply = client.completions.create(model=model.id, prompt="def", max_tokens=4, logprobs=2, n=2, extra_body=extra)
assert [choice.text for choice in reply.choices] and all(c.text in ("yes", "no") for c in reply.choices), reply
ids = client.post("/../tokenize", cast_to=object, body={"model": model.id, "prompt": "def"})
assert ids["count"] == len(ids["tokens"]) > 0, ids
PY

# vLLM's options are answered with ours
set +e
said=$(arcforge-serve --model demo --served-model-name tiny --port $PORT 2>&1)
code=$?
set -e
test $code = 2
grep -q "checkpoint=demo" <<<"$said"

arcforge-serve checkpoint=demo served_name=tiny port=$PORT &
trap 'kill $! && wait' EXIT
until curl -sf localhost:$PORT/health >/dev/null; do kill -0 $!; sleep 0.5; done
OPENAI_BASE_URL=http://localhost:$PORT/v1 OPENAI_API_KEY=none python program.py
