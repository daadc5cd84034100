"""Five broken plugins, installed beside a good one: each is reported, none stops a command."""

import json

import pytest

GOOD = ("arcforge-core", "acme-arcforge-npu")
BAD = ("double-claim", "import-error", "misspelt-hook", "same-name", "wrong-api")
CORE_ONLY = ("attention=reference", "optimizer=torch_adamw", "schedule=constant")


@pytest.fixture(scope="module")
def environment(install):
    return install(*GOOD, *BAD)


def listing(environment, **variables):
    result = environment.run("arcforge-plugins", "--json", **variables)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_each_fault_is_reported_with_its_distributions(environment):
    found = listing(environment)
    errors = {p["distribution"]: p["error"] for p in found["plugins"]}
    assert errors == {
        "arcforge-core 0.1.0": "",
        "acme-arcforge-npu 2.3.0": "",
        "double-claim 1.0": "",
        "import-error 1.0": "ModuleNotFoundError: No module named 'no_such_driver'",
        "misspelt-hook 1.0": (
            "unknown hook 'arcforge_register_component'; did you mean 'arcforge_register_components'?"
        ),
        "same-name 1.0": "entry point 'acme-arcforge-npu' is already used by acme-arcforge-npu 2.3.0",
        "wrong-api 1.0": "plugin API 0, this arcforge has 2",
    }
    assert found["conflicts"] == [
        {"kind": "hardware", "name": "torch_cpu", "claimed_by": ["arcforge-core 0.1.0", "double-claim 1.0"]}
    ]


def test_the_text_listing_and_the_doctor_show_them(environment):
    for command in (["arcforge-plugins"], ["arcforge", "doctor"]):
        result = environment.run(*command)
        assert result.returncode == 0, result.stderr
        for line in (
            "FAILED import-error 1.0",
            "FAILED misspelt-hook 1.0",
            "FAILED same-name 1.0",
            "FAILED wrong-api 1.0",
            "CLAIMED TWICE hardware=torch_cpu",
        ):
            assert line in result.stdout


def test_other_commands_go_on(environment):
    result = environment.run("arcforge-train", "--help")
    assert result.returncode == 0, result.stderr
    assert "[acme-arcforge-npu 2.3.0]" in result.stdout
    result = environment.run("arcforge-train", "--cfg", "job", *CORE_ONLY)
    assert result.returncode == 0, result.stderr


def test_a_name_claimed_twice_is_an_error_when_it_is_asked_for(environment):
    result = environment.run("arcforge-train", *CORE_ONLY, "hardware=torch_cpu")
    assert result.returncode == 2
    assert "arcforge-core 0.1.0" in result.stderr
    assert "double-claim 1.0" in result.stderr
    assert "ARCFORGE_BLOCK_PLUGINS" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_strict_mode_raises_and_names_the_first(environment):
    result = environment.run("arcforge-plugins", ARCFORGE_STRICT_PLUGINS="1")
    assert result.returncode == 2
    assert result.stderr.startswith("error: plugin 'import-error' of import-error 1.0: ModuleNotFoundError")


def test_blocked_plugins_are_left_out(environment):
    found = listing(environment, ARCFORGE_BLOCK_PLUGINS="import-error,misspelt-hook,same-name,wrong-api,double-claim")
    states = {p["distribution"].split()[0]: p["state"] for p in found["plugins"]}
    assert states == {**dict.fromkeys(GOOD, "loaded"), **dict.fromkeys(BAD, "blocked")}
    assert found["conflicts"] == []
