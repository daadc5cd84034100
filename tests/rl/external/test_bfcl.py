"""``environment=bfcl`` on a small package: gold calls earn 1, whatever else 0; the leaderboard's own data by name."""

import asyncio
import json
import sys

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Agents, EpisodeFailure, Reply
from arcforge_core.episodes.scripted import SILENCE, ScriptedAgent, play
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.cli import main
from arcforge_rl.configs.commands import ValidateConfig
from arcforge_rl.configs.external import BfclConfig
from arcforge_rl.environments.validate import run
from arcforge_rl.external.bfcl import inside
from arcforge_rl.external.bfcl.cases import MORE
from arcforge_rl.external.bfcl.environment import EXTRA, TURNS, Bfcl, script
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import recipe_of
from arcforge_rl.layers.store import LayerError
from support.bfcl_small import small_bfcl

HERE = str(small_bfcl())
CATEGORIES = ["base", "miss_func"]
SPLITS = ("train", "heldout")


def built(**options):
    return Bfcl(BfclConfig(**{"path": HERE, "categories": CATEGORIES, **options}))


def found(key):
    sides = [built(split=split) for split in SPLITS]
    return next((made, task) for made in sides for task in map(made.task, range(made.num_tasks)) if key in task.key)


def test_variants_of_a_task_are_on_one_side_and_an_impossible_one_is_left_out():
    sides = [built(split=split) for split in SPLITS]
    numbers = [{case.number for case in made.cases} for made in sides]
    assert not numbers[0] & numbers[1] and sum(made.num_tasks for made in sides) == 49
    assert sides[0].excluded == {
        "multi_turn_miss_func_24": "its gold calls use mkdir in turn 2, which is offered later"
    }
    assert {made.labels_of(made.task(0)) for made in sides} <= {("base",), ("miss_func",)}


@pytest.mark.slow(reason="sandboxes for every script that calls")
def test_gold_earns_1_and_every_cheat_0():
    made, task = found("miss_func_3")
    scripts = [made.oracle(task), SILENCE, *made.cheats(task)]
    assert len(scripts) == 10

    async def all_of_them():
        return await asyncio.gather(*[play(made, task, script) for script in scripts])

    outcomes = [outcome for _, outcome in asyncio.run(all_of_them())]
    assert [outcome.rewards["reward"] for outcome in outcomes] == [1.0] + [0.0] * 9
    assert outcomes[0].rewards["calls"] == 3.0 and outcomes[0].reasons["reward"] == "as the gold calls"
    assert "does not match the state" in outcomes[-1].reasons["reward"]


@pytest.mark.slow(reason="two sandboxes")
def test_functions_are_offered_late_and_results_are_the_package_s():
    made, task = found("miss_func_3")
    offered = [[tool.name for tool in task.case.tools(turn)] for turn in range(3)]
    assert offered == [["touch", "ls"], ["mkdir", "touch", "ls"], ["mkdir", "touch", "ls"]]
    calls = [("mkdir", {"dir_name": "d3"}), ("ls", {"a": True}), ("touch", {"file_name": "x", "y": 1}), ("ls", {})]
    episode = asyncio.run(made.run(task, Agents(ScriptedAgent(script([calls])))))
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results[0].startswith("Error: there is no tool 'mkdir'") and results[2] == "Error: touch does not take y"
    assert results[1] == "{'names': ['.x']}" and results[3] == "{'names': []}"
    assert episode.artefacts[TURNS] == [[("ls", {"a": True}), ("ls", {})], [], []]
    assert [message.content for message in episode.messages if message.role == "user"][1] == MORE


def test_too_many_calls_end_the_conversation():
    made, task = found("base_3")
    made.config.max_calls = 1
    calls = [("ls", {}), ("ls", {})]
    outcome = asyncio.run(play(made, task, [Reply(calls=tuple(ToolCall(*call) for call in calls))]))[1]
    assert outcome.reward == 0.0 and "ended with calls in turn 1" in outcome.reasons["reward"]


@pytest.mark.parametrize("name", ["__class__", "_load_scenario", "a.b", "x=1,y"])
def test_calls_are_spelled_from_names_and_literals(name):
    assert inside.spelled("cd", {"folder": "'); exit('"}) == """cd(folder="'); exit('")"""
    for call in ((name, {}), ("cd", {name: 1})):
        with pytest.raises(ValueError, match="is no name"):
            inside.spelled(*call)


def test_programs_that_are_gone_are_a_failure(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "bfcl_eval").symlink_to(small_bfcl() / "bfcl_eval")  # leads nowhere in a sandbox
    made = built(path=str(tmp_path))
    with pytest.raises(EpisodeFailure, match=r"did not start.*it said: ModuleNotFoundError: .*'bfcl_eval'"):
        asyncio.run(made.run(made.task(0), Agents(ScriptedAgent(script([[("ls", {})]])))))


def test_refusals_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"must be a folder with bfcl_eval, of bfcl-eval=="):
        built(path=str(tmp_path))
    (tmp_path / "bfcl_eval/data").mkdir(parents=True)
    with pytest.raises(DataError, match=r"bfcl: .* cannot be read: FileNotFoundError"):
        built(path=str(tmp_path))
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path / "none"))
    with pytest.raises(LayerError, match="arcforge-env layers fetch bfcl"):
        built(path="")


@pytest.mark.parametrize("options", [{"categories": ["web"]}, {"categories": []}, {"max_calls": 0}])
def test_options_that_are_refused(options):
    with pytest.raises(ConfigError):
        BfclConfig(**options)


def test_version_and_licence_are_shown(monkeypatch, capsys):
    assert built().notice == "bfcl_eval 1.2, licence: Free"
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "list", "--json"])
    assert main() == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["bfcl"]["third_party"] == "bfcl-eval==2026.3.23, Apache-2.0" and rows["math"]["third_party"] == ""


@pytest.mark.slow(reason="sandboxes for every script of a task")
def test_validate_shows_them_too(capsys):
    options = [f"environment.path={HERE}", "environment.categories=[base]", "episodes=1"]
    tallies = run(compose_config("env_validate", ValidateConfig, ["environment=bfcl", *options]))
    assert tallies["cheat"].played == tallies["cheat"].right == 8
    assert "bfcl_eval 1.2, licence: Free" in capsys.readouterr().out


@pytest.mark.network(reason="fetches bfcl-eval")
def test_the_leaderboard_s_own_gold_earns_1_and_work_that_is_wrong_0():
    package = ensure(recipe_of("bfcl")).folder / "tree" / recipe_of("bfcl").prefix.lstrip("/")
    sides = [built(path=str(package), split=split, categories=[*BfclConfig().categories]) for split in SPLITS]
    cases = [case for made in sides for case in made.cases]
    assert len(cases) == 799 and [*sides[0].excluded] == ["multi_turn_miss_func_49"]
    jobs, wanted = [], []
    for case in cases:
        gold = case.calls()
        last = max(n for n, turn in enumerate(gold) if turn)
        extra = next((EXTRA[kind] for kind in case.entry["involved_classes"] if kind in EXTRA), None)
        jobs.append((case, gold))
        wanted.append(True)
        if extra is not None:
            jobs.append((case, [[*turn, extra] if n == last else turn for n, turn in enumerate(gold)]))
            wanted.append(False)
    for first in range(0, len(jobs), 200):
        verdicts = asyncio.run(sides[0].judge(jobs[first : first + 200]))
        assert [one["valid"] for one in verdicts] == wanted[first : first + 200]
