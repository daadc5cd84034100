# A newcomer starts the demo, asks on the page and over HTTP, stops it, and teaches the model for a moment.
set -euo pipefail

arcforge demo --no-browser port=$PORT &
until curl -sf localhost:$PORT/ > page.html; do kill -0 $!; sleep 0.5; done
grep -qi "<html" page.html
curl -sf localhost:$PORT/v1/chat/completions -H 'content-type: application/json' \
  -d '{"messages": [{"role": "user", "content": "What is 7 + 8?"}], "temperature": 0, "thinking": {"type": "disabled"}}' \
  > answer.json
python -c "import json; assert '15' in json.load(open('answer.json'))['choices'][0]['message']['content']"
kill -TERM $!
wait $! || test $? = 143

arcforge demo rl --no-browser trainer.minutes=null trainer.max_steps=1 evaluation.tasks=4 rollout.groups=2 rollout.group_size=4
report=$(find outputs -name report.html)
grep -q "pass@1" "$report"
