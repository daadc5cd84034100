"""A small package in the form of bfcl-eval: data of ours, and a checker that compares states and results as it does."""

import functools
import json
import tempfile
from pathlib import Path

from support.trees import write_files

HELD: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that are removed with the process."""
UTILS = """
import copy

KEPT = {}


class Files:
    def __init__(self, config):
        self.names = dict(config)

    def mkdir(self, dir_name):
        if dir_name in self.names:
            raise ValueError("it is there")
        self.names[dir_name] = "folder"

    def touch(self, file_name):
        print("a package that prints")
        self.names[file_name] = "file"

    def ls(self, a=False):
        return {"names": sorted(name for name in self.names if a or name[0] != ".")}


def execute_multi_turn_func_call(
    func_call_list, initial_config, involved_classes, model_name, test_entry_id, long_context=False, is_evaL_run=False
):
    assert involved_classes == ["GorillaFileSystem"]
    files = KEPT.setdefault((model_name, test_entry_id), Files(copy.deepcopy(initial_config)))
    results = []
    for call in func_call_list:
        try:
            results.append(str(eval(f"files.{call}", {"files": files})))
        except Exception as error:
            results.append(f"Error during execution: {error}")
    return results, {"GorillaFileSystem": files}
"""
CHECKER = """
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call as execute


def multi_turn_checker(said, gold, entry, category, name):
    given = entry["initial_config"], entry["involved_classes"]
    seen = []
    for turn, wanted in enumerate(gold):
        for step in said[turn]:
            results, mine = execute(step, *given, name, entry["id"])
            seen += results
        results, right = execute(wanted, *given, name + "_gold", entry["id"])
        if wanted and not said[turn]:
            return {"valid": False, "error_message": "empty"}
        if wanted and vars(mine["GorillaFileSystem"]) != vars(right["GorillaFileSystem"]):
            return {"valid": False, "error_message": "does not match the state"}
        if wanted and not all(result in seen for result in results):
            return {"valid": False, "error_message": "does not contain all"}
    return {"valid": True}
"""


@functools.cache
def small_bfcl() -> Path:
    """Returns a folder with ``bfcl_eval``, which lasts as long as the process."""
    held = tempfile.TemporaryDirectory(prefix="bfcl-small-")
    HELD.append(held)
    Path(held.name).chmod(0o755)  # sandboxes have users of their own
    below = "bfcl_eval/eval_checker/multi_turn_eval"
    docs = [
        function("mkdir", {"dir_name": {"type": "string"}}), function("touch", {"file_name": {"type": "string"}}),
        function("ls", {"a": {"type": "boolean"}}, required=[]),
    ]  # fmt: skip
    data = "bfcl_eval/data"
    files = {
        f"{below}/multi_turn_utils.py": UTILS, f"{below}/multi_turn_checker.py": CHECKER,
        f"{data}/multi_turn_func_doc/gorilla_file_system.json": lines(docs),
        "bfcl_eval-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: bfcl_eval\nVersion: 1.2\nLicense: Free\n\nx",
    }  # fmt: skip
    for category in ("base", "miss_func"):
        tasks, gold = zip(*(task(category, number) for number in range(25)), strict=True)
        files[f"{data}/BFCL_v4_multi_turn_{category}.json"] = lines(tasks)
        files[f"{data}/possible_answer/BFCL_v4_multi_turn_{category}.json"] = lines(gold)
    write_files(Path(held.name), files)
    return Path(held.name)


def function(name, properties, required=None):
    needed = [*properties] if required is None else required
    parameters = {"type": "dict", "properties": properties, "required": needed}
    return {"name": name, "description": f"Does {name}.", "parameters": parameters, "response": {}}


def task(category, number):
    """Returns a task and its gold calls; the last one of miss_func uses a function before it is offered."""
    key = f"multi_turn_{category}_{number}"
    says = [[{"role": "user", "content": f"Make a folder {number}."}], [{"role": "user", "content": "List all."}]]
    gold = [[f"mkdir('d{number}')", "ls()"], ["ls(a=True)"]]
    row = {"id": key, "initial_config": {".x": "file"}, "involved_classes": ["GorillaFileSystem"], "path": []}
    if category == "miss_func":
        says.insert(0, [{"role": "user", "content": f"Touch {number}, then make a folder."}])
        says[1] = []
        gold[:1] = [[f"touch(file_name='f{number}')"], [f"mkdir(dir_name='d{number}')"]]
        row["missed_function"] = {"2" if number == 24 else "1": ["mkdir"]}
    return {**row, "question": says}, {"id": key, "ground_truth": gold}


def lines(rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows)
