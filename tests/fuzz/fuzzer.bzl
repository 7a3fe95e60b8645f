"""A fuzzer and its seeds."""

load("//tools/build:rules.bzl", "tapehead_binary", "tapehead_library", "tapehead_test")

def tapehead_fuzzer(name, deps):
    """NAME_fuzzer.cc and seeds/NAME, linked twice: with libFuzzer, for tools/fuzz, and as a test of the seeds."""
    tapehead_library(
        name = name + "_input",
        testonly = True,
        srcs = [name + "_fuzzer.cc"],
        hdrs = ["fuzzer.h"],
        deps = deps,
        alwayslink = True,
    )
    tapehead_binary(
        name = name + "_fuzzer",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],  # Clang's alone
        deps = [":" + name + "_input"],
    )
    seeds = native.glob(["seeds/" + name + "/*"])
    tapehead_test(
        name = name + "_seeds_test",
        srcs = ["seeds_test.cc"],
        data = seeds,
        env = {
            "SEEDS": native.package_name() + "/seeds/" + name,
            "ASAN_OPTIONS": "allocator_may_return_null=1",  # a file may ask for more than there is
        },
        deps = [":" + name + "_input"],
    )
