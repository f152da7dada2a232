#!/usr/bin/env python3
"""All-reduces of PyTorch's Gloo between two ranks, in the columns of `train_gpt bench-comm`.

    GLOO_SOCKET_IFNAME=eth0 python3 dev/gloo_all_reduce.py RANK HOST [MIB]     on both hosts; rank 0's is HOST

Powers of four of KB up to MIB (64). dev/two_hosts.sh --gloo PYTHON runs it on its two hosts.
"""

import sys
import time

import torch
import torch.distributed as dist

rank, host, most = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 64
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://{host}:29511", rank=rank, world_size=2)
if rank == 0:
    print(f"Gloo of PyTorch {torch.__version__}\n\n| collective | KB | us | algorithm GB/s | bus GB/s |\n|---|---:|---:|---:|---:|")
kib = 1
while kib <= most * 1024:
    data = torch.ones(kib * 256)
    repeats = max(3, min(200, 32 * 1024 // kib))
    for _ in range(3):
        dist.all_reduce(data)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(data)
    seconds = (time.perf_counter() - begin) / repeats
    rate = kib * 1024 / seconds / 1e9  # of two ranks both are the same
    if rank == 0:
        print(f"| all-reduce | {kib} | {seconds * 1e6:.1f} | {rate:.3f} | {rate:.3f} |", flush=True)
    kib *= 4
dist.destroy_process_group()
