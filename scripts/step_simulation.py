"""An independent check of the predictions of `./train_gpt plan` for many GPUs: a simple simulation of a ZeRO-1 step, with
NCCL's published latencies, which was written without looking at `plan`. scripts/predict.py compares both in
doc/distributed/scaling.md, and changes this one's assumptions to those of `plan` one by one, to explain the differences.

A GPU computes at 45 % of its peak for all shapes, and collectives are rings. A step is forward, backward with a concurrent
reduction for each bucket, norm, update, and all-gathers that overlap with the next forward.
"""
import dataclasses
import math

GPUS_PER_SERVER = 8
SERVER, NETWORK = 350e9, 340e9  # bytes/s of a ring on H100s: NVLink, eight cards of 400 Gb/s
MEMORY, FLOPS = 2.85e12, 989e12 * 0.45
# NCCL 2.30, src/graph/tuning.cc: us of the protocols LL, LL128 and Simple.
BASE_RING, BASE_TREE = (6.6, 14.0, 8.4), (6.8, 14.0, 8.4)
NVLINK_RING, NVLINK_TREE = (0.6, 1.9, 3.4), (0.6, 1.25, 4.0)
NET_RING, NET_TREE = (2.7, 4.0, 14.0), (5.0, 8.5, 14.0)


@dataclasses.dataclass
class Assumed:
    slower: float = 0.15  # slowdown of kernels during a collective
    compute_s: float = 0  # time of a step without communication; 0: computed from FLOPS


@dataclasses.dataclass
class Model:
    layers: int
    channels: int
    vocab: int
    length: int

    def of_layer(self):
        return 12 * self.channels**2 + 13 * self.channels

    def of_embeddings(self):
        return (self.vocab + self.length) * self.channels


def ring(size, ranks):
    """Seconds of a reduce-scatter or an all-gather of `size` bytes, with the fastest protocol."""
    if ranks == 1:
        return 0.0
    servers = max(1, ranks // GPUS_PER_SERVER)
    between = servers - 1
    bandwidth = SERVER if servers == 1 else NETWORK
    times = []
    for protocol, (efficiency, most) in enumerate([(0.5, 141e9 if servers == 1 else 35e9), (0.92, 1e15), (1, 1e15)]):
        hop = NVLINK_RING[protocol]
        if servers > 1:
            hop = max(hop, 3.0 if protocol == 2 else 1.0)  # the network's overhead on the host
        latency = BASE_RING[protocol] + (ranks - 1 - between) * hop + between * NET_RING[protocol]
        times.append(latency * 1e-6 + size * (ranks - 1) / ranks / min(bandwidth * efficiency, most))
    return min(times)


def small_all_reduce(ranks):
    servers = max(1, ranks // GPUS_PER_SERVER)
    inside = min(ranks, GPUS_PER_SERVER) - 1
    trees = [b + 2 * (inside * h + math.log2(servers) * n) for b, h, n in zip(BASE_TREE, NVLINK_TREE, NET_TREE)]
    rings = [b + 2 * (ranks - 1) * h for b, h in zip(BASE_RING, NVLINK_RING)]
    return min(trees + rings) * 1e-6


def run(now, work, busy, slower):
    """The end of work that starts now and is slower during the busy intervals."""
    for begin, end in busy:
        if end <= now:
            continue
        if begin > now:
            alone = min(work, begin - now)
            now, work = now + alone, work - alone
        beside = min(work, (end - now) / (1 + slower))
        now, work = now + beside * (1 + slower), work - beside
        if work <= 0:
            return now
    return now + work


def step(model, ranks, sequences, bucket_elements, assumed, with_wire=True):
    """Seconds of a step of one micro-batch per rank."""
    tokens = sequences * model.length
    layer = (24 * model.channels**2 + 2 * model.length * model.channels) * tokens / FLOPS
    head = 2 * model.vocab * model.channels * tokens / FLOPS
    if assumed.compute_s:
        factor = assumed.compute_s / (3 * (model.layers * layer + head))
        layer, head = layer * factor, head * factor

    per_bucket, buckets, top = max(1, int(bucket_elements // model.of_layer())), [], model.layers
    while top > 0:
        low = max(0, top - per_bucket)
        buckets.append((low, (top - low) * model.of_layer()))
        top = low
    buckets.append((-1, model.of_embeddings()))
    reduced = [ring(4 * n, ranks) if with_wire else 0 for _, n in buckets]
    gathered = [ring(2 * n, ranks) if with_wire else 0 for _, n in buckets]
    updated = sum(n for _, n in buckets) / ranks

    ends = [0.0] * len(buckets)  # of the last step's all-gathers, after its end
    whole = 0.0
    for _ in range(4):  # until the times are steady
        busy = [(0.0, max(ends))]
        gate = {low: end for (low, _), end in zip(buckets, ends)}
        now = gate[-1]
        for l in range(model.layers):
            now = run(max(now, gate.get(l, 0)), layer, busy, assumed.slower)
        now = run(run(now, head, busy, assumed.slower), 2 * head, busy, assumed.slower)
        free, done = max(ends), 0
        for l in range(model.layers - 1, -2, -1):
            if l >= 0:
                now = run(now, 2 * layer, busy, assumed.slower)
            while done < len(buckets) and buckets[done][0] >= l:
                begin = max(now, free)
                free = begin + reduced[done]
                busy.append((begin, free))
                done += 1
        now = max(now, free)
        if not assumed.compute_s:  # `plan`'s value includes norm and update
            now += updated * 4 / MEMORY + 5e-6
        now += small_all_reduce(ranks) if with_wire else 0
        free, gathers = now, [0.0] * len(buckets)
        for b in reversed(range(len(buckets))):
            if not assumed.compute_s:
                now += buckets[b][1] / ranks * 18 / MEMORY + 3e-6
            free = max(now, free) + gathered[b]
            gathers[b] = free
        whole = now
        ends = [max(0.0, end - whole) for end in gathers]
    return whole


def efficiency(model, ranks, sequences, bucket_elements, assumed):
    """(parallel efficiency, seconds per step). Efficiency: time of a step without communication over its real time."""
    whole = step(model, ranks, sequences, bucket_elements, assumed)
    return step(model, ranks, sequences, bucket_elements, assumed, with_wire=False) / whole, whole
