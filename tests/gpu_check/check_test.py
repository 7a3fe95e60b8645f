#!/usr/bin/env python3
"""Tests of check.py and of tools/gpu_check, with a program that only answers as ours would."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

CHECK = pathlib.Path("tests/gpu_check/check.py").resolve()


def load(path):
    loader = importlib.machinery.SourceFileLoader(pathlib.Path(path).name.replace(".", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
check, gpu_check = load(CHECK), load("tools/gpu_check")

# A file beside the program says what goes wrong.
PROGRAM = """#!/usr/bin/env python3
import json, os, signal, sys, time
words = sys.argv[1:]
wrong = os.path.exists
if wrong("no_gpu"):
    sys.exit("there is no CUDA driver: install NVIDIA's, or use --device cpu")
if words[0] == "test":
    left_out = words[1].partition("=-")[2].split(":")
    cases = [case for case in ("Op.Agrees", "Op.Faults/f32", "Op.Runs", "Op.Skips") if case not in left_out]
    print(f"[==========] Running {len(cases)} tests from 1 test suite.", flush=True)
    failed = False
    for case in cases:
        print(f"[ RUN      ] {case}", flush=True)
        if wrong("crash") and case == "Op.Faults/f32":
            os.kill(os.getpid(), signal.SIGSEGV)
        if wrong("hang") and case == "Op.Runs":
            time.sleep(60)
        failed |= wrong("fault") and case == "Op.Faults/f32"  # and all that come after it
        if case == "Op.Skips":
            print("op_test.cc:7: Skipped\\nthere is one device alone\\n")
        result = "  FAILED  " if failed else "  SKIPPED " if case == "Op.Skips" else "      OK "
        print(f"[{result}] {case} (3 ms)")
    if failed:
        print(f"[  FAILED  ] 3 tests, listed below:\\n[  FAILED  ] Op.Faults/f32, where GetParam() = 4-byte")
        sys.exit(1)
elif words[0] == "compare-backends":
    if "bf16" in words and wrong("disagrees"):
        sys.exit("[compare-backends] cuda does not agree with cpu, first in linear")
    print(json.dumps({"worst": [{"op": "linear", "error": 1e-3, "tolerance": 4e-3}]}))
elif words[0] == "plan":
    print(json.dumps({"forward_peak_bytes": 900, "backward_peak_bytes": 1000}))
elif words[1] == "head":
    if "256" in words and wrong("no_memory"):
        sys.exit("out of memory")
    print(json.dumps({"peak_bytes": 1004, "total_seconds": 0.01, "roofline_share": 0.8}))
else:
    captured = "--capture" in words
    print(json.dumps({"tokens_per_second": 2000 if captured else 1000, "batch_size": 2, "context": 50,
                      "n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 9, "parameters": 7,
                      "peak_bytes": 100, "planned_bytes": 90, "ops": []}))
"""

PYTORCH = """import json, os, sys, time
what, dtype, *sizes = sys.argv[1:-2]
if what == "train":
    assert "ops" not in json.loads(sizes[0])
for size in sizes:
    print(json.dumps({"sizes": size, "way": "eager", "seconds": 0.02}), flush=True)
    if os.path.exists("slow_compiler"):
        time.sleep(60)
    print(json.dumps({"sizes": size, "way": "compiled", "seconds": None}), flush=True)
"""


class Check(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, self.folder)

    def machine(self, *marks):
        """With the program, and empty files of these names, in this test's folder."""
        files = {"program": PROGRAM, "pytorch_ways.py": PYTORCH, **{mark: "" for mark in marks}}
        for name, text in files.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        return check.Machine(self.folder, 60, sys.executable)

    def run_check(self, *marks):
        """(exit status, output, errors) of the script, with such a machine packed beside it."""
        self.machine(*marks)
        files = list(self.folder.iterdir())
        with tarfile.open(self.folder / "payload.tar.xz", "w:xz") as payload:
            for file in files:
                payload.add(file, file.name)
        shutil.copy(CHECK, self.folder / "check")
        command = [sys.executable, self.folder / "check", "--out", self.folder / "out.json", "--python",
                   sys.executable]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_says_plainly_what_is_missing(self):
        status, output, errors = self.run_check("no_gpu")
        self.assertEqual((status, output), (2, ""))
        self.assertIn("nothing can be checked here: there is no CUDA driver: install NVIDIA's", errors)
        self.assertNotIn("Traceback", errors)

    def test_prints_a_table_and_keeps_everything(self):
        status, output, _ = self.run_check()
        self.assertEqual(status, 0)
        for line in (r"ok +tests of ops and models +3 passed, 0 failed, 1 skipped",
                     r" +Op.Skips +is skipped: there is one device alone",
                     r"ok +one step beside the CPU's, llama, muon, bf16 +agrees; linear has .*, 0.25",
                     r"ok +memory of the head, 4096,768,50257 bf16 +1004 bytes, planned 1000",
                     r"ok +memory of a step of GPT-2 124M bf16, recorded +100 bytes, planned 90",
                     r" +head 8192,2304,256000 bf16 +10.00 ms; its products alone / it: 0.80",
                     r" +head 4096,768,50257 by rows a chunk +256: 10.00 ms, 512: 10.00 ms",
                     r" +PyTorch's head 4096,4096,128256 / ours +eager 2.00, compiled no memory",
                     r" +step of GPT-2 124M bf16 +1000 tokens/s",
                     r" +step of GPT-2 124M bf16, recorded +2000 tokens/s",
                     r" +PyTorch's step of GPT-2 124M +eager 5000 tokens/s, compiled no memory\n"):
            self.assertRegex(output, line)
        self.assertEqual(list(json.loads((self.folder / "out.json").read_text())), list(check.PARTS))

    def test_tells_what_is_wrong(self):
        status, output, _ = self.run_check("disagrees", "no_memory")
        self.assertEqual(status, 1)
        self.assertRegex(output, r"ok +one step beside the CPU's, gpt2, adamw, f32")
        self.assertRegex(output, r"WRONG +one step beside the CPU's, gpt2, adamw, bf16 +no result: "
                                 r"\[compare-backends\] cuda does not agree")
        self.assertRegex(output, r"WRONG +head 4096,768,50257 by rows a chunk +no result: out of memory")
        self.assertRegex(output, r" +head 4096,768,50257 by rows a chunk +512: 10.00 ms, 1024: 10.00 ms")

    # Hazard: a kernel that faults takes along every later case of its process.
    def test_cases_behind_a_fault_run_in_another_process(self):
        for mark in ("fault", "crash"):
            status, output, _ = self.run_check(mark)
            self.assertEqual(status, 1)
            self.assertRegex(output, r"WRONG +tests of ops and models +2 passed, 1 failed, 1 skipped\n")
            self.assertRegex(output, r"WRONG +Op.Faults/f32 +is wrong")
            results = json.loads((self.folder / "out.json").read_text())
            self.assertEqual(results["tests"]["details"]["failed"], ["Op.Faults/f32"])

    def test_a_slow_part_costs_the_next_nothing(self):
        ours = {shape: {"total_seconds": 0.01} for shape in check.SHAPES}
        parts = {"tests": (check.check_tests, 3),
                 "heads": (lambda machine, _: ([], ours), 1),
                 "heads of PyTorch": (check.measure_pytorch_heads, 2),
                 "none left": (lambda machine, _: machine.program("test"), 0),
                 "steps": (check.measure_steps, 30)}
        with contextlib.redirect_stderr(io.StringIO()):
            rows, results = check.run_parts(self.machine("hang", "slow_compiler"), parts, 36)
        self.assertEqual(rows[0][0::2], ("tests of ops and models", False))
        self.assertIn("2 passed, 1 failed, 0 skipped, 1 missing: not done after", rows[0][1])
        self.assertEqual(results["tests"]["details"]["failed"], ["Op.Runs"])
        self.assertEqual(rows[2], ("PyTorch's head 8192,2304,256000 / ours", "eager 2.00", None))
        self.assertRegex(rows[3][1], "no comparison: not done after")
        self.assertEqual(rows[5], ("none left", "no result: out of time", False))
        self.assertEqual(rows[6], ("step of GPT-2 124M bf16", "1000 tokens/s", None))

    def test_a_peak_beside_the_plan_is_wrong(self):
        class Machine:
            def json(self, *_):
                return {"forward_peak_bytes": 5, "backward_peak_bytes": 1000, "planned_bytes": 1000,
                        "peak_bytes": 1200}

        rows, _ = check.check_plans(Machine(), {})
        self.assertEqual([right for _, _, right in rows], [False] * 4)


class Pack(unittest.TestCase):
    LDD = """	linux-vdso.so.1 (0x00007ffd)
	libcublas.so.13 => not found
	libcudart.so.13 => /usr/local/cuda/lib64/libcudart.so.13 (0x1)
	libfmt.so.9 => /usr/lib/x86_64-linux-gnu/libfmt.so.9 (0x1)
	libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x1)
	/lib64/ld-linux-x86-64.so.2 (0x1)
"""

    def test_libraries_of_the_machine_stay(self):
        fmt = pathlib.Path("/usr/lib/x86_64-linux-gnu/libfmt.so.9")
        self.assertEqual(gpu_check.libraries_of(self.LDD), [fmt])

    def test_a_missing_library_is_named(self):
        with self.assertRaises(SystemExit) as error, contextlib.redirect_stderr(io.StringIO()):
            gpu_check.libraries_of(self.LDD + "\tlibdnnl.so.2 => not found\n")
        self.assertIn("libdnnl.so.2", str(error.exception))


if __name__ == "__main__":
    unittest.main()
