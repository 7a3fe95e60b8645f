#!/usr/bin/env python3
"""Holds the emulator's headers against CUDA's own: every function that backends/cuda may call has the declared
type there, every enumerator its value, and the libraries link. Takes seconds, while --config=cuda compiles the
kernels for minutes. Skipped, with the reason, where there is no toolkit at CUDA_HOME or /usr/local/cuda.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HEADERS = pathlib.Path("tests/cuda_emulator/include")
FUNCTION = re.compile(r"^((?:const )?\w+\*?) (cu\w+)\(((?:[^()]|\n)*)\);", re.MULTILINE)
ENUMERATOR = re.compile(r"^\s*(cu\w+|CU\w+) = (-?\d+)", re.MULTILINE)
ONE_LINE_ENUM = re.compile(r"^enum \w+ \{(.*)\};", re.MULTILINE)
INITIALISER = re.compile(r"(\w+) = (-?\d+)")


def host_part(header):
    """What stands before the functions of kernels."""
    return header.split("// ---- What a kernel sees")[0]


def types_of(parameters):
    """A parameter list without its names and defaults."""
    types = []
    for parameter in filter(None, (" ".join(p.split()) for p in parameters.split(","))):
        types.append(re.sub(r"(?<=[\s*])\w+$", "", re.sub(r" = .*", "", parameter)))
    return types


def program_of(headers):
    """A program that does not compile, or not link, unless the toolkit has what `headers` declare."""
    lines, functions, values = ["#include <cublas_v2.h>", "#include <cuda_runtime.h>"], [], {}
    for text in headers:
        functions += FUNCTION.findall(text)
        values.update(ENUMERATOR.findall(text))
        for enumerators in ONE_LINE_ENUM.findall(text):
            values.update(INITIALISER.findall(enumerators))
    for name, value in values.items():
        lines.append(f'static_assert(static_cast<int>({name}) == {value}, "{name}");')
    lines += ["#include <cstdio>", "int main() {", "  const void* all[] = {"]
    for result, name, parameters in functions:
        pointer = f"{result} (*)({', '.join(types_of(parameters))})"
        lines.append(f"      reinterpret_cast<const void*>(static_cast<{pointer}>(&{name})),")
    lines += ["  };", "  int count = 0;", "  for (const void* one : all) count += one != nullptr;",
              '  std::printf("%d functions\\n", count);', "}"]
    return "\n".join(lines) + "\n", len(functions), len(values)


def main():
    home = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if not (home / "include/cuda_runtime.h").exists():
        print(f"skipped: there is no CUDA toolkit at {home}; CUDA_HOME says where one is")
        return 0
    headers = [host_part((HEADERS / name).read_text()) for name in ("cuda_runtime.h", "cublas_v2.h")]
    program, functions, values = program_of(headers)
    assert functions > 30 and values > 30, (functions, values)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = f"{folder}/toolkit.cc", f"{folder}/toolkit"
        pathlib.Path(source).write_text(program)
        libraries = [f"-L{home}/lib64", f"-Wl,-rpath,{home}/lib64", "-lcudart", "-lcublas", "-lcublasLt"]
        subprocess.run(["g++", "-std=c++20", "-isystem", home / "include", source, "-o", binary, *libraries],
                       check=True)
        output = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    assert output == f"{functions} functions\n", output
    print(f"{functions} functions and {values} values are CUDA's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
