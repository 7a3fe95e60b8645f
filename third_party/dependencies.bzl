"""What building Tapehead takes besides itself: all of it is on this machine, and Bazel downloads nothing.

A missing library is reported by the name of its Debian package, and tools/setup installs it.
"""

load("//third_party:cuda.bzl", "cuda_toolkit")
load("//third_party:system_library.bzl", "system_file", "system_library")

def tapehead_dependencies(tapehead = "."):
    """For a WORKSPACE: ours, or that of a program that links the library.

    Args:
      tapehead: where the checkout is.
    """

    # Bazel 4 asks for these five by name and would fetch them; folders of our own and Debian's stand in.
    for name, path in {
        "bazel_skylib": "/usr/share/bazel/tools/skylib",
        "platforms": "/usr/share/bazel/tools/platforms",
        "remote_coverage_tools": tapehead + "/third_party/remote_coverage_tools",
        "rules_cc": tapehead + "/third_party/rules_cc",
        "rules_java": "/usr/share/bazel/rules/java",
    }.items():
        native.local_repository(name = name, path = path)

    system_library(
        name = "openblas",
        # The OpenMP build stands in a folder of its own; linked statically, because the alternatives system
        # would otherwise be free to choose the pthread build at run time.
        archives = ["/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.a"],
        debian_package = "libopenblas-openmp-dev",
        header = "cblas.h",
        include_dir = "/usr/include/x86_64-linux-gnu/openblas-openmp",
        linkopts = [
            "-l:libgfortran.so.5",
            "-fopenmp",
            "-lm",
            "-lpthread",
        ],
    )

    system_library(
        name = "onednn",
        debian_package = "libdnnl-dev",
        header = "dnnl.hpp",
        linkopts = ["-ldnnl"],
    )

    system_library(
        name = "highway",
        debian_package = "libhwy-dev",
        header = "hwy/highway.h",
        linkopts = [
            "-lhwy",
            "-lhwy_contrib",
        ],
    )

    system_library(
        name = "spdlog",
        debian_package = "libspdlog-dev",
        defines = [
            "SPDLOG_COMPILED_LIB",
            "SPDLOG_FMT_EXTERNAL",
            "SPDLOG_SHARED_LIB",
        ],
        header = "spdlog/spdlog.h",
        linkopts = [
            "-lspdlog",
            "-lfmt",
        ],
    )

    system_library(
        name = "fmt",
        debian_package = "libfmt-dev",
        header = "fmt/format.h",
        linkopts = ["-lfmt"],
    )

    system_library(
        name = "cli11",
        debian_package = "libcli11-dev",
        header = "CLI/CLI.hpp",
    )

    system_library(
        name = "json",
        debian_package = "nlohmann-json3-dev",
        header = "nlohmann/json.hpp",
    )

    system_library(
        name = "pcre2",
        debian_package = "libpcre2-dev",
        header = "pcre2.h",
        linkopts = ["-lpcre2-8"],
    )

    system_library(
        name = "utf8proc",
        debian_package = "libutf8proc-dev",
        header = "utf8proc.h",
        linkopts = ["-lutf8proc"],
    )

    system_library(
        name = "xxhash",
        debian_package = "libxxhash-dev",
        header = "xxhash.h",
        linkopts = ["-lxxhash"],
    )

    system_library(
        # libgmock-dev brings libgtest-dev along; tests use its matchers.
        name = "gtest",
        debian_package = "libgmock-dev",
        header = "gmock/gmock.h",
        linkopts = [
            "-lgmock",
            "-lgtest",
            "-lgtest_main",
            "-lpthread",
        ],
    )

    system_library(
        name = "benchmark",
        debian_package = "libbenchmark-dev",
        header = "benchmark/benchmark.h",
        linkopts = [
            "-lbenchmark",
            "-lpthread",
        ],
    )

    system_file(
        # Embedded in the page of `tapehead report`.
        name = "dygraphs",
        debian_package = "libjs-dygraphs",
        path = "/usr/share/javascript/dygraphs/dygraph.min.js",
    )

    # May be missing: only --config=cuda needs it.
    cuda_toolkit(name = "cuda")
