"""The page: figures with their spread, claims that can fail, what is missing, links."""

from pathlib import Path

import pytest

from arcforge_attention.ablation.page import write_page
from arcforge_attention.ablation.verdicts import verdicts
from arcforge_attention.configs import AblationOptions
from arcforge_core.config.sweep import SweepJob
from arcforge_core.console.result import Result

OPTIONS = AblationOptions(lengths=[256, 512])


def figures(retrieval, loss=2.0, converted=None, **more):
    found = {"status": "finished", "heldout_loss": loss, "tokens_per_s": 1000.0, "cache_bytes_per_token": 96.0, **more}
    for prefix, score in (("", retrieval), ("converted ", retrieval if converted is None else converted)):
        for length in OPTIONS.lengths:
            found |= {f"{prefix}{name}@{length}": score for name in ("retrieval", "single", "multi_key")}
    return found


def good():
    """Figures that bear out every claim."""
    return {
        "gqa": {"0": figures(0.95), "1": figures(0.97)},
        "mla": {"0": figures(0.96), "1": figures(0.94)},
        "dsa": {"0": figures(0.95, 2.01, 0.4), "1": figures(0.94, 2.0, 0.5)},
        "swa": {"0": figures(0.6, converted=0.1), "1": figures(0.7, converted=0.2)},
        "swa_pattern": {"0": figures(0.9, pattern="SFFS"), "1": figures(0.8, pattern="SFSF")},
        "gdn": {"0": figures(0.5), "1": figures(0.5)},
        "simple_gdn": {"0": figures(0.6), "1": figures(0.7)},
    }


def failing(results):
    return [claim.text for claim in verdicts(results, OPTIONS) if not claim.holds]


def test_every_claim_holds_where_it_should():
    assert failing(good()) == []
    assert len(verdicts(good(), OPTIONS)) == 9


@pytest.mark.parametrize(
    ("variant", "seeds", "told"),
    [
        ("gqa", {"0": figures(0.85), "1": figures(0.9)}, "gqa, dense: single at least 90%"),
        ("mla", {"0": figures(0.6), "1": figures(0.6)}, "the comparison is void"),
        ("dsa", {"0": figures(0.95, 2.05, 0.4)}, "held-out loss within 1%"),
        ("dsa", {"0": figures(0.91, 2.0, 0.4)}, "retrieval within 2 points"),
        ("dsa", {"0": figures(0.95, 2.0, 0.9)}, "untrained indexer"),
        ("dsa", {"0": figures(0.95, 2.0, 0.94), "1": figures(0.95, 2.0, 0.1)}, "untrained indexer"),
        ("swa", {"0": figures(0.9, converted=0.1)}, "SWA interleave after training"),
        ("swa", {"0": figures(0.1, converted=0.9)}, "SWA interleave without training"),
        ("swa_pattern", {"0": figures(0.1)}, "swa_pattern retrieves more"),
        ("simple_gdn", {"0": figures(0.1)}, "simple_gdn retrieves more"),
    ],
)
def test_each_claim_can_fail(variant, seeds, told):
    assert any(told in text for text in failing({**good(), variant: seeds}))


def test_claims_wait_for_their_variants():
    assert [claim.text[:10] for claim in verdicts({"gqa": good()["gqa"]}, OPTIONS)] == ["gqa, dense"]
    assert verdicts({}, OPTIONS) == []


def jobs_of(results, folder):
    jobs = []
    for name, seeds in results.items():
        for seed, found in seeds.items():
            overrides = {"attention": name, "seed": seed}
            jobs.append(SweepJob(len(jobs), overrides, Result(folder / f"{name}-{seed}", found)))
    return jobs


def test_the_page_shows_means_ranges_patterns_and_failures(tmp_path):
    failed = SweepJob(99, {"attention": "acme", "seed": "2"}, error=ValueError("no <such> kernel"))
    page = write_page(tmp_path, [*jobs_of(good(), tmp_path), failed], OPTIONS)
    text = page.read_text()
    assert page == tmp_path / "ablation.html"
    assert "96.0% <small>95.0% to 97.0%</small>" in text and "SFFS, SFSF" in text
    assert "acme seed 2: failed: no &lt;such&gt; kernel" in text and "<such>" not in text
    assert text.count("<svg") == 2 and "does not hold" not in text
    assert "4.8% of the total" in text and 'href="gqa-0/report.html"' in text


def test_what_does_not_reproduce_is_said(tmp_path):
    results = {**good(), "swa": {"0": figures(0.95)}}
    assert write_page(tmp_path, jobs_of(results, Path("/runs")), OPTIONS).read_text().count("does not hold") == 3


def test_an_empty_sweep_has_a_page(tmp_path):
    assert "No job has finished" in write_page(tmp_path, [], OPTIONS).read_text()
