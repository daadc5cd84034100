"""Starts a server in this process and asks it over HTTP, as any client of OpenAI's API does.

python examples/serve.py
"""

from __future__ import annotations

import json
import threading
import urllib.request

import uvicorn

from arcforge_core.config.compose import compose_config
from arcforge_serving.configs import ServeConfig
from arcforge_serving.server.app import create_app
from arcforge_serving.server.gate.listening import listen
from arcforge_serving.server.serve import load_state


def ask(address: str, **body: object) -> dict[str, object]:
    """Posts a chat request."""
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def main() -> str:
    """Prints the answer with its reasoning, and returns it."""
    state = load_state(compose_config("serve", ServeConfig, ["checkpoint=demo", "served_name=demo"]))
    listener = listen("127.0.0.1", 0, keys=False)
    server = uvicorn.Server(uvicorn.Config(create_app(state), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        question = {"role": "user", "content": "Calculate 33*97+28."}
        reply = ask(address, model="demo", messages=[question], temperature=0, max_tokens=100)
        message = reply["choices"][0]["message"]
    finally:
        server.should_exit = True
        thread.join()
    print(message["reasoning_content"], message["content"], sep="\n")
    return message["content"]


if __name__ == "__main__":
    main()
