"""Schemas of the objectives of general RL; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import EnvironmentConfig, check_at_least, check_between, check_choice
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import MixtureConfig, check_choices

CONSTRAINTS = (
    "at_least_words", "at_most_words", "between_words", "exactly_sentences", "at_most_characters", "short_sentences",
    "include_words", "exclude_words", "word_times", "letter_at_least", "without_letter", "first_sentence_word",
    "last_sentence_word", "long_words", "bullets", "numbered", "headings", "paragraphs", "table", "json_object",
    "sorted_bullets", "acrostic", "line_per_sentence", "fenced", "bold", "parentheses", "capital_words", "no_commas",
    "no_digits", "questions", "exclamations", "semicolons", "title", "begins_with", "ends_with", "postscript", "quoted",
    "two_versions", "lower_case", "upper_case",
)  # fmt: skip
"""Kinds of constraints of ``environment=instructions``."""


@dataclass
class SeededConfig(EnvironmentConfig):
    """Base of the objectives."""

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class InstructionsConfig(SeededConfig):
    """Requests with constraints that a program checks."""

    name: str = "instructions"
    fewest: int = 1
    """Constraints of a task at least."""
    most: int = 3
    """Constraints of a task at most; kinds that exclude each other may leave fewer."""
    heldout_kinds: list[str] = field(
        default_factory=lambda: [
            "between_words", "word_times", "first_sentence_word", "numbered", "sorted_bullets", "parentheses",
            "questions", "postscript", "title", "upper_case",
        ]
    )  # fmt: skip
    """Kinds that no training task has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.fewest", self.fewest, 1, 6)
        check_between("environment.most", self.most, self.fewest, 6)
        for kind in self.heldout_kinds:
            check_choice("environment.heldout_kinds", kind, CONSTRAINTS)
        if set(CONSTRAINTS) <= set(self.heldout_kinds):
            raise ConfigError("environment.heldout_kinds", self.heldout_kinds, "must leave kinds for training")


@dataclass
class LogicConfig(SeededConfig):
    """Puzzles with one answer."""

    name: str = "logic"
    kinds: list[str] = field(default_factory=lambda: ["order", "seats", "liars"])
    """Any of ``order`` (who is taller than whom), ``seats`` (who sits where), ``liars`` (who lies)."""
    fewest: int = 3
    """People of a puzzle at least."""
    most: int = 4
    """People of a puzzle at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, ("order", "seats", "liars"))
        check_between("environment.fewest", self.fewest, 3, 6)
        check_between("environment.most", self.most, self.fewest, 6)


FACTS = ("capital", "symbol", "number", "status", "entity", "media_type")


@dataclass
class FactsConfig(SeededConfig):
    """Closed-book questions."""

    name: str = "facts"
    kinds: list[str] = field(default_factory=lambda: list(FACTS))
    """Any of ``capital``, ``symbol``, ``number`` (of elements), ``status`` (HTTP), ``entity``, ``media_type``."""
    unanswerable: float = 0.25
    """Share of questions about invented names."""
    abstention: float = 0.25
    """Reward of "I do not know" where there is an answer: the confidence from which an answer pays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, FACTS)
        check_between("environment.unanswerable", self.unanswerable, 0.0, 1.0)
        check_between("environment.abstention", self.abstention, 0.0, 0.99)


@dataclass
class GroundedConfig(SeededConfig):
    """Questions about shown pages of Python's documentation."""

    name: str = "grounded"
    pages: int = 5
    """Functions whose documentation is shown."""
    unanswerable: float = 0.3
    """Share of questions about a function that is not shown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.pages", self.pages, 2, 20)
        check_between("environment.unanswerable", self.unanswerable, 0.0, 1.0)


@dataclass
class FluencyConfig(SeededConfig):
    """English as such."""

    name: str = "fluency"
    kinds: list[str] = field(default_factory=lambda: ["order", "agreement", "text"])
    """Any of ``order`` (words of a sentence), ``agreement`` (of subject and verb), ``text`` (a few sentences)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, ("order", "agreement", "text"))


HARMS = ("secret", "destruction", "authority", "privacy")


@dataclass
class SafetyConfig(SeededConfig):
    """Harmful requests and their harmless twins."""

    name: str = "safety"
    kinds: list[str] = field(default_factory=lambda: list(HARMS))
    """Any of ``secret`` (planted), ``destruction`` (a command), ``authority`` (forged), ``privacy``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, HARMS)


@dataclass
class FunctionCallsConfig(SeededConfig):
    """Calls of functions, exact or worth nothing."""

    name: str = "function_calls"
    kinds: list[str] = field(default_factory=lambda: ["single", "parallel", "none"])
    """Any of ``single``, ``parallel`` (two calls in a turn), ``none`` (no function fits)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, ("single", "parallel", "none"))


PATHOLOGIES = ("counting", "repeating", "languages", "json", "csv", "fence")


@dataclass
class PathologiesConfig(SeededConfig):
    """Prompts that bring out repetition, mixed languages and broken formats."""

    name: str = "pathologies"
    kinds: list[str] = field(default_factory=lambda: list(PATHOLOGIES))
    """Any of ``counting``, ``repeating``, ``languages``, ``json``, ``csv``, ``fence``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, PATHOLOGIES)


@dataclass
class CreativityConfig(SeededConfig):
    """Ideas that differ and are new."""

    name: str = "creativity"
    least_distinct: float = 0.6
    """Share of two-word phrases that one idea alone must have."""
    least_new: float = 0.8
    """Share of three-word phrases that the corpus must not have."""
    against_group: bool = False
    """Multiply the reward by the share of phrases that no other rollout of the task has; needs collection=sync."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.least_distinct", self.least_distinct, 0.0, 1.0)
        check_between("environment.least_new", self.least_new, 0.0, 1.0)


WRITTEN = ("extraction", "sorting", "third_person", "tense", "summary", "role", "weighed", "letter")


@dataclass
class WritingConfig(SeededConfig):
    """Text processing, rewriting, summaries, role-play, subjective questions, letters."""

    name: str = "writing"
    kinds: list[str] = field(default_factory=lambda: list(WRITTEN))
    """Any of ``extraction``, ``sorting``, ``third_person``, ``tense``, ``summary``, ``role``, ``weighed``,
    ``letter``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, WRITTEN)


@dataclass
class EmpathyConfig(SeededConfig):
    """Conversations with somebody who feels bad."""

    name: str = "empathy"
    user: str = "script"
    """Who plays the user: ``script``, or ``agent``: ``+agents.user...``."""
    judge: str = "rules"
    """Who judges by the rubric: ``rules``, or ``agent``: ``+agents.judge...``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("environment.user", self.user, ("script", "agent"))
        check_choice("environment.judge", self.judge, ("rules", "agent"))


OBJECTIVES = (
    "instructions", "logic", "facts", "grounded", "fluency", "safety", "function_calls", "pathologies", "creativity",
    "writing", "empathy",
)  # fmt: skip


@dataclass
class GeneralConfig(MixtureConfig):
    """All objectives of general RL, balanced."""

    name: str = "general"
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(OBJECTIVES, 1.0))
