import itertools
import re

import pytest

from arcforge_core.configs import EVALUATION_DEPTHS, MixtureDataConfig, RetrievalDataConfig, StdlibDataConfig
from arcforge_core.contracts.data import Document
from arcforge_core.data.sources import retrieval
from arcforge_core.data.sources.needles import (
    EVALUATION_SYLLABLES,
    TRAINING_SYLLABLES,
    in_training_depths,
)
from arcforge_core.data.sources.retrieval import QUESTIONS, RECORDS, RetrievalSource
from arcforge_core.data.sources.text import MixtureSource
from arcforge_core.data.split import scan
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.long_context.plans import TEMPLATES
from arcforge_core.eval.long_context.tasks import TASKS, ExampleMaker

EVALUATION_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(EVALUATION_SYLLABLES)}){{2,3}}(?![a-z])")
TRAINING_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(TRAINING_SYLLABLES)}){{2,3}}(?![a-z])")


class Numbered:
    """Documents without any letters; a line says which document it is of."""

    def __init__(self, count=60, lines=30):
        self.count, self.lines = count, lines

    def fingerprint(self):
        return f"numbered {self.count}"

    def documents(self):
        for n in range(self.count):
            yield Document(f"{n}.txt", f"@{n:04d} ^^ ^^^ ^^\n" * self.lines, "stdlib", "CC0-1.0")


def episodes(texts=None, **settings):
    return list(RetrievalSource(RetrievalDataConfig(**{"episodes": 200, **settings}), texts or Numbered()).documents())


def parts(document):
    """Returns (characters of filler before it, needle) of each needle, the size of the filler, and the questions."""
    context, questions = document.text[: document.text.rindex("^") + 2], document.text[document.text.rindex("^") + 2 :]
    needles, before = [], 0
    for line in context.splitlines():
        if re.fullmatch(r"[@^ \d]*", line):
            before += len(line) + (not line.endswith(" "))  # a line that a needle cut ends with a blank
        else:
            needles.append((before, line))
    return needles, before, questions


def test_most_needles_are_asked_for_once_and_answered():
    for document in episodes():
        needles, _, questions = parts(document)
        answered = 0
        for _, needle in needles:
            [(key, value)] = [
                match.group("key", "value")
                for record, _ in RECORDS
                if (match := re.fullmatch(pattern(record, key="[a-z]+", value=r"\w+"), needle))
            ]
            beginnings = [cue.format(key=key) + value + "\n" for _, cues in RECORDS for cue in cues]
            answered += any(beginning in questions for beginning in beginnings)
        assert len(needles) >= 4
        assert answered == len(needles) - len(needles) // 8


def pattern(template, **values):
    """Returns the regular expression of a template."""
    text = re.escape(template).replace(r"\{key\}", "{key}").replace(r"\{value\}", "{value}")
    named = {name: f"(?P<{name}>{value})" for name, value in values.items()}
    first, *others = re.split(r"(\{key\})", text)  # a record may say its key again
    again = "".join(others).replace("{key}", named["key"], 1).replace("{key}", "(?P=key)")
    return (first + again).replace("{value}", named["value"])


def test_questions_come_in_another_order_than_needles():
    orders = []
    for document in episodes(episodes=50):
        needles, _, questions = parts(document)
        keys = [next(w for w in TRAINING_WORD.findall(needle)) for _, needle in needles]
        orders.append([questions.find(key) for key in keys if key in questions])
    assert sum(order == sorted(order) for order in orders) < 10


def test_sizes_and_pairs_are_within_their_limits():
    made = episodes(min_characters=700, max_characters=900, min_pairs=5, max_pairs=6)
    assert min(len(d.text) for d in made) > 550 and max(len(d.text) for d in made) <= 900
    assert {len(parts(document)[0]) for document in made} == {5, 6}


def test_needles_are_at_training_depths():
    depths = []
    for document in episodes(max_characters=3000):
        needles, size, _ = parts(document)
        depths += [before / size for before, _ in needles]
    near = [depth for depth in depths if any(in_training_depths(depth + off) for off in (-0.01, 0, 0.01))]
    assert near == depths and min(depths) < 0.1 and max(depths) > 0.9


def test_a_share_of_the_text_can_be_learnt():
    share = [len(parts(d)[2]) / len(d.text) for d in episodes()]
    assert 0.15 < sum(share) / len(share) < 0.5


def test_episodes_differ_by_number_and_seed_and_are_the_same_again():
    first = episodes()
    assert first == episodes()
    assert len({d.text for d in first}) == len(first)
    assert not {d.text for d in first} & {d.text for d in episodes(seed=1)}
    assert episodes(episodes=20) == first[:20]


# ---- apart from evaluation -----------------------------------------------------------------------------------------


def bare(template):
    return re.sub(r"\{\w+\}", "{}", template).strip()


def test_no_template_is_an_evaluation_template():
    training = {bare(t) for record, cues in RECORDS for t in (record, *cues)} | {bare(t) for t in QUESTIONS}
    evaluation = {bare(line) for template in TEMPLATES for line in template.strip().splitlines()}
    assert len(RECORDS) >= 8
    assert not training & evaluation
    phrases = {part.strip() for t in evaluation for part in re.split(r"\{\}", t) if len(part.strip()) > 3}
    assert phrases >= {"The code of", "Question: what is the code of"}
    assert not [(phrase, t) for phrase in phrases for t in training if phrase.lower() in t.lower()]


def test_no_evaluation_key_is_in_an_episode_and_no_training_key_in_an_example():
    text = "".join(d.text for d in episodes())
    assert not EVALUATION_WORD.search(text) and len(TRAINING_WORD.findall(text)) > 1000

    class Characters:
        def encode(self, text):
            return text

    maker = ExampleMaker([d.text for d in Numbered().documents()] + ["^-^ ^_^ ^.^\n"], Characters())
    for task, depth in itertools.product(TASKS, (None, 0.3)):
        if depth is None or task == "single":
            prompt = maker.make(task, 3000, depth=depth).prompt
            assert len(EVALUATION_WORD.findall(prompt)) >= 2
            assert not [w for w in TRAINING_WORD.findall(prompt) if f"\n{w}" not in prompt and f" {w} of" not in prompt]


def test_no_training_depth_is_an_evaluation_depth():
    assert not [depth for depth in EVALUATION_DEPTHS if in_training_depths(depth)]


# ---- the split -----------------------------------------------------------------------------------------------------


def shown(document):
    """Returns the keys of the documents whose lines an episode shows."""
    return {f"{int(n)}.txt" for n in re.findall(r"@(\d{4})", document.text)}


def test_no_episode_that_is_trained_on_shows_held_out_text(monkeypatch):
    monkeypatch.setattr(retrieval, "StdlibSource", lambda config: Numbered())
    monkeypatch.setattr("arcforge_core.data.sources.text.StdlibSource", lambda config: Numbered())
    config = MixtureDataConfig(
        sources={"needles": RetrievalDataConfig(episodes=400, max_characters=1500), "code": StdlibDataConfig()}
    )
    documents = list(MixtureSource(config).documents())
    split = scan(documents, heldout=0.3)
    held = {d.key for d in documents if d.source == "code" and split.is_heldout(d)}
    assert 5 < len(held) < 40
    sides = {True: 0, False: 0}
    for document in documents:
        if document.source == "needles":
            keys = {f"code/{key}" for key in shown(document)}
            assert keys and keys <= set(document.text_of)
            sides[split.is_heldout(document)] += 1
            if not split.is_heldout(document):
                assert not keys & held
    assert min(sides.values()) > 40


def test_alone_it_is_split_by_its_texts():
    documents = episodes()
    split = scan(documents, heldout=0.3)
    sides = {True: set(), False: set()}
    for document in documents:
        sides[split.is_heldout(document)].add(document.text_of)
    assert all(sides.values()) and not sides[True] & sides[False]


def test_the_fingerprint_follows_options_texts_and_mixture():
    config = RetrievalDataConfig()
    base = RetrievalSource(config, Numbered())
    in_mixture = RetrievalSource(config, Numbered())
    in_mixture.text_prefix = "code/"
    options = ({"episodes": 9}, {"seed": 1}, {"max_characters": 1001}, {"min_pairs": 3})
    others = [RetrievalSource(RetrievalDataConfig(**o), Numbered()) for o in options]
    prints = [s.fingerprint() for s in (base, in_mixture, RetrievalSource(config, Numbered(61)), *others)]
    assert len(set(prints)) == len(prints)
    assert base.fingerprint() == RetrievalSource(config, Numbered()).fingerprint()


@pytest.mark.nightly(reason="tokenises the standard library")
def test_a_mixture_with_the_library_trains(tmp_path):
    config = MixtureDataConfig(
        sources={"code": StdlibDataConfig(functions=0.0), "needles": RetrievalDataConfig(episodes=300)},
        weights={"code": 1.0, "needles": 3.0},
        cache_dir=str(tmp_path),
    )
    config.tokenizer.train_bytes = 500_000
    corpus = build_data(config, model_vocab_size=512, progress=False)
    assert set(corpus.manifest["splits"]["train"]) == {"code", "needles"}
    batch = next(iter(corpus.train_batches(512, 2048, seed=0)))
    assert batch.tokens_T.shape == (2048,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 0}, "data.episodes=0"),
        ({"min_pairs": 0}, "data.min_pairs=0"),
        ({"min_pairs": 9, "max_pairs": 8, "min_characters": 900}, "data.max_pairs=8: must be at least 9"),
        ({"min_characters": 300}, "data.min_characters=300: must be at least 400"),
        ({"max_characters": 400}, "data.max_characters=400: must be at least 500"),
        ({"seed": -1}, "data.seed=-1"),
    ],
)
def test_options_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        RetrievalDataConfig(**settings)


def test_too_little_text_is_refused():
    with pytest.raises(DataError, match=r"data\.max_characters=9000: the corpus has only 160 characters"):
        episodes(Numbered(1, 10), max_characters=9000)
