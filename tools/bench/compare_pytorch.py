"""Writes docs/performance.md: the head's time beside PyTorch's, measured in turn in one run.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' numpy
    bazel build //tools:tapehead
    VENV/bin/python tools/bench/compare_pytorch.py [--shapes 4096,768,50257 2048,256,8192] [--dtypes f32 bf16]

Ours runs as `tapehead bench head` with its default options. PyTorch runs three ways: eager cross_entropy(linear), the same
compiled, and its own chunked linear_cross_entropy with default options. All get two threads unless --threads says otherwise.
Ratios of one run mean more than its seconds.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn import LinearCrossEntropyOptions

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPES = ("4096,768,50257", "2048,256,8192", "1024,2048,32000", "512,768,50257", "8192,128,50257", "2048,2304,256000")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def eager(x, w, t):
    return F.cross_entropy(F.linear(x, w), t)


def chunked(x, w, t):
    return F.linear_cross_entropy(x, w, t, options=LinearCrossEntropyOptions())


class PyTorch:
    """The ways in which PyTorch computes one head, each ready to be timed."""

    def __init__(self, shape, dtype):
        N, features, C = map(int, shape.split(","))
        self.x = torch.randn(N, features).to(dtype).requires_grad_()
        self.w = (torch.randn(C, features) * 0.02).to(dtype).requires_grad_()
        self.t = torch.randint(C, (N,))
        torch._dynamo.reset()
        self.ways = {"eager": eager, "compiled": torch.compile(eager), "chunked": chunked}
        for way in self.ways:
            self.seconds(way)  # warms up, and compiles

    def seconds(self, way):
        self.x.grad = self.w.grad = None
        start = time.perf_counter()
        self.ways[way](self.x, self.w, self.t).backward()
        return time.perf_counter() - start


def run_ours(program, shape, dtype, threads):
    command = [program, "bench", "head", "--shape", shape, "--dtype", dtype, "--repeats", "1", "--threads", threads, "--json"]
    return json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True).stdout)


def compare(program, shape, dtype, repeats, threads):
    pytorch = PyTorch(shape, DTYPES[dtype])
    times = {"ours": [], **{way: [] for way in pytorch.ways}}
    shares = []
    for _ in range(repeats):
        ours = run_ours(program, shape, dtype, threads)
        times["ours"].append(ours["total_seconds"])
        shares.append(ours["roofline_share"])
        for way in pytorch.ways:
            times[way].append(pytorch.seconds(way))
    return {way: statistics.median(values) for way, values in times.items()} | {
        "share": statistics.median(shares), "rows": ours["rows_per_chunk"], "peak": ours["peak_bytes"]}


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def report(results, threads, repeats):
    lines = [f"| N, F, C | T | ours | roofline share | memory | eager | compiled | chunked | best of PyTorch's / ours |",
             "|---|---|---|---|---|---|---|---|---|"]
    for (shape, dtype), r in results.items():
        best = min(r[way] for way in ("eager", "compiled", "chunked"))
        lines.append(f"| {shape.replace(',', ', ')} | {dtype} | {r['ours']:.3f} s | {r['share']:.2f} | {r['peak'] / 2**20:.0f} MiB | "
                     f"{r['eager']:.3f} s | {r['compiled']:.3f} s | {r['chunked']:.3f} s | {best / r['ours']:.2f} |")
    flags = Path("/proc/cpuinfo").read_text()
    arithmetic = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {name}" in flags]
    return f"""# How fast linear_cross_entropy is

Written by `tools/bench/compare_pytorch.py` on {processor()} with {', '.join(arithmetic)}; {threads} threads, medians of {repeats} runs, all
ways in turn. Forward and backward together, mean over random targets, gradients of input and weight; `tapehead bench head`
with its default options against PyTorch {torch.__version__.split('+')[0]}.

The roofline share is the time that the three matrix products alone would take, at the rate that the best library here reaches on a
large product in the same run (OpenBLAS; for bf16 oneDNN where the processor multiplies it faster), divided by the op's time. Memory is what the op allocates beside
its arguments, gradients included.

{chr(10).join(lines)}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "bazel-bin/tools/tapehead", help="the program to measure")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="N,F,C")
    parser.add_argument("--dtypes", nargs="+", default=("f32", "bf16"), choices=DTYPES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    results = {}
    for shape in o.shapes:
        for dtype in o.dtypes:
            results[shape, dtype] = compare(o.program, shape, dtype, o.repeats, o.threads)
            print(shape, dtype, results[shape, dtype], file=sys.stderr)
    path = ROOT / "docs/performance.md"
    path.write_text(report(results, o.threads, o.repeats))
    print(f"written to {path}")


main()
