# A serving engineer starts a server and gets a right answer, a stream and metrics through the openai package.
set -euo pipefail

arcforge-serve checkpoint=demo served_name=demo port=$PORT &
trap 'kill $! && wait' EXIT
until curl -sf localhost:$PORT/v1/models >/dev/null; do kill -0 $!; sleep 0.5; done

python - <<'PY'
import os
from openai import OpenAI
client = OpenAI(base_url=f"http://localhost:{os.environ['PORT']}/v1", api_key="none")
asked = [{"role": "user", "content": "What is 12 + 30?"}]
off = {"chat_template_kwargs": {"enable_thinking": False}}
given = {"model": "demo", "messages": asked, "temperature": 0, "extra_body": off}
answer = client.chat.completions.create(**given)
assert "42" in answer.choices[0].message.content, answer
assert answer.usage.completion_tokens > 0
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(stream=True, **given))
assert streamed == answer.choices[0].message.content
PY
curl -sf localhost:$PORT/metrics | grep -E '_total(\{[^}]*\})? [1-9]'
