"""Command lines of 0.1 that had a procedure run the job or pipeline that replaces it."""

import pytest

from arcforge_core.cli import train as cli
from arcforge_core.cli.procedures import replacement


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model=tiny seed=1", None),
        ("experiment=mini", None),
        ("procedure=acme", None),
        ("procedure=one_run seed=1", "train seed=1"),
        ("experiment=attention_ablation -m seed=0,1", "ablation experiment=attention_ablation -m seed=0,1"),
        ("procedure=attention_ablation procedure.samples=2", "ablation ablation.samples=2"),
        ("experiment=sft_mini procedure.count=3", "pipeline pipeline=sft_mini stages.conversations.count=3"),
        ("experiment=sft_mini data.folders=[a]", None),
        (
            "procedure=made_conversations data=conversations +procedure.counts.lookup=3 procedure.folder=a",
            "pipeline pipeline=made_conversations data=conversations stages.conversations.+counts.lookup=3",
        ),
        (
            "stage=sft init=a procedure=expert_iteration procedure.rounds=3 procedure.files=[b] procedure.restart=true",
            "pipeline pipeline=expert_iteration stage=sft init=a stages.rounds.repeat=3 stages.tries.files=[b] "
            "stages.learn.init=a",
        ),
    ],
)  # fmt: skip
def test_old_arguments_have_new_ones(old, new):
    found = replacement(old.split())
    assert (found and [found[0], *found[1]]) == (new and new.split())


def test_the_new_command_is_printed_and_run(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(cli, "run_command", lambda name: ran.append((name, *cli.sys.argv)) or 0)
    monkeypatch.setattr("sys.argv", ["arcforge-train", "experiment=sft_mini", "init=outputs/latest"])
    assert cli.main() == 0
    assert ran == [("pipeline", "arcforge-pipeline", "pipeline=sft_mini", "init=outputs/latest")]
    assert capsys.readouterr().err == (
        "procedure=NAME ends with this version; type: arcforge pipeline pipeline=sft_mini init=outputs/latest\n"
    )
