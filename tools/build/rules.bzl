"""cc_library, cc_binary and cc_test as this project wants them: warnings are errors, headers are tapehead/<folder>/<file>."""

_COPTS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wnon-virtual-dtor",
    "-Werror",
    "-fopenmp",
    # Strict IEEE, and the same sums whether or not the compiler may contract a*b+c.
    "-ffp-contract=off",
]

def tapehead_library(name, copts = [], **kwargs):
    native.cc_library(
        name = name,
        copts = _COPTS + copts,
        include_prefix = "tapehead/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        **kwargs
    )

def tapehead_binary(name, copts = [], linkopts = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = _COPTS + copts,
        linkopts = linkopts + ["-fopenmp"],
        **kwargs
    )

def tapehead_test(name, deps, copts = [], linkopts = [], size = "small", **kwargs):
    native.cc_test(
        name = name,
        size = size,
        copts = _COPTS + copts,
        linkopts = linkopts + ["-fopenmp"],
        deps = deps + ["@gtest"],
        **kwargs
    )
