from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.contracts.environment import Episode, Outcome, Reply, Task
from arcforge_rl.rollouts.collect import Collected, TracedRollout
from arcforge_rl.trainer.figures import evaluation_figures, label_figures, rollout_figures


def rollout(
    text: str, reward: float, domain: str = "math", length: int = 2, labels: tuple[str, ...] = ()
) -> TracedRollout:
    branch = Branch("b", [1] * (length + 1), [False] + [True] * length, [0.0] + [-1.0] * length, [-1] + [0] * length)
    reply = Reply(text)
    rewards = {"reward": reward, "correct": reward}
    return TracedRollout(
        0,
        Task("t", "p", "a"),
        domain,
        Episode((), reply),
        Outcome(rewards, {}),
        labels=labels,
        trace=Trace("t", "g", "r", [branch], rewards, truncated=length > 2),
    )


def test_held_out_figures_by_domain() -> None:
    groups = [
        [rollout("7", 1.0), rollout("7 ", 1.0), rollout("8", 0.0), rollout("9", 0.0)],
        [rollout("1", 0.0), rollout("1", 0.0), rollout("2", 1.0), rollout("3", 0.0)],
        [rollout("x", 0.5, "code", 4)] * 4,
    ]
    found = evaluation_figures(groups)
    assert list(found) == ["code", "math", "all"]
    maths = found["math"]
    assert maths["tasks"] == 2 and maths["pass@1"] == (0.5 + 0.25) / 2 and maths["pass@4"] == 1.0
    assert maths["pass@2"] == ((1 - 1 / 6) + 0.5) / 2
    assert maths["maj@4"] == 0.5
    assert found["code"]["pass@1"] == 0.0 and found["code"]["reward"] == 0.5
    assert found["code"]["truncated"] == 1.0 and found["code"]["length"] == 4


def test_figures_of_a_step_count_what_was_left_out() -> None:
    collected = Collected([[rollout("1", 1.0), rollout("2", 0.0)]], [[rollout("3", 0.0, length=4)] * 2])
    collected.counts["all_wrong"] = 1
    found = rollout_figures(collected)
    assert found["reward"] == 0.25 and found["reward_correct"] == 0.25
    assert found["groups"] == 1 and found["all_wrong"] == 1 and found["all_right"] == 0
    assert found["length"] == 3 and found["truncated"] == 0.5 and found["sampled_tokens"] == 12


def test_held_out_figures_by_label() -> None:
    groups = [
        [rollout("7", 1.0, labels=("kind:a", "kind:b")), rollout("8", 0.0, labels=("kind:a", "kind:b"))],
        [rollout("1", 0.5, "code", labels=("kind:b",))] * 2,
        [rollout("x", 1.0)] * 2,
    ]
    found = label_figures(groups)
    assert list(found) == ["domain:code", "domain:math", "kind:a", "kind:b"]
    assert found["kind:b"] == {"tasks": 2.0, "pass@1": 0.25, "correct": 0.5, "reward": 0.5}
    assert found["domain:math"]["tasks"] == 1.0 and not label_figures(groups[2:])
