"""Restricts what a model may write: JSON of a schema, and one of a few words.

python examples/structured.py
"""

from __future__ import annotations

import json

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving import Engine, SamplingParams
from arcforge_serving.engine.grammar import Grammars

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main() -> tuple[dict[str, object], str]:
    """Returns an object that satisfies the schema, and a word."""
    folder = find_checkpoint("demo")
    tokenizer, model = Tokenizer.load(folder), load_pretrained(folder)
    engine, grammars = Engine(model), Grammars(tokenizer, model.config.vocab_size)

    def written(text: str, matcher: object) -> str:
        prompt = [tokenizer.bos_id, *tokenizer.encode(text)]
        params = SamplingParams(max_new_tokens=150, seed=1, matcher=matcher, stop_token_ids=(tokenizer.eos_id,))
        [output] = engine.generate([prompt], params)
        return tokenizer.decode([token for token in output.token_ids if token != tokenizer.eos_id])

    person = json.loads(written("person = ", grammars.json_schema(SCHEMA)))
    word = written("The answer is ", grammars.regex("yes|no|perhaps"))
    print(person, word)
    return person, word


if __name__ == "__main__":
    main()
