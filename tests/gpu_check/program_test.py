#!/usr/bin/env python3
"""Of the program that is linked with CUDA, what needs no device: it has the tests of every folder, and says
what is missing.
"""
import os
import subprocess
import unittest


def run(*arguments):
    # Hazard: GoogleTest writes the cases that it lists where Bazel looks for this test's, and they count as passed.
    environment = {name: value for name, value in os.environ.items() if name != "XML_OUTPUT_FILE"}
    command = ["tests/gpu_check/program", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


class Program(unittest.TestCase):
    # Hazard: of two cases of one name, of different folders, check.py would count one.
    def test_has_the_tests_of_every_folder_once(self):
        done = run("test", "--gtest_list_tests")
        self.assertEqual(done.returncode, 0, done.stderr)
        cases = []
        for line in done.stdout.splitlines():
            word = line.split()[0]
            if line.startswith(" "):
                cases.append(suite + word)
            else:
                suite = word
        self.assertEqual(len(cases), len(set(cases)))
        for folder in ("CudaCrossEntropy.", "CapturedStepTest.", "Softmax."):
            self.assertTrue(any(case.startswith(folder) for case in cases), folder)

    def test_says_what_is_missing(self):
        done = run("bench", "head", "--shape", "8,8,8", "--repeats", "1", "--device", "cuda")
        if done.returncode == 0:
            self.skipTest("nothing is missing: there is a GPU")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\Aerror: SystemError: (there is no|the) CUDA (driver|device).*\n\Z")


if __name__ == "__main__":
    unittest.main()
