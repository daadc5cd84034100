"""Every known hack is caught by its rule, and earns nothing; the page about them names each."""

import random
from pathlib import Path

import pytest

pytest.importorskip("tinycss2")
pytest.importorskip("selectolax")

from arcforge_rl.slides.brief import draw_brief
from arcforge_rl.slides.hacks import HACKS
from arcforge_rl.slides.judge import judge
from arcforge_rl.slides.oracle import deck_of
from arcforge_rl.slides.rules import RULES, Cost

PAGE = Path(__file__).parents[3] / "docs/environments.md"


@pytest.mark.parametrize("hack", HACKS, ids=lambda hack: hack.name)
def test_a_rule_catches_it(hack, brief, deck, found):
    changed = hack.make(deck, brief)
    assert changed != deck
    verdict = found(changed)
    assert hack.rule in {finding.rule for finding in verdict.findings}, verdict.reason
    assert verdict.score == 0.0


def test_the_table_is_large_and_documented():
    rules = {hack.rule for hack in HACKS}
    assert len(HACKS) >= 50 and len(rules) >= 30
    assert len({hack.name for hack in HACKS}) == len(HACKS)
    of_markup = {name for name, rule in RULES.items() if rule.cost is Cost.DECK and rule.level == 1}
    assert of_markup - rules == {"too_large"}
    text = PAGE.read_text(encoding="utf-8")
    assert [rule for rule in RULES if f"`{rule}`" not in text] == []


@pytest.mark.parametrize("seed", range(20))
def test_right_decks_keep_every_rule(seed):
    brief = draw_brief(random.Random(seed), 2, 7, 5)
    verdict = judge(deck_of(brief), brief)
    assert verdict.score == 1.0 and not verdict.findings, verdict.reason
    assert verdict.strict_share(len(brief.pages)) == 1.0 and not verdict.trivial
