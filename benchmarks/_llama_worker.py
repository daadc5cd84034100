"""Runs in llama.cpp's own environment: reads jobs from standard input, a line of JSON each, and answers in such lines.

The first line is {"file", "threads", "tokens", "sequences"}: the model and the cache's size. Each further one is
{"prompts", "tokens"}: sequences that are read in one batch and then decoded together, greedily; the answer is
{"outputs", "seconds", "prompt_seconds"}.
"""

import json
import sys
import time

import llama_cpp
import numpy as np


class Model:
    """A context of llama.cpp, used through its C interface: the Python class decodes one sequence only."""

    def __init__(self, file, threads, tokens, sequences):
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise SystemExit(f"llama.cpp cannot load {file}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = tokens, max(tokens, 512), 512
        params.n_seq_max, params.n_threads, params.n_threads_batch = sequences, threads, threads
        self.context = llama_cpp.llama_init_from_model(model, params)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(tokens, 0, 1)

    def decode(self, rows):
        """Computes (token, position, sequence, whether logits are wanted) rows; returns the likeliest ids."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for n, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, position, 1, wanted
            batch.seq_id[n][0] = sequence
        if llama_cpp.llama_decode(self.context, batch):
            raise SystemExit(f"llama.cpp cannot decode {len(rows)} tokens")
        found = []
        for n, row in enumerate(rows):
            if row[3]:
                logits = llama_cpp.llama_get_logits_ith(self.context, n)
                found.append(int(np.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax()))
        return found

    def generate(self, prompts, tokens):
        """Returns N ids for each prompt, all seconds, and those of the prompts."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        start = time.perf_counter()
        rows = [(t, p, s, p == len(ids) - 1) for s, ids in enumerate(prompts) for p, t in enumerate(ids)]
        latest = self.decode(rows)
        read = time.perf_counter()
        outputs = [[token] for token in latest]
        for step in range(tokens - 1):
            latest = self.decode([(t, len(prompts[s]) + step, s, True) for s, t in enumerate(latest)])
            for ids, token in zip(outputs, latest, strict=True):
                ids.append(token)
        return outputs, time.perf_counter() - start, read - start


def main():
    """Answers until the input ends."""
    model = Model(**json.loads(sys.stdin.readline()))
    print("{}", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        outputs, seconds, prompt_seconds = model.generate(job["prompts"], job["tokens"])
        print(json.dumps({"outputs": outputs, "seconds": seconds, "prompt_seconds": prompt_seconds}), flush=True)


if __name__ == "__main__":
    main()
