import re

import pytest

from arcforge_core.cli.main import run_job
from arcforge_core.config.schema import EvalConfig, TrainConfig
from arcforge_core.config.shorthand import written_out


def test_options_of_suites_may_stand_without_their_section():
    typed = ["suite=long_context", "lengths=[9]", "suite.samples=2", "data.heldout=0.1", "checkpoint=x", "functions=3"]
    assert written_out("eval", EvalConfig, typed) == [
        "suite=long_context",
        "suite.lengths=[9]",
        "suite.samples=2",
        "data.heldout=0.1",
        "checkpoint=x",
        "suite.functions=3",
    ]
    others = ["-m", "data=stdlib", "name=x", "--help", "unknown=1"]
    assert written_out("eval", EvalConfig, others) == others
    assert written_out("train", TrainConfig, typed) == typed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "checkpoint=None: a run or a model must be named, as checkpoint=outputs/latest"),
        (["functions=many"], "suite.functions='many': must be int"),
        (
            ["suite=long_context", "functions=3"],
            "unknown field suite.functions: suite=long_context has no 'functions'; suite=language_model has",
        ),
        (
            ["suite=long_contxt"],
            "accepted: conversations, .*long_context, mtp_acceptance, .*; did you mean 'long_context'",
        ),
        (["suite=long_context"], "checkpoint=None: a run or a model must be named"),
        (["suite=conversations"], "checkpoint=None: a run or a model must be named"),
        (["suite=conversations", "checkpoint=demo"], r"suite.files=\[\]: name files or folders, as files="),
        (["suite=conversations", "limit=0"], "suite.limit=0: must be at least 1"),
        (["suite=long_context", "tasks=[singel]"], "suite.tasks='singel': .* did you mean 'single'"),
        (["suite=long_context", "lengths=[]"], r"suite.lengths=\[\]"),
        (["suite=long_context", "lengths=[0]"], "suite.lengths=0: must be at least 1"),
        (["suite=long_context", "depths=[0.25]"], "suite.depths=0.25: must be one of 0, 0.1"),
        (["suite=long_context", "samples=0"], "suite.samples=0"),
        (["suite=long_context", "seed=-1"], "suite.seed=-1"),
        (["suite=long_context", "endpoint=localhost:8000"], "suite.endpoint='localhost:8000': must begin with http"),
        (["suite=long_context", "checkpoint=x", "model=m"], "suite.model='m': belongs to suite.endpoint"),
        (["suite=long_context", "checkpoint=x", "tokenizer=m"], "suite.tokenizer='m': belongs to suite.endpoint"),
        (
            ["suite=long_context", "checkpoint=demo", "endpoint=http://x"],
            "checkpoint='demo': suite.endpoint is measured",
        ),
        (["suite=long_context", "endpoint=http://x", "tokenizer=gone"], "suite.tokenizer='gone': no such file"),
    ],
)
def test_a_wrong_command_line_gives_one_line(arguments, message, monkeypatch, capsys):

    monkeypatch.setattr("sys.argv", ["arcforge-eval", *arguments])
    assert run_job("eval") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(message, line), line
