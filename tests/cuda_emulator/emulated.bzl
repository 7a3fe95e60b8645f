"""The CUDA backend compiled as plain C++ for the emulated device, and tests that run on it beside the CPU."""

load("//tools/build:rules.bzl", "tapehead_library", "tapehead_test")

# --config=cuda links the real backend into every program, and the emulated one cannot stand beside it.
WITHOUT_CUDA = select({
    "//backends:with_cuda": ["@platforms//:incompatible"],
    "//conditions:default": [],
})

def emulated_backend(name, kernels, deps, **kwargs):
    """A library of the .cu files of //backends/cuda, unchanged but for names that make them C++ to Bazel."""
    sources = []
    for kernel in kernels:
        native.genrule(
            name = name + "_" + kernel,
            testonly = True,
            srcs = ["//backends/cuda:%s.cu" % kernel],
            outs = ["%s/%s.cc" % (name, kernel)],
            cmd = "cp $< $@",
        )
        sources.append("%s/%s.cc" % (name, kernel))
    tapehead_library(
        name = name,
        testonly = True,
        srcs = sources,
        copts = [
            "-O1",  # compiling takes longer than running
            "-Wno-unknown-pragmas",  # #pragma unroll is nvcc's
        ],
        deps = deps,
        alwayslink = True,
        **kwargs
    )

def tapehead_test_on_devices(name, srcs, deps, tags = [], env = {}, **kwargs):
    """The test `name` on the CPU, and `name`_cuda_emulated, the same objects on the emulated device."""
    tapehead_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs,
        deps = deps + ["@gtest"],
        alwayslink = True,
    )
    tapehead_test(
        name = name,
        deps = [":%s_cases" % name],
        env = env,
        tags = tags,
        **kwargs
    )
    kwargs["size"] = "medium"
    tapehead_test(
        name = name + "_cuda_emulated",
        deps = [
            ":%s_cases" % name,
            "//tests/cuda_emulator:backend",
        ],
        env = dict(env, TAPEHEAD_TEST_DEVICE = "cuda", TAPEHEAD_TEST_EMULATED = "1"),
        tags = tags + ["cuda_emulated"],
        target_compatible_with = WITHOUT_CUDA,
        **kwargs
    )
