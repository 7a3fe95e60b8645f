#!/usr/bin/env python3
"""Checks Tapehead on the GPU of this machine, in under four minutes.

Usage: ./check [--out FILE] [--minutes M] [--python PYTHON]

Needs an NVIDIA GPU of compute capability 8.0 or more, its driver, and the CUDA 13 libraries (libcudart,
libcublas, libcublasLt), at CUDA_HOME, /usr/local/cuda, or where the loader finds them; PyTorch in PYTHON, for
the comparison with it. In this order: the tests of ops and models on the device; training steps beside the
CPU's, operation by operation; planned memory beside what was counted; the head's speed beside that of its
three products alone, and beside PyTorch's; a step of GPT-2 124M, recorded as a CUDA graph and not, and
PyTorch's. Each part has a time of its own. What does not end in it is said to be missing, and costs the
others nothing. Everything that was measured goes to FILE as JSON, a table of it is printed last. The exit
status is 0 if all that can be wrong is right, 1 if something is wrong, 2 if there is nothing to check on.

Example: ./check --out h200.json --python ~/venv/bin/python
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = ("8192,2304,256000", "4096,4096,128256", "4096,768,50257")
CHUNK_ROWS = ("256", "512", "1024", "2048", "4096")
STEPS = {
    "gpt2, adamw": "--n-layer 2 --n-embd 128 --n-head 4 --context 64",
    "llama, muon": "--preset smollm-135m --n-layer 2 --vocab-size 8192 --context 64 --batch-size 8 "
                   "--optimizer muon",
}
PLAN_SHAPES = (("4096,768,50257", "bf16"), ("1000,256,8192", "f32"))
BENCH_SCALAR = 64  # bytes: the loss's own gradient, which `bench head` counts and the plan does not
STEP_PLAN_ERROR = 0.15  # of a training step's peak: models/memory_plan.h
GPT2 = ("--preset", "gpt2-124m", "--dtype", "bf16")  # 4 x 1024 tokens
STEP_KINDS = {"step of GPT-2 124M bf16": (), "step of GPT-2 124M bf16, recorded": ("--capture",)}
SIZES = ("n_layer", "n_head", "n_embd", "vocab_size", "context", "batch_size", "parameters")
MOST_NAMED = 10  # tests that failed, or were skipped; the others are in the results


class Missing(Exception):
    """A command that gave no result, and why; `output` is what it had printed by then."""

    def __init__(self, why, output=""):
        super().__init__(why)
        self.output = output


def text_of(output):
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


class Machine:
    """The unpacked program, what it needs, and how long the part that runs may take."""

    def __init__(self, folder, seconds, python):
        self.folder, self.python = pathlib.Path(folder), python
        self.end = time.monotonic() + seconds
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        libraries = [str(self.folder / "lib"), home + "/lib64", os.environ.get("LD_LIBRARY_PATH", "")]
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "TAPEHEAD_TEST_DEVICE": "cuda",
            "TEST_TMPDIR": str(self.folder),
        }

    def seconds_left(self):
        return self.end - time.monotonic()

    def run(self, command, environment):
        """Standard output of `command`. Raises Missing where it fails or takes too long."""
        seconds = self.seconds_left()
        if seconds <= 1:
            raise Missing("out of time")
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=seconds,
                                  cwd=self.folder, env=environment)
        except subprocess.TimeoutExpired as late:
            raise Missing(f"not done after {seconds:.0f} s", text_of(late.stdout))
        except OSError as error:
            raise Missing(str(error))
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
            raise Missing(said.splitlines()[-1], done.stdout)
        return done.stdout

    def program(self, *arguments):
        return self.run([self.folder / "program", *arguments], self.environment)

    def json(self, *arguments):
        return json.loads(self.program(*arguments, "--device", "cuda", "--json").splitlines()[-1])

    def pytorch(self, *arguments):
        """(what pytorch_ways.py printed, a list of objects; why there is no more of it, or None)."""
        command = [self.python, self.folder / "pytorch_ways.py", *arguments, "--device", "cuda"]
        trouble = None
        try:
            output = self.run(command, dict(os.environ))  # without our libraries: PyTorch brings its own
        except Missing as error:
            output, trouble = error.output, str(error)
        return [json.loads(line) for line in output.splitlines() if line.endswith("}")], trouble


# ---- The parts. Each gives rows of the table, (what, figure, whether it is right or None where nothing can
# be wrong), and details; it is shown the results of the parts before it.


def json_or_row(machine, rows, what, *arguments):
    """What the program prints as JSON; where it gives nothing, None, and a row that says why."""
    try:
        return machine.json(*arguments)
    except Missing as error:
        rows.append((what, f"no result: {error}", False))
        return None


class Tests:
    """What became of the cases, read from GoogleTest's lines."""

    LINE = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] (\w[^\s,]*\.[^\s,]*)", re.MULTILINE)
    REASON = re.compile(r": Skipped\n(.+)\n+\[ +SKIPPED +\] (\w[^\s,]*\.[^\s,]*)")
    FOUND = re.compile(r"^\[=+\] Running (\d+) test", re.MULTILINE)

    def __init__(self):
        self.results, self.reasons, self.found = {}, {}, 0

    def read(self, output):
        """Returns the first case that went wrong: that failed, or did not end. None if all are right."""
        found = self.FOUND.search(output)
        self.found = max(self.found, int(found[1]) if found else 0)
        run = {case: result for result, case in self.LINE.findall(output)}
        self.results.update(run)
        self.reasons.update((case, reason) for reason, case in self.REASON.findall(output))
        return next((case for case, result in run.items() if result in ("RUN", "FAILED")), None)

    def of(self, *results):
        return [case for case, result in self.results.items() if result in results]


def check_tests(machine, _):
    """A kernel that fails takes all later cases of its process along: they run again in another one."""
    tests, wrong, trouble = Tests(), [], None
    while machine.seconds_left() > 1:
        settled = tests.of("OK", "SKIPPED") + wrong
        try:
            output = machine.program("test", "--gtest_filter=-" + ":".join(settled))
        except Missing as error:
            output, trouble = error.output, str(error)
        first = tests.read(output)
        if first is None:
            break
        wrong.append(first)
    passed, failed, skipped = tests.of("OK"), tests.of("RUN", "FAILED"), tests.of("SKIPPED")
    missing = tests.found - len(tests.results)
    figure = f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped"
    if missing or not passed:
        figure += f", {missing or 'all'} missing: {trouble}"
    rows = [("tests of ops and models", figure, bool(passed) and not failed and not missing)]
    rows += [(f"  {case}", "is wrong", False) for case in failed[:MOST_NAMED]]
    reasons = {case: tests.reasons.get(case, "without a reason") for case in skipped}
    rows += [(f"  {case}", f"is skipped: {reasons[case]}", None) for case in skipped[:MOST_NAMED]]
    return rows, {"passed": len(passed), "failed": failed, "skipped": reasons, "missing": missing}


def check_agreement(machine, _):
    rows, details = [], {}
    for step, options in STEPS.items():
        for dtype in ("f32", "bf16"):
            what = f"one step beside the CPU's, {step}, {dtype}"
            found = json_or_row(machine, rows, what, "compare-backends", *options.split(), "--dtype", dtype)
            if found:
                worst = found["worst"][0]
                share = worst["error"] / worst["tolerance"]
                rows.append((what, f"agrees; {worst['op']} has the most of its tolerance, {share:.2f}", True))
            details[f"{step}, {dtype}"] = found
    return rows, details


def check_plans(machine, _):
    rows, details = [], {}

    def compare(what, planned, peak, most):
        rows.append((what, f"{peak} bytes, planned {planned}", abs(peak - planned) <= most))
        details[what] = {"planned": planned, "peak": peak}

    for shape, dtype in PLAN_SHAPES:
        what = f"memory of the head, {shape} {dtype}"
        N, F, C = shape.split(",")
        plan = json_or_row(machine, rows, what, "plan", "--dtype", dtype, "--rows", N, "--features", F,
                           "--classes", C)
        head = json_or_row(machine, rows, what, "bench", "head", "--dtype", dtype, "--shape", shape,
                           "--repeats", "1")
        if plan and head:
            planned = max(plan["forward_peak_bytes"], plan["backward_peak_bytes"])
            compare(what, planned, head["peak_bytes"], BENCH_SCALAR)
    for kind, options in STEP_KINDS.items():
        what = f"memory of a {kind}"
        step = json_or_row(machine, rows, what, "bench", "train", *GPT2, *options, "--repeats", "1")
        if step:
            compare(what, step["planned_bytes"], step["peak_bytes"], STEP_PLAN_ERROR * step["peak_bytes"])
    return rows, details


def measure_heads(machine, _):
    rows, details = [], {}
    for shape in SHAPES:
        what = f"head {shape} bf16"
        head = json_or_row(machine, rows, what, "bench", "head", "--shape", shape, "--dtype", "bf16")
        if head:
            share = f"its products alone / it: {head['roofline_share']:.2f}"
            rows.append((what, f"{1e3 * head['total_seconds']:.2f} ms; {share}", None))
        details[shape] = head
    what, times = f"head {SHAPES[-1]} by rows a chunk", {}
    for chunk in CHUNK_ROWS:
        head = json_or_row(machine, rows, what, "bench", "head", "--shape", SHAPES[-1], "--dtype", "bf16",
                           "--batch-chunk-size", chunk)
        if head:
            times[chunk] = head["total_seconds"]
    rows.append((what, ", ".join(f"{n}: {1e3 * t:.2f} ms" for n, t in times.items()), None))
    return rows, details | {"seconds_by_rows_a_chunk": times}


def figures(ways, figure):
    """figure(seconds) of each way that PyTorch took."""
    return ", ".join(f"{w['way']} {figure(w['seconds']) if w['seconds'] else 'no memory'}" for w in ways)


def measure_pytorch_heads(machine, before):
    ways, trouble = machine.pytorch("head", "bf16", *SHAPES)
    rows = []
    for shape in SHAPES:
        of_shape = [way for way in ways if way["sizes"] == shape]
        ours = before["heads"]["details"].get(shape)
        if not of_shape or not ours:
            rows.append((f"PyTorch's head {shape}", f"no comparison: {trouble or 'ours is missing'}", None))
            continue
        ratios = figures(of_shape, lambda seconds: f"{seconds / ours['total_seconds']:.2f}")
        rows.append((f"PyTorch's head {shape} / ours", ratios, None))
    return rows, {"ways": ways, "trouble": trouble}


def measure_steps(machine, _):
    rows, details = [], {}
    for what, options in STEP_KINDS.items():
        step = json_or_row(machine, rows, what, "bench", "train", *GPT2, *options)
        if step:
            rows.append((what, f"{step['tokens_per_second']:.0f} tokens/s", None))
            details[what] = step
    return rows, details


def measure_pytorch_steps(machine, before):
    ours = next(iter(before["steps"]["details"].values()))  # of either kind: the sizes are the same
    ways, trouble = machine.pytorch("train", "bf16", json.dumps({name: ours[name] for name in SIZES}))
    tokens = ours["batch_size"] * ours["context"]
    speeds = figures(ways, lambda seconds: f"{tokens / seconds:.0f} tokens/s")
    figure = ", then ".join(filter(None, (speeds, trouble)))
    return [("PyTorch's step of GPT-2 124M", figure, None)], {"ways": ways, "trouble": trouble}


# Each with its seconds of 3.8 minutes. What one leaves, the next may take, but none takes from the next.
# Nearly all of it goes by before anything is computed: two seconds for each start of the program, of which
# there are 22 (the driver, cuBLAS, the kernels), ten for each of PyTorch's, and its compiler, half a minute
# for GPT-2 each time. At 600 TFLOP/s the largest head takes 0.05 s, a step of GPT-2 124M 0.01 s. A test asks
# for thousands of kernels and waits for each result, at some 10 microseconds a time.
PARTS = {
    "tests": (check_tests, 60),
    "agreement": (check_agreement, 25),
    "plans": (check_plans, 25),
    "heads": (measure_heads, 25),
    "heads of PyTorch": (measure_pytorch_heads, 30),
    "steps": (measure_steps, 13),
    "steps of PyTorch": (measure_pytorch_steps, 50),
}


def run_parts(machine, parts, seconds):
    """(rows, details by part); a part that gives nothing is a row that is wrong."""
    rows, results = [], {}
    share = seconds / sum(part_seconds for _, part_seconds in parts.values())
    machine.end = time.monotonic()
    for name, (part, part_seconds) in parts.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        machine.end += share * part_seconds
        start = time.monotonic()
        try:
            found, details = part(machine, results)
        except (Missing, LookupError, TypeError, ValueError, StopIteration) as error:
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
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--out", default="gpu_check.json", metavar="FILE", help="where results go")
    parser.add_argument("--minutes", type=float, default=3.8, help="the most that it may take")
    parser.add_argument("--python", default="python3", help="with PyTorch")
    o = parser.parse_args()
    end = time.monotonic() + 60 * o.minutes
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(unpack(folder), 30, o.python)
        try:
            machine.json("bench", "head", "--shape", "8,8,8", "--repeats", "1")
        except Missing as error:
            why = f"{error}; --help says what is needed"
            print(f"gpu_check: nothing can be checked here: {why}", file=sys.stderr)
            return 2
        rows, results = run_parts(machine, PARTS, end - time.monotonic())
    pathlib.Path(o.out).write_text(json.dumps(results, indent=1) + "\n")
    print(table(rows))
    print(f"everything is in {o.out}")
    return 1 if any(right is False for _, _, right in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
