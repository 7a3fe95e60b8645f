"""NVIDIA's CUDA toolkit, found through CUDA_HOME.

A machine without it builds everything but --config=cuda, which stops with one line that says what is missing.
"""

_BUILD = """package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda",
    linkopts = {linkopts},
)
"""

_LIBRARIES = ["-lcudart", "-lcublas", "-lcublasLt"]

def _cuda_toolkit_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = ctx.path(home + "/bin/nvcc").exists
    folder = home + "/lib64"
    ctx.file("BUILD", _BUILD.format(
        linkopts = ["-L" + folder, "-Wl,-rpath," + folder] + _LIBRARIES if found else [],
    ))
    ctx.file("toolkit.bzl", 'CUDA_HOME = "{}"\nFOUND = {}\n'.format(home, found))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
