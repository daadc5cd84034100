"""The search itself, with made-up scores."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_attention.swa_search import (
    checked_windows,
    extensions,
    most_scores,
    read_scores,
    search_pattern,
    step_windows,
    write_result,
)
from arcforge_core.errors import ConfigError, DataError

SETTINGS = {"window": 4, "seed": 0}


def separable(num_layers, seed):
    """Every layer's window costs something of its own."""
    costs = [random.Random(f"{seed}/{n}").random() for n in range(num_layers)]
    return lambda pattern: (-sum(cost for cost, letter in zip(costs, pattern, strict=True) if letter == "S"),)


def with_pairs(num_layers, seed):
    """Neighbouring windows cost more, or less, than the two alone."""
    alone = separable(num_layers, seed)
    pairs = [random.Random(f"{seed}/pair {n}").uniform(-0.5, 0.5) for n in range(num_layers - 1)]
    return lambda p: (alone(p)[0] + sum(c for n, c in enumerate(pairs) if p[n : n + 2] == "SS"),)


def arbitrary(num_layers, seed):
    """Patterns have nothing to do with each other."""
    return lambda pattern: (random.Random(f"{seed}/{pattern}").random(),)


def exhaustive(score, num_layers, windows):
    chosen = itertools.combinations(range(num_layers), windows)
    patterns = ["".join("S" if n in places else "F" for n in range(num_layers)) for places in chosen]
    return max(sorted(patterns), key=score)


@given(st.integers(2, 8), st.data(), st.integers(1, 3), st.integers(0, 99))
def test_what_layers_cost_by_themselves_needs_no_beam(num_layers, data, per_step, seed):
    windows = data.draw(st.integers(1, num_layers))
    score = separable(num_layers, seed)
    found = search_pattern(score, num_layers, windows=windows, beam=1, layers_per_step=per_step)
    assert found.pattern == exhaustive(score, num_layers, windows)


@pytest.mark.parametrize("seed", range(10))
def test_a_beam_of_eight_finds_the_optimum_of_layers_that_depend_on_neighbours(seed):
    score = with_pairs(8, seed)
    assert search_pattern(score, 8, windows=4).pattern == exhaustive(score, 8, 4)


def test_a_beam_is_needed_there():
    missed = [s for s in range(10) if search_pattern(with_pairs(8, s), 8, windows=4, beam=1).pattern != exhaustive(
        with_pairs(8, s), 8, 4
    )]  # fmt: skip
    assert missed


@given(st.integers(1, 6), st.data(), st.integers(1, 3), st.integers(0, 99))
def test_a_beam_of_all_patterns_is_exhaustive(num_layers, data, per_step, seed):
    windows, score = data.draw(st.integers(1, num_layers)), arbitrary(num_layers, seed)
    found = search_pattern(score, num_layers, windows=windows, beam=20, layers_per_step=per_step)
    assert found.pattern == exhaustive(score, num_layers, windows)
    assert found.scores[found.pattern] == score(found.pattern)


@given(st.integers(1, 7), st.data(), st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_scores_no_pattern_twice_and_no_more_than_announced(num_layers, data, beam, per_step, seed):
    windows, seen = data.draw(st.integers(1, num_layers)), []
    score = arbitrary(num_layers, seed)
    found = search_pattern(
        lambda p: seen.append(p) or score(p), num_layers, windows=windows, beam=beam, layers_per_step=per_step
    )
    assert seen == list(found.scores) and len(set(seen)) == len(seen)
    assert len(seen) <= most_scores(num_layers, windows, beam, per_step)
    assert [step.windows for step in found.steps] == [
        step_windows(windows, per_step)[n] for n in range(len(found.steps))
    ]
    for step in found.steps:
        assert {pattern.count("S") for pattern in step.beam} == {step.windows}
        assert len(step.beam) == min(beam, step.candidates)
    assert found.pattern.count("S") == windows and len(found.pattern) == num_layers


def test_the_number_of_scores():
    assert len(search_pattern(arbitrary(4, 0), 4, windows=2).scores) == 1 + 6
    assert len(search_pattern(arbitrary(6, 0), 6, windows=4, beam=1).scores) == 1 + 15 + 6 == most_scores(6, 4, 1, 2)
    assert [step.windows for step in search_pattern(arbitrary(5, 0), 5, windows=3).steps] == [0, 2, 3]
    assert len(step_windows(20, 2)) - 1 == 10  # the paper's steps for its 40 layers


def test_extensions_give_each_pattern_once():
    assert extensions(["SFF", "FSF"], 1) == ["FSS", "SFS", "SSF"]
    assert extensions(["SFF"], 2) == ["SSS"]


def test_ties_go_to_the_second_number_then_to_the_alphabet():
    assert search_pattern(lambda p: (1.0,), 4, windows=2).pattern == "FFSS"
    second = {"FFSS": 0.1, "SFFS": 0.3, "SFSF": 0.3}
    assert search_pattern(lambda p: (1.0, second.get(p, 0.0)), 4, windows=2).pattern == "SFFS"
    assert search_pattern(lambda p: (float(p == "SSFF"), second.get(p, 0.0)), 4, windows=2).pattern == "SSFF"


def test_goes_on_where_it_stopped(tmp_path):
    score, calls = arbitrary(6, 1), []

    class Stopped(Exception):
        pass

    def until(limit):
        def scored(pattern):
            if len(calls) == limit:
                raise Stopped
            calls.append(pattern)
            return (*score(pattern), 1e-3)

        return scored

    def go(limit):
        known = read_scores(tmp_path, SETTINGS)
        return search_pattern(
            until(limit), 6, windows=4, beam=2, known=known, keep=lambda r: write_result(tmp_path, SETTINGS, r)
        )

    for limit in (1, 9, 18):
        with pytest.raises(Stopped):
            go(limit)
        assert list(read_scores(tmp_path, SETTINGS)) == calls
    found = go(1000)
    assert found == search_pattern(until(10_000), 6, windows=4, beam=2)
    assert len(calls) == 2 * len(found.scores)
    write_result(tmp_path, SETTINGS, found)
    again = search_pattern(
        lambda p: pytest.fail("scored again"), 6, windows=4, beam=2, known=read_scores(tmp_path, SETTINGS)
    )
    assert again == found


def test_another_search_and_a_damaged_file_are_refused(tmp_path):
    assert read_scores(tmp_path, SETTINGS) == {}
    write_result(tmp_path, SETTINGS, search_pattern(arbitrary(4, 0), 4, windows=2))
    with pytest.raises(DataError, match=r"a different search: window=4 \(now 8\); choose another output"):
        read_scores(tmp_path, SETTINGS | {"window": 8})
    (tmp_path / "swa_search.json").write_text('{"settings": {}, "scores": {"FF": 3}}')
    with pytest.raises(DataError, match="damaged"):
        read_scores(tmp_path, SETTINGS)


@pytest.mark.parametrize(("asked", "layers"), [(0, 4), (5, 4), (None, 1)])
def test_windows_must_fit_into_the_layers(asked, layers):
    with pytest.raises(ConfigError, match=f"between 1 and the model's {layers} layers"):
        checked_windows(asked, layers)


def test_half_of_the_layers_get_a_window():
    assert [checked_windows(None, layers) for layers in (2, 5, 40)] == [1, 2, 20]
