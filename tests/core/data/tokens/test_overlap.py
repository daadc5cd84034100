import random
from pathlib import Path

import pytest

from arcforge_core.configs import FilesDataConfig
from arcforge_core.data.tokens.overlap import heldout_overlap
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import DataError


def test_planted_near_copies_leave_less_than_one_percent_of_held_out_phrases_in_training(tmp_path: Path) -> None:
    draw = random.Random(0)
    (tmp_path / "texts").mkdir()
    for number in range(40):
        said = ["".join(draw.choices("abcdefghij", k=6)) for _ in range(300)]
        for copy in range(draw.choice((1, 1, 3))):
            changed = [word if draw.random() > 0.05 * copy else "changed" for word in said]
            (tmp_path / "texts" / f"{number}-{copy}.txt").write_text(" ".join(changed))
    settings = FilesDataConfig(paths=[str(tmp_path / "texts")], heldout=0.2, cache_dir=str(tmp_path / "cache"))
    corpus = build_data(settings, model_vocab_size=320, progress=False)
    assert heldout_overlap(corpus, 13) < 0.01
    assert heldout_overlap(corpus, 1) > 0.0, "it finds what is common"
    assert corpus.manifest["near_copies"] > 10
    assert corpus.manifest["split"]["near_copies"]["phrase"] == 13, "the rule is part of the cache's key"
    settings.heldout = 0.0
    with pytest.raises(DataError, match="no documents are held out"):
        heldout_overlap(build_data(settings, model_vocab_size=320, progress=False), 13)
