#!/usr/bin/env python3
"""Checks Tapehead on the GPU of this machine, in under four minutes.

Usage: ./check [--out FILE] [--minutes M] [--python PYTHON]

Needs an NVIDIA GPU of compute capability 8.0 or more, its driver, and the CUDA 13 libraries (libcudart, libcublas, libcublasLt), at
CUDA_HOME, /usr/local/cuda, or where the loader finds them; PyTorch in PYTHON, for the comparison with it. In this order: the tests of
every op on the device; one training step beside the CPU's, operation by operation; the planned memory of the head beside what the
allocator counted; the head's speed beside that of its three products alone and beside PyTorch's; a step of GPT-2 124M likewise. What does
not end in time is said to be missing. Everything that was measured goes to FILE as JSON, a table of it is printed last. The exit status is
0 if all that can be wrong is right, 1 if something is wrong, 2 if there is nothing to check on.

Example: ./check --out h100.json --python ~/venv/bin/python
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = ("8192,2304,256000", "4096,4096,128256", "4096,768,50257")
CHUNK_ROWS = ("256", "512", "1024", "2048", "4096")
PLAN_SHAPES = (("4096,768,50257", "bf16"), ("1000,256,8192", "f32"))
BENCH_SCALAR = 64  # bytes: the loss's own gradient, which `bench head` counts and the plan does not
SHARES = {"tests": 80, "agreement": 35, "plan": 20, "ours": 25, "torch": 45}  # the most seconds that one command may take


class Missing(Exception):
    """A command that gave no result, and why."""


class Machine:
    """The unpacked program, what it needs, and the time that is left."""

    def __init__(self, folder, seconds, python):
        self.folder, self.python = pathlib.Path(folder), python
        self.end = time.monotonic() + seconds
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        libraries = [str(self.folder / "lib"), home + "/lib64", os.environ.get("LD_LIBRARY_PATH", "")]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries)), "TAPEHEAD_TEST_DEVICE": "cuda"}

    def run(self, command, share, environment=None):
        """Standard output of `command`. Raises Missing where it fails or takes too long."""
        seconds = min(SHARES[share], self.end - time.monotonic())
        if seconds <= 1:
            raise Missing("out of time")
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=seconds, cwd=self.folder,
                                  env=environment or self.environment)
        except subprocess.TimeoutExpired:
            raise Missing(f"not done after {seconds:.0f} s")
        except OSError as error:
            raise Missing(str(error))
        if done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
            raise Missing(lines[-1])
        return done.stdout

    def program(self, share, *arguments):
        return self.run([self.folder / "program", *arguments], share)

    def json(self, share, *arguments):
        return json.loads(self.program(share, *arguments, "--json").splitlines()[-1])

    def pytorch(self, *arguments):
        # Not with our libraries: PyTorch brings its own.
        output = self.run([self.python, self.folder / "pytorch_ways.py", *arguments, "--device", "cuda"], "torch", dict(os.environ))
        return json.loads(output.splitlines()[-1])


# ---- The parts: each gives rows of the table, (what, figure, whether it is right or None where nothing can be wrong), and details.


def count_tests(report):
    """(passed, failed cases, skipped) of GoogleTest's JSON."""
    passed, failed, skipped = 0, [], 0
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                failed.append(f"{suite['name']}.{case['name']}")
            elif case.get("result") == "SKIPPED":
                skipped += 1
            else:
                passed += 1
    return passed, failed, skipped


def check_tests(machine):
    report = machine.folder / "tests.json"
    report.unlink(missing_ok=True)
    trouble = None
    try:
        machine.program("tests", "test", f"--gtest_output=json:{report}", "--gtest_brief=1")
    except Missing as error:
        trouble = str(error)
    if not report.exists():  # it did not come to its end
        return [("tests of every op", trouble or "no report", False)], {"error": trouble}
    passed, failed, skipped = count_tests(json.loads(report.read_text()))
    figure = f"{passed} passed, {len(failed)} failed, {skipped} skipped"
    return [("tests of every op", figure, not failed and passed > 0)], {"passed": passed, "failed": failed, "skipped": skipped}


def check_agreement(machine):
    rows, details = [], []
    for dtype in ("f32", "bf16"):
        what = f"one step beside the CPU's, {dtype}"
        try:
            machine.program("agreement", "compare-backends", "--device", "cuda", "--n-layer", "2", "--n-embd", "128", "--n-head", "4",
                            "--context", "64", "--dtype", dtype)
            rows.append((what, "agrees", True))
        except Missing as error:
            rows.append((what, str(error), False))
        details.append({"dtype": dtype, "result": rows[-1][1]})
    return rows, details


def check_plan(machine):
    rows, details = [], []
    for shape, dtype in PLAN_SHAPES:
        N, F, C = shape.split(",")
        plan = machine.json("plan", "plan", "--device", "cuda", "--rows", N, "--features", F, "--classes", C, "--dtype", dtype)
        counted = machine.json("plan", "bench", "head", "--device", "cuda", "--shape", shape, "--dtype", dtype, "--repeats", "1")
        planned = max(plan["forward_peak_bytes"], plan["backward_peak_bytes"])
        peak = counted["peak_bytes"]
        rows.append((f"memory of the head, {shape} {dtype}", f"{peak} bytes, planned {planned}", abs(peak - planned) <= BENCH_SCALAR))
        details.append({"shape": shape, "dtype": dtype, "planned": planned, "peak": peak})
    return rows, details


def ratio(theirs, ours):
    return f"{theirs / ours:.2f}" if theirs else "no memory"


def measure_heads(machine):
    rows, details = [], []
    for shape in SHAPES:
        ours = machine.json("ours", "bench", "head", "--device", "cuda", "--shape", shape, "--dtype", "bf16")
        seconds, share = ours["total_seconds"], ours["roofline_share"]
        rows.append((f"head {shape} bf16", f"{1e3 * seconds:.2f} ms; its products alone / it: {share:.2f}", None))
        try:
            theirs = machine.pytorch("head", shape, "bf16")
            rows.append(("  PyTorch / ours", ", ".join(f"{way} {ratio(t, seconds)}" for way, t in theirs.items()), None))
        except Missing as error:
            theirs = {"error": str(error)}
            rows.append(("  PyTorch / ours", str(error), None))
        details.append({"shape": shape, "ours": ours, "pytorch": theirs})
    by_rows = {}
    for chunk in CHUNK_ROWS:
        by_rows[chunk] = machine.json("ours", "bench", "head", "--device", "cuda", "--shape", SHAPES[-1], "--dtype", "bf16",
                                      "--batch-chunk-size", chunk)["total_seconds"]
    rows.append((f"head {SHAPES[-1]} by rows a chunk", ", ".join(f"{n}: {1e3 * t:.2f} ms" for n, t in by_rows.items()), None))
    return rows, details + [{"seconds_by_rows_a_chunk": by_rows}]


def measure_training(machine):
    ours = machine.json("ours", "bench", "train", "--device", "cuda", "--preset", "gpt2-124m", "--dtype", "bf16")
    tokens = ours["batch_size"] * ours["context"]
    rows = [("step of GPT-2 124M bf16", f"{ours['tokens_per_second']:.0f} tokens/s", None)]
    try:
        theirs = machine.pytorch("train", json.dumps(ours), "bf16")
        rows.append(("  PyTorch", ", ".join(f"{way} {tokens / t:.0f} tokens/s" if t else f"{way} no memory" for way, t in theirs.items()), None))
    except Missing as error:
        theirs = {"error": str(error)}
        rows.append(("  PyTorch", str(error), None))
    return rows, {"ours": ours, "pytorch": theirs}


PARTS = {"tests": check_tests, "agreement": check_agreement, "plan": check_plan, "heads": measure_heads, "training": measure_training}


def run_parts(machine, parts):
    """(rows, details by part); a part that ends early is a row that is wrong."""
    rows, results = [], {}
    for name, part in parts.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        start = time.monotonic()
        try:
            found, details = part(machine)
        except (Missing, KeyError, ValueError) as error:
            found, details = [(name, f"no result: {error}", False)], {"error": str(error)}
        rows += found
        results[name] = {"rows": found, "details": details, "seconds": round(time.monotonic() - start, 1)}
    return rows, results


def table(rows):
    marks = {True: "ok", False: "WRONG", None: ""}
    width = max(len(what) for what, _, _ in rows)
    return "\n".join(f"{marks[right]:6}{what:<{width}}  {figure}" for what, figure, right in rows)


def unpack(folder):
    """Where the program and its libraries lie, in `folder`."""
    with tarfile.open(HERE / "payload.tar.xz") as payload:
        payload.extractall(folder)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="gpu_check.json", metavar="FILE", help="where results go")
    parser.add_argument("--minutes", type=float, default=3.8, help="the most that it may take")
    parser.add_argument("--python", default="python3", help="with PyTorch")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(unpack(folder), 60 * o.minutes, o.python)
        try:
            machine.program("ours", "bench", "head", "--device", "cuda", "--shape", "8,8,8", "--repeats", "1")
        except Missing as error:
            print(f"gpu_check: there is no GPU to check on here: {error}", file=sys.stderr)
            return 2
        rows, results = run_parts(machine, PARTS)
    pathlib.Path(o.out).write_text(json.dumps(results, indent=1) + "\n")
    print(table(rows))
    print(f"everything is in {o.out}")
    return 1 if any(right is False for _, _, right in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
