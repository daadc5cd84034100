"""An option that nobody uses is a constant: every field is named in a recipe, preset, page, benchmark or example.

The generated page of all options does not count. Fields that a paper or an API names may exist without a use.
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import get_type_hints

from arcforge_core.config.docs import roots
from arcforge_core.config.renamed import RENAMED, renamed
from arcforge_core.plugins.loader import registry

ROOT = Path(__file__).parents[2]
PLACES = (
    "conf/**/*.yaml", "packages/*/src/*/conf/**/*.yaml", "docs/**/*.md", "README.md", "packages/*/README.md",
    "benchmarks/**/*.py", "examples/**/*.*", "scripts/**/*.py",
)  # fmt: skip
GENERATED = ROOT / "docs/config.md"
NAMED = re.compile(r"(?<![\w-])\w+(?=[=:`.]| =|`)|(?<=[`.{,])[a-z]\w+")
"""A word as an option is written: ``field=``, ``field:``, ``section.field`` or in backticks; flags come besides."""

EXEMPT = {
    "transformers, rope_parameters": (
        "attention_factor beta_fast beta_slow high_freq_factor low_freq_factor mscale mscale_all_dim "
        "original_max_position_embeddings"
    ),
    "mlflow.set_tracking_uri": "tracking_uri",
    "docker run": "image",
    "Adam, 1412.6980": "beta1 beta2",
    "Muon, torch.optim.Muon": "nesterov",
    "DeepSeek-V3.2, equation 1 and the loss of the indexer": "index_relu indexer_loss_weight",
    "DeepSeek-V3.2, unbiased KL estimate": "unbiased_kl",
    "DAPO, 2503.14476: clip-higher and overlong reward shaping": "clip_high clip_low overlong_buffer overlong_tokens",
    "PPO, 1707.06347, and GAE, 1506.02438": "discount gae_lambda value_clip value_weight",
}
"""Paper or API -> the fields that it names."""


def sections(schema):
    """Yields a schema and the sections inside it."""
    yield schema
    for hint in get_type_hints(schema).values():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from sections(hint)


def owned_fields():
    """Returns field -> the classes that add it."""
    schemas = [*roots().values(), *(component.load_schema() for component in registry())]
    found = {}
    for schema in {section for root in schemas for section in sections(root)}:
        for field in dataclasses.fields(schema):
            owner = [cls for cls in schema.__mro__ if field.name in inspect.get_annotations(cls)][-1]
            found.setdefault(field.name, set()).add(owner.__name__)
    return found


def words(text):
    """Returns the words of a text that are written as options are."""
    flags = {flag.replace("-", "_") for flag in re.findall(r"(?<=--)[a-z][a-z-]+", text)}
    return set(NAMED.findall(text)) | flags


def used():
    """Returns the words of all recipes, presets, pages, benchmarks and examples."""
    files = {file for place in PLACES for file in ROOT.glob(place) if file.is_file() and file.suffix != ".pyc"}
    files -= {GENERATED}
    assert len(files) > 100
    return set().union(*(words(file.read_text(encoding="utf-8")) for file in files))


def test_every_option_is_used_or_named_by_a_paper_or_an_api():
    exempt = {name for names in EXEMPT.values() for name in names.split()}
    words_used = used()
    unused = {name: sorted(owners) for name, owners in owned_fields().items() if name not in words_used}
    assert {name: owners for name, owners in unused.items() if name not in exempt} == {}
    assert exempt <= unused.keys(), "used by now, or no option any more: not an exception"


def test_options_are_found_as_they_are_written():
    text = "`trainer.threads=2` and `max_gap`, data.heldout=0.1\nlr: 1e-3\n--max-shard-size 2GB, the patience of who"
    assert {"max_shard_size", "trainer", "threads", "max_gap", "heldout", "lr"} <= words(text)
    assert not {"patience", "who", "the"} & words(text)


def test_a_removed_option_is_no_option_and_says_what_to_write():
    known = owned_fields()
    for option in RENAMED:
        assert renamed(option) and renamed(f"base.{option}") and option.count(".") == 1
        section, name = option.split(".")
        assert not {owner for owner in known.get(name, ()) if section in owner.lower()}, option
    assert renamed("rollout.groups") is None and renamed("engine_noise") is None
