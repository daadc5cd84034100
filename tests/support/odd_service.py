"""A task service that misbehaves in a way of its own at each task; run as a program. Standard library only."""

import json
import sys
import time

WAYS = (
    "well", "raises", "twice", "never", "other", "garbage", "no episode", "unknown message", "late", "dies", "stray",
)  # fmt: skip


def say(answer: object) -> None:
    print(answer if isinstance(answer, str) else json.dumps(answer), flush=True)


def main() -> None:
    held = None
    for line in sys.stdin:
        request = json.loads(line)
        named = {"id": request["id"], "rollout": request["rollout"]}
        if request["op"] == "describe":
            say({**named, "version": 1, "domain": "odd", "tasks": None})
        elif request["op"] == "begin":
            way = WAYS[request["task"]]
            ask = {"ask": {"messages": [{"role": "user", "content": way}]}}
            if way == "raises":
                say({**named, "failure": {"kind": "sandbox", "reason": "it broke"}})
            elif way == "twice":
                say({**named, **ask})
                say({**named, **ask})
            elif way == "never":
                held = {**named, **ask}
            elif way == "other":
                say({**named, **ask, "rollout": "another"})
            elif way == "garbage":
                say("this is no JSON")
                say({**named, **ask})
            elif way == "no episode":
                say(named)
            elif way == "unknown message":
                say({**named, "ask": {"messages": [{"role": "wizard", "content": "?"}]}})
            elif way == "late":
                say(held)
                say({**named, **ask})
            elif way == "dies":
                sys.exit(3)
            elif way == "stray":
                say({"id": 10**9, "rollout": "?"})
                say({**named, **ask})
            else:
                say({**named, **ask})
        elif request["op"] == "reply":
            reply = {**request["reply"]}
            messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": reply["text"]}]
            episode = {"messages": messages, "reply": reply, "finish_reason": "stop", "artefacts": None}
            say({**named, "episode": episode})
        elif request["op"] == "score":
            say({**named, "rewards": {"reward": 1.0}, "reasons": {"reward": "always"}})
        else:
            say(named)
            time.sleep(0.01)


if __name__ == "__main__":
    main()
