"""A task service that rewards replies which begin with an even digit; run as a program, standard library only.

python even_service.py PID_FILE SECONDS: writes its process id, and takes that long on average to begin a rollout.
"""

import json
import os
import random
import sys
import time


def main() -> None:
    path, seconds = sys.argv[1], float(sys.argv[2])
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{path}.new", path)
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"id": request["id"], "rollout": request["rollout"]}
        if request["op"] == "describe":
            answer |= {"version": 1, "domain": "even", "tasks": None}
        elif request["op"] == "begin":
            time.sleep(random.expovariate(1 / seconds))
            answer |= {"ask": {"messages": [{"role": "user", "content": f"Say {request['task'] % 10}:"}]}}
        elif request["op"] == "reply":
            said = {"role": "assistant", "content": request["reply"]["text"]}
            episode = {"messages": [said], "reply": request["reply"], "finish_reason": "stop", "artefacts": None}
            answer |= {"episode": episode}
        elif request["op"] == "score":
            text = request["episode"]["reply"]["text"]
            right = float(bool(text) and ord(text[0]) % 2 == 0)
            answer |= {"rewards": {"reward": right}, "reasons": {"reward": ""}}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # the run was killed
            os._exit(0)


if __name__ == "__main__":
    main()
