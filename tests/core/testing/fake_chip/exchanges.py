"""Run by test_exchange_faults.py: three processes, each with a chip, print what exchanges find with faults."""

import json
import multiprocessing
import sys
import tempfile
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from arcforge_core.testing.exchanges import Rank, judge
from arcforge_core.testing.fake_chip.device import install
from arcforge_core.testing.fake_chip.faults import injected

WORLD = 3


def work(rank, folder, asked):
    install("npu")
    store = dist.FileStore(f"{folder}/store", WORLD)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=limit)
    found, barrier = [], dist.barrier
    for number, (name, fault) in enumerate(asked):
        at_once = fault == "a barrier that does not wait"
        if at_once:
            dist.barrier = lambda: None
        with nullcontext() if at_once or fault is None else injected(fault):
            found.append(judge(name, Rank(rank, WORLD, "npu", store, seed=number), (torch.float32, torch.int64)))
        dist.barrier = barrier
        dist.barrier()
    Path(folder, str(rank)).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as shared:
        processes = [context.Process(target=work, args=(rank, shared, wanted)) for rank in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print(json.dumps([json.loads(Path(shared, str(rank)).read_text()) for rank in range(WORLD)]))
