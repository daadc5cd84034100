import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.configs import EVALUATION_DEPTHS, LONG_CONTEXT_TASKS
from arcforge_core.data.sources.needles import in_training_depths
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.long_context.plans import ASKED, PLANS, TEMPLATES
from arcforge_core.eval.long_context.tasks import TASKS_WITH_DEPTH, Example, ExampleMaker, score

DOCUMENTS = [
    "\n".join(f"Line {n} of text {d} says {d * n + 7} Things, again" for n in range(60)) + "\n" for d in range(12)
]


class Characters:
    """A token is a character."""

    def encode(self, text):
        return text


class Pieces:
    """A token is a word of at most four letters, a digit, or a sign with the space before it."""

    def encode(self, text):
        return re.findall(r" ?[A-Za-z]{1,4}|\d|\s|[^\w\s]", text)


TOKENIZERS = {"characters": Characters(), "pieces": Pieces()}
LEAST = {"characters": 900, "pieces": 400}


@pytest.fixture(params=TOKENIZERS)
def named(request):
    return request.param, ExampleMaker(DOCUMENTS, TOKENIZERS[request.param])


@pytest.mark.parametrize("task", LONG_CONTEXT_TASKS)
def test_the_length_is_used_and_not_exceeded(named, task):
    name, maker = named
    for length in (LEAST[name], LEAST[name] + 1, 3 * LEAST[name], 20_000):
        example = maker.make(task, length, seed=1)
        used = 1 + example.prompt_tokens + example.max_new_tokens
        assert example.prompt_tokens == len(TOKENIZERS[name].encode(example.prompt))
        assert length - 24 <= used <= length
        assert example.length == length
        answers = f" {', '.join(example.answers)}"
        assert example.max_new_tokens >= len(TOKENIZERS[name].encode(answers))


@given(
    task=st.sampled_from(LONG_CONTEXT_TASKS),
    length=st.integers(900, 4000),
    depth=st.none() | st.sampled_from(EVALUATION_DEPTHS),
    seed=st.integers(0, 5),
    index=st.integers(0, 50),
)
@settings(max_examples=60, deadline=None)
def test_examples_are_functions_of_their_arguments(task, length, depth, seed, index):
    depth = depth if task in TASKS_WITH_DEPTH else None
    one, two = (ExampleMaker(DOCUMENTS, Characters()) for _ in range(2))
    example = one.make(task, length, depth=depth, seed=seed, index=index)
    one.make(task, length, seed=seed, index=index + 1)
    assert example == two.make(task, length, depth=depth, seed=seed, index=index)
    for other in ({"seed": seed + 1, "index": index}, {"seed": seed, "index": index + 1}):
        assert example.prompt != two.make(task, length, depth=depth, **other).prompt
    assert score(example, f"well: {', '.join(example.answers)}.") == 1.0
    assert score(example, "nothing of it") == 0.0
    assert 1 + example.prompt_tokens + example.max_new_tokens <= length


@pytest.mark.parametrize("depth", EVALUATION_DEPTHS)
@pytest.mark.parametrize("task", ["single", "multi_key"])
def test_the_needle_that_is_asked_for_is_at_its_depth(task, depth):
    for index in range(5):
        example = ExampleMaker(DOCUMENTS, Characters()).make(task, 3000, depth=depth, index=index)
        key = re.search(r"the code of (\w+)\?", example.prompt)[1]
        needles = re.findall(r"The code of (\w+) is (\d{4})\.\n", example.prompt)
        assert dict(needles)[key] == example.answers[0] and example.depth == depth
        assert len(dict(needles)) == len(needles) == (1 if task == "single" else 5)
        context = example.prompt[: example.prompt.rindex("\nQuestion")]
        before = context[: context.index(f"The code of {key} is")]
        without = [re.sub(r"\n?The code of \w+ is \d+\.\n", "", part) for part in (before, context)]
        actual = len(without[0]) / len(without[1])
        assert actual == pytest.approx(depth, abs=0.02)
        assert not in_training_depths(actual)


@pytest.mark.parametrize("task", ["multi_value", "multi_query"])
def test_all_of_several_needles_are_asked_for(task):
    example = ExampleMaker(DOCUMENTS, Characters()).make(task, 2000)
    found = re.findall(r"The code of (\w+) is (\d{4})\.\n", example.prompt)
    assert {value for _, value in found} == set(example.answers) and len(example.answers) == ASKED
    asked = re.search(r"the codes of (.+)\?", example.prompt)[1].split(", ")
    if task == "multi_query":
        assert [dict(found)[key] for key in asked] == list(example.answers)
    else:
        assert asked == [found[0][0]] * 1 and len({key for key, _ in found}) == 1


def test_variables_are_tracked_through_their_chain():
    for index in range(10):
        example = ExampleMaker(DOCUMENTS, Characters()).make("variable_tracking", 2000, index=index)
        value_of = {}
        for name, value in re.findall(r"Let (\w+) be (\w+)\.", example.prompt):  # in order, or a KeyError
            value_of[name] = value if value.isdigit() else value_of[value]
        asked = re.search(r"have the value (\d+)\?", example.prompt)[1]
        assert {name for name, value in value_of.items() if value == asked} == set(example.answers)
        assert len(value_of) > len(example.answers) == ASKED


@pytest.mark.parametrize("task", ["common_words", "frequent_words"])
@pytest.mark.parametrize("length", [700, 750, 1500, 6000, 60_000])
def test_the_words_asked_for_are_the_most_common(task, length):
    example = ExampleMaker(DOCUMENTS, Characters()).make(task, length)
    words = re.match(r"Words: (.+)", example.prompt)[1].split()
    counts = sorted(((words.count(word), word) for word in set(words)), reverse=True)
    assert {word for _, word in counts[:ASKED]} == set(example.answers)
    assert counts[ASKED - 1][0] > counts[ASKED][0]


def test_the_text_with_the_quotation_is_asked_for():
    for depth, index in ((0.0, 0), (0.5, 1), (1.0, 2)):
        example = ExampleMaker(DOCUMENTS, Characters()).make("qa", 4000, depth=depth, index=index)
        context, question = example.prompt.rsplit("\nQuestion", 1)
        quote = re.search(r'which text has "(.+?)"', question)[1]
        texts = re.split(r"(?:^|\n)Text (\w+):\n", context)[1:]
        passages = dict(zip(texts[::2], texts[1::2], strict=True))
        assert [title for title, text in passages.items() if quote in text] == list(example.answers)
        assert list(passages).index(example.answers[0]) == round(depth * (len(passages) - 1))
        assert len(passages) > 10


def test_keys_are_no_words_of_the_documents():
    """Otherwise a text with the key in it would be a second needle of a kind."""
    first = ExampleMaker(DOCUMENTS, Characters()).make("single", 900)
    key = re.search(r"the code of (\w+)\?", first.prompt)[1]
    second = ExampleMaker([*DOCUMENTS, f"about {key}\n"], Characters()).make("single", 900)
    assert key not in second.prompt


def test_short_documents_are_used_again():
    example = ExampleMaker(["One short line.\n"], Characters()).make("single", 1000)
    assert example.prompt.count("One short line.") > 20


@pytest.mark.parametrize("task", LONG_CONTEXT_TASKS)
def test_too_short_a_length_names_the_least(named, task):
    _, maker = named
    with pytest.raises(ConfigError, match=rf"length=20: the task {task} needs at least \d+ tokens") as caught:
        maker.make(task, 20)
    least = int(re.search(r"at least (\d+)", str(caught.value))[1])
    assert 20 < least < 900


def test_the_least_length_that_is_named_is_enough():
    maker = ExampleMaker(DOCUMENTS, Characters())
    with pytest.raises(ConfigError) as caught:
        maker.make("common_words", 20)  # its answers have one length, whatever the example
    least = int(re.search(r"at least (\d+)", str(caught.value))[1])
    assert maker.make("common_words", least).length == least
    with pytest.raises(ConfigError):
        maker.make("common_words", least - 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "singel"}, "tasks='singel'.*did you mean 'single'"),
        ({"task": "single", "depth": 1.5}, "depth=1.5"),
        ({"task": "multi_value", "depth": 0.5}, "depth=0.5.*single, multi_key, qa"),
    ],
)
def test_what_cannot_be_made_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ExampleMaker(DOCUMENTS, Characters()).make(**{"length": 1000, **settings})


def test_no_text_is_refused():
    with pytest.raises(DataError, match="no text"):
        ExampleMaker([" \n", ""], Characters()).make("single", 1000)
    with pytest.raises(DataError, match="at least two documents"):
        ExampleMaker(DOCUMENTS[:1], Characters()).make("qa", 1000)
    with pytest.raises(DataError, match="only once"):
        ExampleMaker(["a b c\n", "a b c\n"], Characters()).make("qa", 1000)


def test_score_is_the_share_of_the_answers():
    example = Example("multi_value", "", ("12", "Tavo", "56"), 9, None, 4, 1)
    assert score(example, "TAVO and 12") == pytest.approx(2 / 3)
    assert score(example, "") == 0.0
    assert score(dataclasses.replace(example, answers=("56",)), "it is 56") == 1.0


def test_templates_are_short():
    for template in TEMPLATES:
        assert len(re.sub(r"\{\w+\}", "", template)) <= 90


def test_every_task_of_the_options_has_a_plan():
    assert tuple(PLANS) == LONG_CONTEXT_TASKS
