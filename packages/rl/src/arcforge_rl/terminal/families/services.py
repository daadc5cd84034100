"""A service that does not start, or answers wrongly, because of its settings; judged by what it answers."""

from __future__ import annotations

import json
import random
from hashlib import sha256

from arcforge_rl.terminal.drafts import WORDS, Draft, digest, rule

SERVER = '''
"""Answers one request per connection: GET KEY, SEAL TEXT, or MODE."""

import configparser
import hashlib
import os
import socketserver
import sys

settings = configparser.ConfigParser()
settings.read(sys.argv[1])
server, store = settings["server"], settings["store"]
if os.path.exists(server["lock"]):
    sys.exit("another instance holds " + server["lock"])
table = {}
for line in open(store["path"], encoding=store["encoding"]):
    key, _, value = line.rstrip("\\n").partition(store["separator"].strip('"'))
    table[key] = value


class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        word, _, rest = self.rfile.readline().decode("utf-8").strip().partition(" ")
        if word == "GET":
            text = table.get(rest, "unknown")
        elif word == "SEAL":
            text = hashlib.sha256((rest + table["seal"]).encode()).hexdigest()
        else:
            text = server["mode"]
        self.wfile.write((text + "\\n").encode("utf-8"))


socketserver.TCPServer.allow_reuse_address = True
with socketserver.TCPServer(("127.0.0.1", server.getint("port")), Answer) as running:
    running.serve_forever()
'''
CLIENT = """
import json, socket, subprocess, sys, time
port, answers = int(sys.argv[1]), []
nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
process = subprocess.Popen(["sh", "run.sh"], **nowhere)
end = time.monotonic() + 20
for request in json.loads(sys.argv[2]):
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(request.encode() + b"\\n")
                answers.append(connection.makefile(encoding="utf-8").readline().strip())
            break
        except OSError:
            if time.monotonic() > end or process.poll() not in (None, 0):
                answers.append("no answer")
                break
            time.sleep(0.1)
process.kill()
print("\\n".join(answers))
"""
ANSWERS = "/logs/artifacts/answers.txt"
RIGHT = {"mode": "production", "lock": "run/service.lock", "encoding": "utf-8"}


def draw(draw: random.Random) -> Draft:
    """Draws a table, and three faults of the settings and the start script."""
    keys = draw.sample(WORDS, 8)
    separator = draw.choice(("=", "|", ";"))
    table = {key: f"{draw.choice(('Grüße', 'naïve', 'señal', 'żółw'))} {draw.randint(100, 999)}" for key in keys}
    table["seal"] = f"{draw.getrandbits(64):016x}"
    port, wrong_port = draw.sample(range(20_000, 40_000), 2)
    data = "".join(f"{key}{separator}{value}\n" for key, value in table.items())
    name = f"{draw.choice(WORDS)}.tbl"
    faults = draw.sample(("port", "path", "encoding", "separator", "lock", "script", "mode"), 3)
    other = draw.choice([one for one in ("=", "|", ";") if one != separator])
    ini = f"""[server]
port = {wrong_port if "port" in faults else port}
mode = {"debug" if "mode" in faults else RIGHT["mode"]}
lock = {RIGHT["lock"]}

[store]
path = {"data/old.tbl" if "path" in faults else f"data/{name}"}
encoding = {"ascii" if "encoding" in faults else RIGHT["encoding"]}
separator = "{other if "separator" in faults else separator}"
"""
    run = "exec python3 server.py conf/service.ini\n"
    broken = draw.choice((run.replace("conf/service.ini", "service.ini"), run.replace("server.py", "app/server.py")))
    script = broken if "script" in faults else run
    files: dict[str, str | bytes] = {
        "server.py": SERVER, f"data/{name}": data, "conf/service.ini": ini, "run.sh": script,
    }  # fmt: skip
    if "lock" in faults:
        files[RIGHT["lock"]] = "4242\n"
    nonce = f"{draw.getrandbits(64):016x}"
    asked = draw.sample(keys, 3)
    requests = [f"SEAL {nonce}", *(f"GET {key}" for key in asked), "MODE", "GET nothing"]
    sealed = sha256((nonce + table["seal"]).encode()).hexdigest()
    answers = [sealed, *(table[key] for key in asked), RIGHT["mode"], "unknown"]
    instruction = f"""
The service in `/app` does not work as it should. `sh run.sh`, run in `/app`, must start it in the foreground,
listening on 127.0.0.1 port {port}, in the mode `{RIGHT["mode"]}`, and it must serve the table `data/{name}`, which is
text in UTF-8 with one key and value per line. No other instance of it is running. `server.py` and the files in `data`
are right and must stay as they are; repair the rest.
"""
    start = run.strip().replace("exec ", "")
    good = f"[server]\nport = {port}\nmode = {RIGHT['mode']}\nlock = {RIGHT['lock']}\n\n[store]\n" + (
        f'path = data/{name}\nencoding = {RIGHT["encoding"]}\nseparator = "{separator}"\n'
    )
    solve = f"rm -f {RIGHT['lock']}\ncat > conf/service.ini <<'CONTENT'\n{good}CONTENT\necho '{run.strip()}' > run.sh\n"
    canned = json.dumps({f"GET {key}": value for key, value in table.items()} | {"MODE": "production"})
    fake = f"""cat > run.sh <<'CONTENT'
python3 -c '
import json, socket
table = json.loads(open("fake.json").read())
listening = socket.create_server(("127.0.0.1", {port}))
while True:
    connection, _ = listening.accept()
    asked = connection.makefile().readline().strip()
    connection.sendall((table.get(asked, "unknown") + "\\n").encode())
    connection.close()
'
CONTENT
cat > fake.json <<'CONTENT'
{canned}
CONTENT
"""
    command = f"python3 -I -c '{CLIENT}' {port} '{json.dumps(requests)}' > {ANSWERS} 2> /dev/null"
    return Draft(
        instruction,
        files,
        [rule("lines", ANSWERS, lines=answers), rule("same", "server.py", sha256=digest(SERVER)),
         rule("same", f"data/{name}", sha256=digest(data))],
        solve,
        [f"rm -f {RIGHT['lock']}; {start} &", fake, f"cp data/{name} {ANSWERS}; chmod 444 {ANSWERS}"],
        collect=[f"rm -rf {ANSWERS}; {command}"],
    )  # fmt: skip
