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

PROGRAM = """#!/usr/bin/env python3
import json, os, sys, time
words = sys.argv[1:]
if os.path.exists("no_gpu"):
    sys.exit("there is no CUDA driver: install NVIDIA's, or use --device cpu")
if words[0] == "test":
    report = next(word.split(":", 1)[1] for word in words if word.startswith("--gtest_output"))
    case = {"name": "Agrees", "result": "COMPLETED"} | ({"failures": [{}]} if os.path.exists("wrong") else {})
    json.dump({"testsuites": [{"name": "Op", "testsuite": [case]}]}, open(report, "w"))
    sys.exit(os.path.exists("wrong"))
elif words[0] == "compare-backends":
    if "bf16" in words and os.path.exists("wrong"):
        sys.exit("[compare-backends] cuda does not agree with cpu, first in linear")
elif words[0] == "plan":
    print(json.dumps({"forward_peak_bytes": 900, "backward_peak_bytes": 1000}))
elif words[1] == "head":
    print(json.dumps({"peak_bytes": 1004, "total_seconds": 0.01, "roofline_share": 0.8}))
else:
    print(json.dumps({"tokens_per_second": 1000, "batch_size": 2, "context": 50}))
"""

PYTORCH = """import json
print(json.dumps({"eager": 0.02, "compiled": None}))
"""


class Check(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_check(self, *marks, options=()):
        """(exit status, output, errors) of the script, with files of these names beside the program."""
        shutil.copy(CHECK, self.folder / "check")
        with tarfile.open(self.folder / "payload.tar.xz", "w:xz") as payload:
            for name, text in {"program": PROGRAM, "pytorch_ways.py": PYTORCH, **{mark: "" for mark in marks}}.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(text), 0o755
                payload.addfile(entry, io.BytesIO(text.encode()))
        done = subprocess.run([sys.executable, self.folder / "check", "--out", self.folder / "out.json", "--python", sys.executable,
                               *options], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_says_plainly_that_there_is_no_gpu(self):
        status, output, errors = self.run_check("no_gpu")
        self.assertEqual((status, output), (2, ""))
        self.assertIn("there is no GPU to check on here: there is no CUDA driver: install NVIDIA's", errors)
        self.assertNotIn("Traceback", errors)

    def test_prints_a_table_and_keeps_everything(self):
        status, output, _ = self.run_check()
        self.assertEqual(status, 0)
        self.assertRegex(output, r"ok +tests of every op +1 passed, 0 failed, 0 skipped")
        self.assertRegex(output, r"ok +one step beside the CPU's, bf16 +agrees")
        self.assertRegex(output, r"ok +memory of the head, 4096,768,50257 bf16 +1004 bytes, planned 1000")
        self.assertRegex(output, r" +head 8192,2304,256000 bf16 +10.00 ms; its products alone / it: 0.80")
        self.assertRegex(output, r"PyTorch / ours +eager 2.00, compiled no memory")
        self.assertRegex(output, r"by rows a chunk +256: 10.00 ms, 512: 10.00 ms")
        self.assertRegex(output, r"step of GPT-2 124M bf16 +1000 tokens/s")
        self.assertRegex(output, r"PyTorch +eager 5000 tokens/s, compiled no memory")
        self.assertEqual(list(json.loads((self.folder / "out.json").read_text())), list(check.PARTS))

    def test_tells_what_is_wrong(self):
        status, output, _ = self.run_check("wrong")
        self.assertEqual(status, 1)
        self.assertRegex(output, r"WRONG +tests of every op +0 passed, 1 failed, 0 skipped")
        self.assertRegex(output, r"ok +one step beside the CPU's, f32")
        self.assertRegex(output, r"WRONG +one step beside the CPU's, bf16 +\[compare-backends\] cuda does not agree")
        details = json.loads((self.folder / "out.json").read_text())["tests"]["details"]
        self.assertEqual(details["failed"], ["Op.Agrees"])

    def test_what_takes_too_long_is_missing(self):
        machine = check.Machine(self.folder, 60, sys.executable)
        check.SHARES["plan"] = 1.5
        with self.assertRaisesRegex(check.Missing, "not done after"):
            machine.run(["sleep", "30"], "plan")
        machine.end = 0
        with self.assertRaisesRegex(check.Missing, "out of time"):
            machine.run(["true"], "plan")

    def test_a_peak_beside_the_plan_is_wrong(self):
        class Machine:
            def json(self, share, command, *rest):
                return {"forward_peak_bytes": 5, "backward_peak_bytes": 10, "peak_bytes": 10 + check.BENCH_SCALAR + 1}

        rows, _ = check.check_plan(Machine())
        self.assertEqual([right for _, _, right in rows], [False, False])


class Pack(unittest.TestCase):
    LDD = """	linux-vdso.so.1 (0x00007ffd)
	libcublas.so.13 => not found
	libcudart.so.13 => /usr/local/cuda/lib64/libcudart.so.13 (0x1)
	libfmt.so.9 => /usr/lib/x86_64-linux-gnu/libfmt.so.9 (0x1)
	libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x1)
	/lib64/ld-linux-x86-64.so.2 (0x1)
"""

    def test_libraries_of_the_machine_stay(self):
        self.assertEqual(gpu_check.libraries_of(self.LDD), [pathlib.Path("/usr/lib/x86_64-linux-gnu/libfmt.so.9")])

    def test_a_missing_library_is_named(self):
        with self.assertRaises(SystemExit) as error, contextlib.redirect_stderr(io.StringIO()):
            gpu_check.libraries_of(self.LDD + "\tlibdnnl.so.2 => not found\n")
        self.assertIn("libdnnl.so.2", str(error.exception))


if __name__ == "__main__":
    unittest.main()
