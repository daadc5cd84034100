import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcforge_core.config.schema import TokenizerConfig
from arcforge_core.configs import ConversationsDataConfig, MixtureDataConfig
from arcforge_core.data.conversations.source import ConversationsSource
from arcforge_core.data.sources.text import MixtureSource
from arcforge_core.data.tokens.pipeline import Corpus, build_data
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.testing.small_models import small_tokenizer

VOCABULARY = 4096
SIDES = ("train", "heldout")


def pair(question: str, answer: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    # without a task the file's path would decide which records are held out, and pytest's folders have numbers
    return {"messages": messages, "task": question, **fields}


def write(path: Path, records: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return str(path)


def sums(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [pair(f"{n}+{n}", f"it is {2 * n}", task=f"{n}", source="sums") for n in range(start, start + count)]


def config(folder: Path, **settings: Any) -> ConversationsDataConfig:
    small_tokenizer().save(folder / "tokenizer")
    defaults: dict[str, Any] = {"heldout": 0.2, "cache_dir": str(folder / "cache")}
    tokenizer = TokenizerConfig(path=str(folder / "tokenizer"))
    return ConversationsDataConfig(tokenizer=tokenizer, **{**defaults, **settings})


def build(settings: ConversationsDataConfig) -> Corpus:
    return build_data(settings, model_vocab_size=VOCABULARY, progress=False)


def test_every_record_is_kept_or_listed_with_its_line_and_reason(tmp_path: Path) -> None:
    """None is silently dropped: read = kept + listed, by rule."""
    checker = {"name": "number", "arguments": {"answer": "5"}}
    bad = [
        "not json",
        {"messages": []},
        pair("a", "<tool_call>"),
        pair("b", "```"),
        pair("c", "so, " * 300),
        pair("3+2", "it is 4", checker=checker),
        pair("2+3", "it is 5", checker={"name": "unheard_of"}),
        pair("long", "x " * 2000, thinking="off"),
        pair("0+0", "it is 0"),
    ]
    path = write(tmp_path / "a.jsonl", [*sums(20), *bad])
    settings = config(tmp_path, reasoning=[path], max_tokens=400)
    corpus = build(settings)
    rejected = [json.loads(line) for line in (corpus.folder / "rejected.jsonl").read_text().splitlines()]
    by_line = {r["line"]: (r["rule"], r["reason"]) for r in rejected}
    assert {r["file"] for r in rejected} == {path} and {r["corpus"] for r in rejected} == {"reasoning"}
    rules = [
        "invalid",
        "invalid",
        "format",
        "truncation",
        "repetition",
        "answers",
        "invalid",
        "repetition",
        "duplicates",
    ]
    assert [by_line[line][0] for line in range(21, 30)] == rules
    assert "unheard_of" in by_line[27][1]
    figures = corpus.manifest["encoder"]
    kept = figures["corpora"]["reasoning"]["conversations"]
    assert figures["read"] == {"reasoning": 29}
    assert kept == 20 and kept + len(rejected) == 29
    assert {rule: sum(c.values()) for rule, c in figures["rejected"].items()} == Counter(rules)
    page = (corpus.folder / "statistics.html").read_text()
    assert "unheard_of" in page and "sums" in page and json.loads((corpus.folder / "statistics.json").read_text())


def test_lengths_are_judged_in_tokens_and_counted_too(tmp_path: Path) -> None:
    words = " ".join(f"w{n}" for n in range(200))
    path = write(tmp_path / "a.jsonl", [*sums(9), pair("long", words)])
    corpus = build(config(tmp_path, chat=[path], max_tokens=100))
    [rejected] = [json.loads(line) for line in (corpus.folder / "rejected.jsonl").read_text().splitlines()]
    assert (rejected["line"], rejected["rule"]) == (10, "length") and "data.max_tokens=100" in rejected["reason"]
    assert corpus.manifest["encoder"]["rejected"] == {"length": {"chat": 1}}
    assert corpus.manifest["encoder"]["longest"] <= 100


def test_the_first_bad_record_ends_the_work_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*sums(2), "{", {}])
    with pytest.raises(DataError, match=rf"{path}:3: not JSON.*on_invalid=fail"):
        build(config(tmp_path, chat=[path], on_invalid="fail"))
    repeated = write(tmp_path / "b.jsonl", [*sums(2), *sums(2)])  # filters are no errors
    build(config(tmp_path, chat=[repeated], on_invalid="fail", heldout=0.0))


def test_only_what_the_assistant_says_is_learnt_whatever_the_shards(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", sums(40))
    corpus = build(config(tmp_path, chat=[path], heldout=0.0))
    tokenizer = corpus.tokenizer
    batch = next(corpus.train_batches(64, 64 * 8, seed=0))
    for start, length in zip(batch.batch.cu_query.tolist(), batch.batch.query_lengths(), strict=False):
        place = slice(start, start + length)
        targets, weights = batch.targets_T[place], batch.weights_T[place].bool()
        text = tokenizer.decode(targets.tolist())
        assert tokenizer.decode(targets[weights].tolist()) == text.split("</think>")[1]
        assert batch.batch.positions_T[place].tolist() == list(range(length)), "positions restart"
    assert batch.num_bytes == sum(
        len(part.split("<|user|>")[0]) for part in tokenizer.decode(batch.targets_T.tolist()).split("</think>")[1:]
    )


def test_rows_hold_whole_conversations_and_are_the_same_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [pair(f"{n}", " ".join(map(str, range(n % 17))) + " end") for n in range(60)])
    corpus = build(config(tmp_path, chat=[path]))
    for batches in (corpus.train_batches(96, 96, seed=1), corpus.heldout_batches(96, 96)):
        seen = [next(batches) for _ in range(3)]
        for batch in seen:
            starts = batch.batch.cu_query[:-1]
            assert {corpus.tokenizer.decode([i]) for i in batch.tokens_T[starts].tolist()} == {"[gMASK]"}
            assert batch.batch.num_tokens <= 96
            ends = (batch.batch.cu_query[1:] - 1).tolist()
            assert {corpus.tokenizer.decode([i]) for i in batch.targets_T[ends].tolist()} == {"<|user|>"}
    one, two = (next(corpus.train_batches(96, 192, seed=1, start_cursor=5)) for _ in range(2))
    assert one.tokens_T.tolist() == two.tokens_T.tolist()
    whole = [b.tokens_T.tolist() for b in corpus.heldout_batches(96, 96)]
    assert whole == [b.tokens_T.tolist() for b in corpus.heldout_batches(96, 96)]
    counts = corpus.manifest["splits"]["heldout"]["chat"]
    assert sum(len(row) for row in whole) == counts["tokens"] - counts["documents"]


def test_a_row_shorter_than_a_conversation_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*sums(20), pair("q", " ".join(f"w{n}" for n in range(40)))])
    corpus = build(config(tmp_path, chat=[path], heldout=0.0))  # else the path decides whether the long one is
    longest = corpus.manifest["encoder"]["longest"]
    with pytest.raises(
        ConfigError, match=rf"trainer\.sequence_length={longest - 2}: .* must not be cut.*max_tokens={longest - 1}"
    ):
        corpus.train_batches(longest - 2, longest - 2, seed=0)
    corpus.train_batches(longest - 1, longest - 1, seed=0)


def test_weights_are_shares_of_the_tokens(tmp_path: Path) -> None:
    files = {name: [write(tmp_path / f"{name}.jsonl", sums(40, 100 * n))] for n, name in enumerate(("chat", "agent"))}
    corpus = build(config(tmp_path, **files, weights={"chat": 3.0}, heldout=0.0))
    tokens: Counter[str] = Counter()
    for batch, _ in zip(corpus.train_batches(64, 640, seed=0), range(60), strict=False):
        for start, end in itertools.pairwise(batch.batch.cu_query.tolist()):
            text = corpus.tokenizer.decode(batch.tokens_T[start:end].tolist())
            tokens["chat" if int(text.split("<|user|>")[1].split("+")[0]) < 100 else "agent"] += end - start
    assert tokens["chat"] / tokens["agent"] == pytest.approx(3.0, rel=0.1)
    plain = build(config(tmp_path, **files, heldout=0.0))
    assert ConversationsSource(config(tmp_path, **files)).weights is None
    assert plain.folder != corpus.folder


def test_what_is_about_one_task_is_on_one_side(tmp_path: Path) -> None:
    records = [
        pair(f"{way} {n}", f"it is {n}", task=f"t{n}") for n in range(60) for way in ("tell me", "say", "what is")
    ]
    corpus = build(config(tmp_path, chat=[write(tmp_path / "a.jsonl", records)]))
    held = Counter(document.text_of for document in corpus.heldout_documents())
    assert 3 < len(held) < 30 and set(held.values()) == {3}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"filters": ["format"]}, False),
        ({"mask_errors": False}, False),
        ({"max_tokens": 99}, False),
        ({"thinking": "preserved"}, False),
        ({"on_invalid": "fail"}, True),
    ],
)
def test_fingerprints_change_with_what_is_read_and_how(tmp_path: Path, change: dict[str, Any], same: bool) -> None:
    path = write(tmp_path / "a.jsonl", sums(3))
    one = ConversationsSource(config(tmp_path, chat=[path])).fingerprint()
    assert (ConversationsSource(config(tmp_path, chat=[path], **change)).fingerprint() == one) is same


def test_another_template_gives_other_shards(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", sums(9))
    settings = config(tmp_path, chat=[path])
    before = build(settings).folder
    template = tmp_path / "tokenizer" / "chat_template.jinja"
    template.write_text(template.read_text() + "{# another #}")
    assert build(settings).folder != before


def test_a_vocabulary_can_be_trained_on_what_is_said(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", [pair(f"hello {n}", f"goodbye {n} and farewell, {n % 7} of us " * 2) for n in range(50)]
    )
    settings = ConversationsDataConfig(chat=[path], cache_dir=str(tmp_path), heldout=0.1)
    corpus = build_data(settings, model_vocab_size=290, progress=False)
    assert len(corpus.tokenizer.encode("goodbye")) < 5
    assert len(corpus.tokenizer.encode('"role": "assistant"')) > 12, "the records' own words are no text"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"packing": "sequential"}, r"data\.packing"),
        ({"weights": {"agents": 1.0}}, r"data\.weights"),
        ({"weights": {"agent": 1.0}}, r"data\.weights\.agent"),
        ({"filters": ["formt"]}, r"data\.filters='formt'.*did you mean 'format'"),
        ({"format": "x"}, r"data\.format"),
        ({"thinking": "off"}, r"data\.thinking"),
        ({"on_invalid": "x"}, r"data\.on_invalid"),
        ({"too_long": "x"}, r"data\.too_long"),
        ({"max_repetition": 1.5}, r"data\.max_repetition"),
        ({"near_duplicates": 0.0}, r"data\.near_duplicates"),
        ({"max_tokens": 1}, r"data\.max_tokens"),
        ({"min_trained_tokens": 0}, r"data\.min_trained_tokens"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        ConversationsDataConfig(**settings)


def test_no_files_and_mixtures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"name files.*chat, reasoning, agent"):
        ConversationsSource(ConversationsDataConfig())
    path = write(tmp_path / "a.jsonl", sums(3))
    with pytest.raises(DataError, match=r"data\.sources\.talk='conversations'.*cannot be part of a mixture"):
        MixtureSource(MixtureDataConfig(sources={"talk": ConversationsDataConfig(chat=[path])}))


def test_packing_reaches_the_longest_context_of_the_paper(tmp_path: Path) -> None:
    """A conversation of nearly 202,752 tokens stays whole and shares its row with short ones."""
    digits = " ".join(map(str, np.random.default_rng(0).integers(0, 10, 101_000)))
    path = write(tmp_path / "a.jsonl", [pair("q", digits), *sums(99)])
    corpus = build(config(tmp_path, chat=[path], heldout=0.0, filters=["format"]))
    longest = corpus.manifest["encoder"]["longest"]
    assert 195_000 < longest <= 202_752
    batch = next(corpus.train_batches(202_752, 202_752, seed=0))
    lengths = batch.batch.query_lengths()
    assert max(lengths) == longest - 1 and len(lengths) > 10 and sum(lengths) <= 202_752


def test_near_duplicates_are_dropped_in_any_order_and_name_the_one_that_stays(tmp_path: Path) -> None:
    text = " ".join(f"word{n} comes before word{n + 1}." for n in range(60))
    records = [
        pair("a", text),
        pair("a", text.replace("word7 ", "word7b ")),
        pair("b", " ".join(text.split()[:120])),
        pair("c", " ".join(reversed(text.split()))),
    ]
    kept = []
    for name, listed in (("forward", records), ("backward", records[::-1])):
        path = write(tmp_path / name / "chat.jsonl", listed)
        source = ConversationsSource(config(tmp_path, chat=[path], filters=["near_duplicates"]))
        kept.append({document.text for document in source.documents()})
        source.encoder(small_tokenizer()).finish(tmp_path / name)
        (rejected,) = map(json.loads, (tmp_path / name / "rejected.jsonl").read_text().splitlines())
        assert rejected["rule"] == "near_duplicates"
        assert rejected["reason"].startswith("a near duplicate of chat/")
        assert rejected["reason"].endswith("% of their phrases are the same")
    assert len(kept[0]) == 3
    assert kept[0] == kept[1]


def test_near_copies_without_a_task_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    draw = random.Random(0)
    answers = [" ".join(f"w{draw.randrange(10**6)}" for _ in range(60)) for _ in range(60)]
    said = [pair("q", f"{answer} {'and more ' * (n // 60)}") for n, answer in enumerate(answers * 2)]
    system = {"role": "system", "content": "be brief and " * 30}
    records = [{"messages": [system, *record["messages"]]} for record in said]
    corpus = build(config(tmp_path, chat=[write(tmp_path / "chat.jsonl", records)], filters=[]))
    sides = [{answer for text in corpus.texts(side) for answer in answers if answer in text} for side in SIDES]
    assert all(sides) and not sides[0] & sides[1]
