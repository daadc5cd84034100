"""A judge in a process of its own that writes down its verdicts and kills itself at a set request.

``python -m support.logged_judge PORT LOG MOST``: after MOST verdicts the next question makes it SIGKILL itself, with
further ones open; 0: never. A verdict is in the log before it is sent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arcforge_core.contracts.chat import Message
from support.judges import quotations
from support.listening import JsonHandler, listening

VALUES = {"small": 0.0, "middling": 0.375, "great": 0.75}
"""Of the rubric in `support.judges`, by the choice of ``great``; ``plain`` is always no."""


@contextmanager
def logged_judge(port: int, log: Path, most: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Starts a judge and yields its process when it answers."""
    command = [sys.executable, "-m", "support.logged_judge", str(port), str(log), str(most)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("http"), "the judge has not started"
            yield process
        finally:
            process.kill()


def verdicts(log: Path) -> dict[tuple[str, str], float]:
    """Returns the logged values by prompt and reply."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {(row["prompt"], row["reply"]): VALUES[row["great"]] for row in rows}


def main() -> None:
    """Answers until it is killed."""
    port, log, most = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    lock, given = threading.Lock(), 0

    def post(request: JsonHandler) -> None:
        nonlocal given
        body = request.body()
        properties = body["response_format"]["json_schema"]["schema"]["properties"]
        prompt, reply = quotations([Message(one["role"], one["content"]) for one in body["messages"]])
        (candidate,) = properties["candidate"]["enum"]
        great = list(VALUES)[int(candidate, 16) % len(VALUES)]
        with lock:
            if most and given == most:
                os.kill(os.getpid(), signal.SIGKILL)
            given += 1
            with log.open("a") as file:
                file.write(json.dumps({"prompt": prompt, "reply": reply, "great": great}) + "\n")
        said = json.dumps({"candidate": candidate, "reason": "so", "great": great, "plain": "no"})
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        request.answer(200, {"choices": [choice]})

    with listening(post, port) as url:
        print(url, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
