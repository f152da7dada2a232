"""Rules for compiled kernels, for check_kernels.py: their instructions, from nvdisasm, and blocks per SM, from registers.

The rules hold for every kernel except those listed here, each with its reason.
"""

import math
import re
import subprocess
import tempfile

# Every kernel but these loads and stores tensors 16 bytes at a time: regular expressions and reasons.
LOADS_LITTLE = {
    r"add_mean_loss|decide_step|muon_(scales|lifts)": "a few numbers",
    r"update_amax": "a number of each tensor, a tensor a thread",
    r"document_starts|sort_\w+": "tokens and counts, one a thread",
    r"add_partials|residual_mix_sums|scatter_joins": "a column a thread: a warp reads them side by side",
    r"attention_remember|value_embedding_inputs": "a token's few numbers",
    r"transpose_kernel<\w+, 1>": "the form for odd sizes",
    r"random_kernel|flush_kernel": "what measurements begin with",
}
STORES_LITTLE = LOADS_LITTLE | {
    r"absmax|attention_stats|column_sums|cross_entropy_kernel<\w+, false|muon_\w+_squares|muon_row_products|squares": "sums",
    r"value_embedding_gates|weight_hash": "sums",
    r"largest_kernel": "one number",
    r"embedding_positions|scatter_runs": "sums of many rows, in float",
    r"attention_decode|attention_fp32": "a lane has every 32nd element of a head",
    r"transpose": "a column of the tile in shared memory is not together there",
    r"rotary_\w+_kernel<bf16, 4": "the form for heads whose halves are no multiple of 8",
}
TENSOR_CORES = [r"flash_", r"symmetric_matmul"]
# Those of them that use wgmma.
WARPGROUPS = [r"flash_\w+_hopper_kernel"]

FUNCTION = re.compile(r"^\.text\.(\w+):", re.MULTILINE)
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d\s+)?([A-Z][\w.]*)", re.MULTILINE)


def instructions(nvdisasm, cubin):
    """{mangled name of a kernel: its instructions, in order}"""
    command = [nvdisasm, "-c", str(cubin)]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = FUNCTION.split(code)
    return {name: INSTRUCTION.findall(body) for name, body in zip(parts[1::2], parts[2::2])}


def is_one_of(kernel, names):
    return any(re.match(name, kernel) for name in names)


def warpgroup_faults(code):
    """Between the first WARPGROUP.ARRIVE and the wait for the last wgmma there must be no other wait: the compiler inserts waits if it
    cannot prove that no instruction accesses their registers. It also ignores a setmaxnreg that does not fit."""
    found = [f"has no {name}" for name in ("HGMMA", "UTMALDG", "USETMAXREG") if not any(c.startswith(name) for c in code)]
    marks = [each.split(".")[0] + "." + each.split(".")[1] for each in code if re.match(r"HGMMA\.|WARPGROUP\.", each)]
    runs = "".join({"WARPGROUP.ARRIVE": "A", "WARPGROUP.DEPBAR": "W"}.get(mark, "p") for mark in marks)
    if not re.fullmatch(r"((Ap+)+W+)+", runs):
        found.append(f"serializes products: {runs} (arrive, products, waits)")
    return found


def faults(kernel, code):
    """Forbidden instructions of a kernel, and required ones that it lacks."""
    found = []
    local = sorted({each.split(".")[0] for each in code if re.match(r"(LDL|STL)\b", each)})
    if local:
        found.append(f"uses local memory ({', '.join(local)})")
    by_tma = any(each.startswith("UTMALDG") for each in code)
    if not by_tma and not is_one_of(kernel, LOADS_LITTLE) and not any(re.match(r"(LDG|LDGSTS)\..*\b128\b", each) for each in code):
        found.append("loads nothing 128 bits at a time")
    if not is_one_of(kernel, STORES_LITTLE) and not any(re.match(r"STG\..*\b128\b", each) for each in code):
        found.append("stores nothing 128 bits at a time")
    if is_one_of(kernel, WARPGROUPS):
        return found + warpgroup_faults(code)
    tensor = any(re.match(r"HMMA\.", each) for each in code) and any(re.match(r"LDSM\.", each) for each in code)
    if tensor != is_one_of(kernel, TENSOR_CORES):
        found.append("is without HMMA and LDSM" if not tensor else "has HMMA: add it to TENSOR_CORES")
    return found


# The blocks per SM that a launcher, or __launch_bounds__, assumes, with their threads and bytes of dynamic shared memory.
# In C++, because it uses the constants of the headers.
ASSUMED = r"""
#include <cstdio>
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/attention/attention_decode.cuh"
#include "llmc/cuda/cross_entropy.cuh"
#include "llmc/cuda/attention/flash_attention_backward.cuh"
#include "llmc/cuda/attention/flash_attention_forward.cuh"
#include "llmc/cuda/global_norm.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/quantize.cuh"
#include "llmc/cuda/rmsnorm.cuh"
#include "llmc/cuda/symmetric_matmul.cuh"
#include "llmc/cuda/weight_average.cuh"
#include "llmc/cuda/weight_hash.cuh"
void row(const char* kernel, long threads, size_t shared_bytes, long blocks) {
    std::printf("%s\t%ld\t%zu\t%ld\n", kernel, threads, shared_bytes, blocks);
}
template <int HS>
void flash() {
    const std::string hs = std::to_string(HS);
    row(("flash_forward_kernel<" + hs + ", ").c_str(), kFlashThreads, FlashForward<HS>::kSharedBytes, 2);
    row(("flash_backward_keys_kernel<" + hs + ", ").c_str(), kFlashThreads, FlashBackward<HS>::kKeysSharedBytes, 2);
    row(("flash_backward_queries_kernel<" + hs + ", ").c_str(), kFlashThreads, FlashBackward<HS>::kQueriesSharedBytes,
        2);
}
int main() {
    row("adamw_kernel", kAdamWThreads, 0, kAdamWBlocksPerSm);
    row("absmax_kernel", kAbsmaxThreads, 0, kAbsmaxBlocksPerSm);
    row("squares_kernel", kNormThreads, 0, kNormBlocksPerSm);
    row("average_weights_kernel", kAverageThreads, 0, kAverageBlocksPerSm);
    row("weight_hash_kernel", kHashThreads, 0, kHashBlocksPerSm);
    row("cross_entropy_kernel", kEntropyThreads, 0, 2);
    row("attention_decode_kernel", kDecodeThreads, 0, 2);
    row("symmetric_matmul_kernel", kFlashThreads, kSymmetricSharedBytes, 2);
    for (const long threads : {96, 224, 512}) {  // of 768, 1600 and more channels
        row("layernorm_backward_kernel", threads, 0, kNormMaxThreads / threads);
        row("rmsnorm_backward_kernel<bf16", threads, 0, kRmsThreadsPerSm<bf16> / threads);
        row("rmsnorm_backward_kernel<float", threads, 0, kRmsThreadsPerSm<float> / threads);
    }
    flash<64>();
    flash<128>();
}
"""

# The limits of an SM: chip in registers.txt, threads, blocks, KiB of shared memory, and KiB for one block. All have 65,536
# registers. The kernels for sm_120 are compiled on the card, from the PTX of sm_100: its registers stand for theirs.
SMS = {
    "80": ("80", 2048, 32, 164, 163),
    "86": ("80", 1536, 16, 100, 99),
    "89": ("80", 1536, 24, 100, 99),
    "90": ("90", 2048, 32, 228, 227),
    "120": ("100", 1536, 24, 100, 99),
}

# Kernels with room for fewer blocks than assumed, and why that is accepted.
FEWER = [
    (
        r"flash_\w+<128",
        ["80", "86", "89", "120"],
        "tiles of 99 KB: one head size for all chips, of which HS 64 is the common one",
    ),
    (r"flash_backward|symmetric_matmul", ["86", "89", "120"], "tiles of 65 KB, best on an H100"),
    (r"rmsnorm_backward_kernel<float, 1, 4", ["120"], "the sixth block is another wave, in fp32"),
    (r"absmax", ["86", "89", "120"], "1536 threads are three blocks: the fourth is another wave of a short kernel"),
]


def assumed_launches(compiler, root):
    """[(beginning of a kernel's name, threads, dynamic shared bytes, blocks per SM)]"""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/assumed"
        # Only constants are needed; the functions that the headers call are not linked.
        flags = "-std=c++20 -O1 -w -fopenmp-simd -I. -Idev/emulator/include -DANVIL_EMULATED -ffunction-sections"
        linked = "-Wl,--gc-sections,--unresolved-symbols=ignore-all"
        command = [compiler, *flags.split(), linked, "-x", "c++", "-", "-o", program]
        subprocess.run(command, cwd=root, input=ASSUMED, text=True, check=True)
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    return [
        (name, int(threads), int(shared), int(blocks))
        for name, threads, shared, blocks in (line.split("\t") for line in lines)
    ]


def resident_blocks(chip, registers, static_bytes, threads, dynamic_bytes):
    """The number of blocks for which an SM has room, as in NVIDIA's occupancy calculator: a warp's registers are allocated in
    units of 256 from one of four partitions, and each block takes 1 KiB of shared memory more than it requests."""
    _, most_threads, most_blocks, sm_kib, block_kib = SMS[chip]
    warps = math.ceil(threads / 32)
    by_registers = 4 * (65536 // 4 // (math.ceil(registers * 32 / 256) * 256)) // warps
    shared = math.ceil((static_bytes + dynamic_bytes) / 128) * 128
    if shared > block_kib << 10:
        return 0
    return min(by_registers, most_blocks, most_threads // 32 // warps, (sm_kib << 10) // (shared + 1024))


def occupancy(launches, costs):
    """The lines of the table, and a line for each kernel with room for fewer blocks than its launcher assumes."""
    names = sorted({kernel for kernel, _ in costs})
    rows, problems = [], []
    for name, threads, dynamic_bytes, blocks in launches:
        kernels = [kernel for kernel in names if kernel.startswith(name)]
        if not kernels:
            problems.append(f"{name}: its launch is in dev/lint/kernel_code.py, and there is no such kernel")
        for kernel in kernels:
            if "_backward_kernel<" in kernel and kernel.startswith(("layernorm", "rmsnorm")):
                # Two packs per thread are used only for many channels, in large blocks.
                if ("2, 1>" in kernel) != (threads == 512):
                    continue
            room = {}
            for chip, (code, *_) in SMS.items():
                # A kernel that was not compiled is reported elsewhere.
                registers, static_bytes = costs.get((kernel, code), (255, 0))
                room[chip] = resident_blocks(chip, registers, static_bytes, threads, dynamic_bytes)
                known = any(re.match(pattern, kernel) and chip in chips for pattern, chips, _ in FEWER)
                if room[chip] < blocks and not (known and room[chip] > 0):
                    problems.append(
                        f"{kernel}, {threads} threads: an SM of sm_{chip} has room for {room[chip]} blocks, its launcher "
                        f"assumes {blocks}"
                    )
            rows.append((kernel, threads, dynamic_bytes, blocks, *room.values()))
    width = max(len(row[0]) for row in rows)
    head = (
        "kernel".ljust(width)
        + f"{'threads':>9}{'shared':>9}{'assumed':>9}"
        + "".join(f"{'sm_' + chip:>7}" for chip in SMS)
    )
    lines = [
        row[0].ljust(width) + "".join(f"{cell:9}" for cell in row[1:4]) + "".join(f"{cell:7}" for cell in row[4:])
        for row in rows
    ]
    return [head, *lines], problems
