"""The composition and the command line, with core's own components only."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core.config import compose as compose_module
from arcforge_core.config import search_path
from arcforge_core.config.compose import compose, compose_config, run_app
from arcforge_core.config.schema import EvalConfig, TrainConfig
from arcforge_core.configs import LongContextSuiteConfig, ReferenceAttentionConfig, TorchAdamWConfig
from arcforge_core.console.result import Result
from arcforge_core.errors import ArcforgeError, ConfigError, DataError, PluginError
from arcforge_core.plugins.loader import LoadedPlugins, PluginInfo, registry
from arcforge_core.plugins.registry import Component, Registry

CORE = ("attention=reference", "optimizer=torch_adamw", "schedule=constant")


def command(monkeypatch, folder, *arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["arcforge-train", *arguments])


def test_groups_become_their_components_dataclasses():
    config = compose([*CORE, "model=tiny", "optimizer.lr=0.5"])
    assert isinstance(config, TrainConfig)
    assert config.attention == ReferenceAttentionConfig()
    assert isinstance(config.optimizer, TorchAdamWConfig) and config.optimizer.lr == 0.5
    assert config.model.name == "tiny" and config.model.mtp.depths == 3


def test_a_composition_copies_not_the_store_of_schemas_and_leaves_it_as_it_was():
    compose([*CORE, "optimizer.lr=0.5"])
    store = compose_module.ConfigStore.instance()
    with compose_module._uncopied_store():
        assert copy.deepcopy(store) is store
    assert copy.deepcopy(store) is not store, "other users of Hydra in this process get copies"
    assert compose(CORE).optimizer == TorchAdamWConfig()


def test_eval_has_its_own_root():
    config = compose_config("eval", EvalConfig, ["checkpoint=somewhere"])
    assert (config.checkpoint, config.data.name, config.suite.name) == ("somewhere", "stdlib", "language_model")
    chosen = compose_config("eval", EvalConfig, ["suite=long_context", "suite.lengths=[300]"])
    assert isinstance(chosen.suite, LongContextSuiteConfig) and chosen.suite.lengths == [300]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.minuts=3"], "unknown field trainer.minuts: .*did you mean 'minutes'"),
        (["+trainer.minuts=3"], "unknown field trainer.minuts: .*did you mean 'minutes'"),
        (["++trainer.minuts=3"], "unknown field trainer.minuts: .*did you mean 'minutes'"),
        (["attnetion=reference"], "unknown field attnetion: .*did you mean 'attention'"),
        (["+attnetion=reference"], "unknown field attnetion: .*did you mean 'attention'"),
        (["model.mtp.depth=1"], "unknown field model.mtp.depth: .*did you mean 'depths'"),
        (["model={hiden_size: 3}"], "unknown field model.hiden_size: .*did you mean 'hidden_size'"),
        (["trainer.extra.foo=1"], r"written \+trainer.extra.foo"),
        (["trainer.max_steps=abc"], "trainer.max_steps='abc': must be int or null"),
        (["trainer.max_steps=1.5"], "trainer.max_steps=1.5: must be int or null"),
        (["trainer.clip_norm=true"], "trainer.clip_norm=True: must be float"),
        (["trainer.sequence_length=null"], "trainer.sequence_length=None: must be int"),
        (["trainer=abc"], "trainer='abc': this is a section"),
        (["data=files", "data.paths={a: 3}"], r"data.paths='{a: 3}': must be list\[str\]"),
        (["data=mixture", "+data.weights.code=abc"], "data.weights.code='abc': must be float"),
        (["trainer.precision=bf61"], "trainer.precision='bf61': .*did you mean 'bf16'"),
        (["trainer.clip_norm=nan"], "trainer.clip_norm=nan: must be at least 0"),
        (["trainer.max_steps=null"], "trainer.max_steps=None: set max_steps, max_tokens or minutes"),
        (["trainer.sequence_length=96"], "trainer.micro_batch_tokens=4096: must be a multiple of sequence_length=96"),
        (["trainer.sequence_length=8192", "trainer.micro_batch_tokens=8192"], "8192: .*max_position_embeddings=4096"),
        (["model.n_group=3"], "model.n_group=3: must divide n_routed_experts=16"),
        (["model.n_group=16"], "model.n_group=16: .* groups of at least two"),
        (["model.n_group=2", "model.topk_group=3"], "model.topk_group=3: must be between 1 and 2"),
        (["model.n_group=8", "model.num_experts_per_tok=3"], "model.topk_group=1: must hold num_experts_per_tok=3"),
        (["model.rope_scaling.type=yarm"], "model.rope_scaling.type='yarm': .*did you mean 'yarn'"),
        (["model.num_experts_per_tok=17"], "model.num_experts_per_tok=17: .*n_routed_experts=16"),
        (["attention.name=mla"], "attention.name='mla': this is the attention 'reference'"),
        (["attention=refrence"], "attention='refrence': .*did you mean 'reference'"),
        (["model=mni"], "model='mni': accepted: .*did you mean 'mini'"),
        (["experiment=minni"], "experiment='minni': accepted: .*did you mean 'mini'"),
        (["~attention"], "attention: a value must be given"),
        (["just words"], "cannot read 'just words'"),
        (["seed=1,2"], "several values are a sweep, add -m"),
        (["+seed=1"], r"already at 'seed'. Write it without \+"),
        (["model=null"], "string or a list"),
    ],
)
def test_bad_input_is_refused_with_field_and_remedy(overrides, message):
    with pytest.raises(ArcforgeError, match=message) as caught:
        compose([*CORE, *overrides])
    assert "To append to your config" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_own_recipe_without_the_marker_is_said_to_be_unread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/mine.yaml").write_text("# @package _global_\nseed: 7\n")
    with pytest.raises(ConfigError, match=r"conf/experiment/mine.yaml is not read: .*conf/arcforge.toml"):
        compose([*CORE, "experiment=mine"])
    (tmp_path / "conf/arcforge.toml").touch()
    assert compose([*CORE, "experiment=mine"]).seed == 7


def test_free_dictionary_takes_new_keys_with_plus():
    assert compose([*CORE, "+trainer.extra.fast_dev_run=true"]).trainer.extra == {"fast_dev_run": True}


def test_a_section_inside_a_dictionary_is_checked_under_its_own_path():
    source = ["data=mixture", "+data@data.sources.code=stdlib"]
    assert compose([*CORE, *source]).data.sources["code"].name == "stdlib"
    with pytest.raises(ConfigError, match=r"^data.sources.code.heldout=0.9: must be between"):
        compose([*CORE, *source, "data.sources.code.heldout=0.9"])
    for plus in ("", "+"):
        with pytest.raises(ConfigError, match=r"unknown field data.sources.code.heldoutt: .*did you mean 'heldout'"):
            compose([*CORE, *source, f"{plus}data.sources.code.heldoutt=0.1"])
    with pytest.raises(ConfigError, match=r"data.sources.code.name='files': this is the data 'stdlib'"):
        compose([*CORE, *source, "data.sources.code.name=files"])
    with pytest.raises(ConfigError, match=r"^(schedule.final=2.0|model.mtp.fraction=3.0): must be between 0"):
        compose([*CORE, "schedule.final=2", "model.mtp.fraction=3"])


def test_a_mistake_in_a_recipe_names_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/arcforge.toml").touch()
    recipe = "# @package _global_\ntrainer:\n  minuts: 3\n"
    (tmp_path / "conf/experiment/mine.yaml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"experiment/mine.*unknown field trainer.minuts.*'minutes'"):
        compose([*CORE, "experiment=mine"])


def test_the_projects_folder_wins_only_with_its_marker(tmp_path, monkeypatch):
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/smoke.yaml").write_text("# @package _global_\nname: of_the_project\n")
    monkeypatch.chdir(tmp_path)
    assert compose([*CORE, "experiment=smoke"]).name == "smoke"
    (tmp_path / "conf/arcforge.toml").touch()
    assert compose([*CORE, "experiment=smoke"]).name == "of_the_project"
    assert compose([*CORE, "experiment=mini"]).name == "mini", "installed recipes stay beside the project's"


def plugins_with_presets(*folders):
    infos = [PluginInfo(f"p{i}", f"dist-{i} 1.0", config_sources=(f"file://{f}",)) for i, f in enumerate(folders)]
    return LoadedPlugins(plugins=infos)


def test_an_option_of_two_plugins_is_refused_only_when_asked_for(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name / "experiment").mkdir(parents=True)
        (tmp_path / name / "experiment/same.yaml").write_text("# @package _global_\nseed: 1\n")
    (tmp_path / "a/experiment/other.yaml").write_text("# @package _global_\nseed: 2\n")
    loaded = plugins_with_presets(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(search_path, "load_plugins", lambda: loaded)
    assert compose([*CORE, "experiment=other"]).seed == 2
    with pytest.raises(PluginError, match=r"experiment=same is brought by dist-0 1.0 .* and by dist-1 1.0"):
        compose([*CORE, "experiment=same"])


def test_a_preset_named_like_a_component_is_refused(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/files.yaml").write_text("licence: mine\n")
    monkeypatch.setattr(search_path, "load_plugins", lambda: plugins_with_presets(tmp_path))
    with (
        pytest.warns(UserWarning, match="same name"),
        pytest.raises(PluginError, match=r"data=files is brought by arcforge-core .* and by dist-0"),
    ):
        compose([*CORE, "data=files"])


def with_components(monkeypatch, *components):
    changed = Registry({key: list(claims) for key, claims in registry().claims.items()})
    for component in components:
        changed.register(component)
    monkeypatch.setattr(compose_module, "registry", lambda: changed)
    monkeypatch.setattr(search_path, "registry", lambda: changed)
    compose_module.store_components.cache_clear()


@pytest.fixture
def fresh_store():
    yield
    compose_module.store_components.cache_clear()


@pytest.mark.usefixtures("fresh_store")
def test_a_component_whose_schema_is_broken_stops_nobody_else(monkeypatch):
    broken = Component("data", "broken", "no.module:X", "no.such.module:Config", "", "p", "acme 1.0")
    with_components(monkeypatch, broken)
    assert compose(CORE).data.name == "stdlib"
    with pytest.raises(PluginError, match=r"data 'broken' of acme 1.0: cannot import"):
        compose([*CORE, "data=broken"])


@pytest.mark.usefixtures("fresh_store")
def test_a_component_of_two_distributions_is_refused_when_asked_for(monkeypatch):
    twins = [
        Component("data", "twin", "a:b", "arcforge_core.configs:StdlibDataConfig", "", f"p{i}", f"acme{i} 1.0")
        for i in range(2)
    ]
    with_components(monkeypatch, *twins)
    assert compose(CORE).data.name == "stdlib"
    with pytest.raises(PluginError, match=r"claimed by acme0 1.0 and acme1 1.0"):
        compose([*CORE, "data=twin"])


@pytest.mark.usefixtures("fresh_store")
def test_one_of_several_that_two_distributions_bring_is_refused(monkeypatch):
    twins = [
        Component("logger", "twin", "a:b", "arcforge_core.configs:CsvLoggerConfig", "", f"p{i}", f"acme{i} 1.0")
        for i in range(2)
    ]
    with_components(monkeypatch, *twins)
    assert list(compose([*CORE, "logger=[csv,tensorboard]"]).logger) == ["csv", "tensorboard"]
    with pytest.raises(PluginError, match=r"claimed by acme0 1.0 and acme1 1.0"):
        compose([*CORE, "logger=[csv,twin]"])


def test_run_app_hands_over_a_dataclass_and_makes_no_folders(tmp_path, monkeypatch):
    command(monkeypatch, tmp_path, *CORE, "seed=7")
    seen = []
    assert run_app("train", TrainConfig, seen.append) == 0
    assert [config.seed for config in seen] == [7] and type(seen[0]) is TrainConfig
    assert list(tmp_path.iterdir()) == []


def test_run_app_passes_an_error_on(tmp_path, monkeypatch, capsys):
    command(monkeypatch, tmp_path, *CORE)

    def fail(config):
        raise DataError("no text")

    with pytest.raises(DataError, match="no text"):
        run_app("train", TrainConfig, fail)
    assert capsys.readouterr().err == "", "run_main prints it, once"


def test_run_app_refuses_before_any_work(tmp_path, monkeypatch):
    command(monkeypatch, tmp_path, *CORE, "trainer.minuts=1")
    seen = []
    with pytest.raises(ConfigError, match="minutes"):
        run_app("train", TrainConfig, seen.append)
    assert seen == []


def fake_train(config):
    if config.seed == 1:
        raise DataError("no text in x")
    if config.seed == 2:
        raise ZeroDivisionError("ours")
    run = Path(config.output_dir) / f"run-{config.seed}"
    run.mkdir(parents=True)
    run.joinpath("metrics.csv").write_text(f"step,loss\n1,5\n2,{4 - config.seed / 10}\n")
    return Result(run, {"bits_per_byte": 2.0 + config.seed})


@pytest.mark.parametrize(("seeds", "code"), [("1,3", 2), ("0,1,2,3", 1)])
def test_a_failed_job_of_a_sweep_loses_no_other(tmp_path, monkeypatch, capfd, seeds, code):
    command(monkeypatch, tmp_path, *CORE, "-m", f"seed={seeds}")
    assert run_app("train", TrainConfig, fake_train) == code
    [page] = tmp_path.glob("outputs/multirun/*/*/index.html")
    table = page.with_name("summary.csv").read_text().splitlines()
    assert len(table) == 1 + len(seeds.split(","))
    assert table[-1].split(",")[1:4] == ["3", "ok", "5"], "the last job, after the failed ones"
    output = capfd.readouterr()
    assert str(page.relative_to(tmp_path)) in output.out
    assert "no text in x" in output.err
    assert ("ZeroDivisionError" in output.err) == (code == 1)


def test_only_the_first_process_of_a_sweep_writes_the_comparison(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RANK", "1")
    command(monkeypatch, tmp_path, *CORE, "-m", "seed=1,3")
    assert run_app("train", TrainConfig, fake_train) == 2
    assert [path.name for path in tmp_path.glob("outputs/*")] == ["run-3"]
    output = capfd.readouterr()
    assert output.out == "", "one process tells it"
    assert "no text in x" in output.err


def test_a_sweep_with_an_impossible_job_starts_none(tmp_path, monkeypatch):
    command(monkeypatch, tmp_path, *CORE, "seed=0,abc", "-m")
    with pytest.raises(ConfigError, match="seed='abc': must be int"):
        run_app("train", TrainConfig, fake_train)
    assert not list(tmp_path.glob("outputs/run-*"))


def test_the_folder_of_a_sweep_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    command(monkeypatch, tmp_path, *CORE, "seed=0,1", "-m", f"output_dir={tmp_path / 'file'}")
    with pytest.raises(ConfigError, match=r"output_dir='.*file.*': cannot be written: Not a directory"):
        run_app("train", TrainConfig, fake_train)


def test_a_sweep_recipe_needs_no_flag(tmp_path, monkeypatch):
    command(monkeypatch, tmp_path, *CORE, "sweep=learning_rate")
    rates = []
    assert run_app("train", TrainConfig, lambda config: rates.append(config.optimizer.lr)) == 0
    assert len(set(rates)) == 4


@pytest.mark.parametrize("saves_itself", [True, False])
def test_interrupting_a_sweep_stops_it_and_keeps_what_is_done(tmp_path, monkeypatch, saves_itself):
    command(monkeypatch, tmp_path, *CORE, "-m", "seed=3,4,5" if saves_itself else "seed=0,4,5")

    def interrupted(config):
        assert config.seed != 5, "the sweep continues after Ctrl-C"
        if saves_itself:
            return Result(tmp_path, {"status": "interrupted"})
        if config.seed == 4:
            raise KeyboardInterrupt
        return fake_train(config)

    with pytest.raises(KeyboardInterrupt):
        run_app("train", TrainConfig, interrupted)
    [summary] = tmp_path.glob("outputs/multirun/*/*/summary.csv")
    assert len(summary.read_text().splitlines()) == 2


def shell(*command, **environment):
    """Runs one of our scripts as a user would."""
    script = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    return subprocess.run(script, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("arcforge-train attention=ref", {"attention=reference"}),
        ("arcforge-train model=", {"model=tiny", "model=mini", "model=glm5"}),
        ("arcforge-train experiment=s", {"experiment=smoke"}),
        (f"arcforge-train {' '.join(CORE)} trainer.min", {"trainer.minutes="}),
    ],
)
def test_tab_completion_knows_options_and_fields(line, expected):
    done = shell("arcforge-train", "-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert expected <= set(done.stdout.split()), done.stderr


def test_completion_can_be_installed():
    done = shell("arcforge-train", "-sc", "install=bash")
    assert "complete" in done.stdout and "arcforge-train" in done.stdout


def test_the_command_line_prints_one_line_and_exits_with_2():
    done = shell("arcforge-train", *CORE, "trainer.minuts=3")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "error: unknown field trainer.minuts: TrainerConfig has no 'minuts'; did you mean 'minutes'?\n"
    )


def test_cfg_job_prints_the_configuration():
    done = shell("arcforge-train", *CORE, "--cfg", "job", "-p", "model.mtp")
    assert done.returncode == 0 and "depths: 3" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], [*CORE, "--cfg", "job"], ["--version"]])
def test_nothing_heavy_is_imported_for_questions(arguments):
    code = (
        f"import sys; sys.argv = ['arcforge-train', *{arguments!r}]\n"
        "from arcforge_core.cli.train import main\n"
        "assert main() == 0\n"
        "heavy = {'torch', 'lightning', 'numpy', 'matplotlib', 'transformers', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_recipe_that_includes_itself_is_named(tmp_path, monkeypatch):
    recipes = tmp_path / "conf" / "experiment"
    recipes.mkdir(parents=True)
    (tmp_path / "conf" / "arcforge.toml").write_text("")
    for name, other in (("one", "two"), ("two", "one")):
        (recipes / f"{name}.yaml").write_text(f"# @package _global_\ndefaults:\n  - {other}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArcforgeError, match=r"a recipe includes itself, .*: look at the defaults of experiment=one"):
        compose(["experiment=one"])


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("name=grün", "grün"),
        ("name=Über uns/Straße 1", "Über uns/Straße 1"),
        ("name='ä=b'", "ä=b"),
        ("data.paths=[Über uns/a, b]", ["Über uns/a", "b"]),
        ("data.paths=Übung", ["Übung"]),
    ],
)
def test_letters_that_hydras_grammar_lacks_need_no_quotes(typed, read):
    config = compose(["data=files", "data.paths=[b]", typed])
    assert read == (config.data.paths if typed.startswith("data") else config.name)
