"""``environment=textworld`` on a small package: the walkthrough wins, all else earns 0; TextWorld's own by name."""

import asyncio

import pytest

from arcforge_core.contracts.environment import Agents, EpisodeFailure
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.scripted import SILENCE, ScriptedAgent, play
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.external import TEXTWORLD_GAMES, TextWorldConfig
from arcforge_rl.external import package
from arcforge_rl.external.textworld.environment import END, PROMPT, TextWorld, script
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import recipe_of
from support.textworld_small import small_textworld

HERE = str(small_textworld())


def built(**options):
    return TextWorld(TextWorldConfig(**{"path": HERE, "level": 2, **options}))


def earned(made, task, scripts):
    async def all_of_them():
        return await asyncio.gather(*[play(made, task, script) for script in scripts])

    outcomes = [outcome for _, outcome in asyncio.run(all_of_them())]
    assert [outcome.failure for outcome in outcomes] == [None] * len(scripts)
    return [outcome.reward for outcome in outcomes]


def test_games_are_drawn_by_side_and_kind():
    sides = [[built(split=split).task(index) for index in range(40)] for split in ("train", "heldout")]
    keys = [{task.key for task in side} for side in sides]
    assert not keys[0] & keys[1] and len(keys[0] | keys[1]) == 80
    assert [built().labels_of(task)[0] for task in sides[0][:3]] == list(TEXTWORLD_GAMES)
    assert sides[0][0].game["settings"] == {"level": 2} and sides[1][2].game["settings"]["test"]


@pytest.mark.slow(reason="a sandbox for each script")
def test_the_walkthrough_wins_and_every_cheat_earns_0():
    made = built(games=["coin_collector"])
    task = made.task(0)
    cheats = made.cheats(task)
    assert earned(made, task, [made.oracle(task), SILENCE, *cheats]) == [1.0] + [0.0] * (1 + len(cheats))


@pytest.mark.slow(reason="a sandbox")
def test_what_a_player_sees():
    made = built(games=["coin_collector"])
    task = made.task(0)
    walk = [reply.calls[0].arguments["command"] for reply in made.oracle(task)[:-1]]
    commands = ["look", "forge", "a. b", "go then go", "Restart", "tw-trace-actions", "", *walk, "look"]
    episode, outcome = asyncio.run(play(made, task, script(commands)))
    assert episode.messages[0].content == f"{PROMPT}\n\nFetch the coin: 3 commands."
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results[0] == "You: look." and results[1] == "*** The End ***"  # the engine's word alone
    assert results[2].startswith("Error: a command has") and results[6].startswith("Error: a command has")
    assert results[3:6] == ["Error: this is not one command to the game"] * 3
    assert results[-2:] == ["*** The End ***", "Error: the game has ended"]
    assert episode.artefacts[END]["won"] and outcome.rewards["points"] == 1.0 and outcome.rewards["calls"] == 11


def test_a_forged_end_does_not_win():
    made = built(games=["coin_collector"])
    outcome = asyncio.run(play(made, made.task(0), script(["forge"])))[1]
    assert outcome.reward == 0.0 and outcome.reasons["reward"] == "not won: 0 of 1 points"


def test_a_package_that_breaks_is_a_failure(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "textworld").mkdir(mode=0o755)
    made = built(path=str(tmp_path))
    with pytest.raises(EpisodeFailure, match=r"did not start.*it said: .*textworld"):
        asyncio.run(made.run(made.task(0), Agents(ScriptedAgent(SILENCE))))
    with pytest.raises(SandboxFault, match="textworld ended with exit 1"):
        made.oracle(made.task(0))
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/core.cpython-39-x86_64-linux-gnu.so").touch()
    with pytest.raises(ConfigError, match=r"has modules for Python 3\.9, and this is 3\.\d+: free the layer"):
        built(path=str(tmp_path))


def test_the_interpreter_fits_compiled_modules(tmp_path, monkeypatch):
    own = f"{package.sys.version_info.major}.{package.sys.version_info.minor}"
    (tmp_path / "textworld").mkdir()
    (tmp_path / f"core.cpython-{own.replace('.', '')}-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(package, "SYSTEM_PYTHON", str(tmp_path / "python3"))
    found = package.package_of("textworld", str(tmp_path), "textworld")
    assert found.python == f"/opt/arcforge-python/bin/python{own}" and len(found.layers) == 2
    (tmp_path / f"python{own}").touch()
    (tmp_path / "python3").symlink_to(f"python{own}")
    found = package.package_of("textworld", str(tmp_path), "textworld")
    assert found.python == str(tmp_path / "python3") and len(found.layers) == 1


def test_the_licence_is_named():
    assert built().notice == "textworld 9.9, licence: Free License"


REFUSED = [
    {"games": ["zork"]}, {"games": []}, {"level": 0}, {"goal": "x"}, {"level": 31}, {"max_calls": 0},
]  # fmt: skip


@pytest.mark.parametrize("options", REFUSED)
def test_options_that_are_refused(options):
    with pytest.raises(ConfigError):
        TextWorldConfig(**options)


@pytest.mark.network(reason="fetches TextWorld")
@pytest.mark.parametrize("kind", TEXTWORLD_GAMES)
def test_textworld_s_own_games(kind):
    folder = ensure(recipe_of("textworld")).folder / "tree" / recipe_of("textworld").prefix.lstrip("/")
    made = built(path=str(folder), games=[kind], level=5)
    assert made.notice == "textworld 1.7.0, licence: MIT License"
    task = made.task(0)
    assert earned(made, task, [made.oracle(task), SILENCE, *made.cheats(task)]) == [1.0] + [0.0] * 9
