"""cc_library, cc_binary and cc_test as this project wants them: warnings are errors, and headers are
tapehead/<folder>/<file>."""

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

# Programs and tests call what is fast; that they are compiled sooner is worth more than what a second pass
# over their own lines would bring.
_HURRIED = ["tests", "tools"]

# Which folders a folder may depend on; the others may depend on all. Together with visibility, and with
# //tests:rooms_test for what includes reach through others, this keeps the rooms apart.
ROOMS = {
    "core": ["core"],
    "backends": ["backends", "core"],
    "ops": ["backends", "core", "ops"],
    "models": ["core", "models", "ops"],
}

# The packages of those rooms. Each has a target `sources`: all its files, compiled here or not.
ROOM_PACKAGES = [
    "backends",
    "backends/cpu",
    "backends/cuda",
    "core",
    "models",
    "ops",
]

def _sources():
    if native.package_name() not in ROOM_PACKAGES:
        fail("//%s stands in a room, and ROOM_PACKAGES (tools/build/rules.bzl) does not name it" % native.package_name())
    if not native.existing_rule("sources"):
        native.filegroup(
            name = "sources",
            srcs = native.glob(["**/*.cc", "**/*.cu", "**/*.h"]),
            visibility = ["//tests:__pkg__"],
        )

def _check_rooms(name, deps):
    room = native.package_name().split("/")[0]
    for dep in deps:
        if room in ROOMS and dep.startswith("//"):
            other = dep[2:].split(":")[0].split("/")[0]
            if other not in ROOMS[room]:
                fail("//%s:%s may not depend on %s: %s knows only %s" %
                     (native.package_name(), name, dep, room, ", ".join(ROOMS[room])))

def _copts():
    return _COPTS + (["-O1"] if native.package_name().split("/")[0] in _HURRIED else [])

def tapehead_library(name, copts = [], deps = [], **kwargs):
    if native.package_name().split("/")[0] in ROOMS:
        _sources()
    if type(deps) == "list":  # not one that the configuration selects
        _check_rooms(name, deps)
    native.cc_library(
        name = name,
        deps = deps,
        copts = _copts() + copts,
        include_prefix = "tapehead/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        linkstatic = True,  # no shared twin
        **kwargs
    )

def tapehead_binary(name, copts = [], linkopts = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = _copts() + copts,
        linkopts = linkopts + ["-fopenmp"],
        **kwargs
    )

def tapehead_test(name, deps, copts = [], linkopts = [], size = "small", **kwargs):
    native.cc_test(
        name = name,
        size = size,
        copts = _copts() + copts,
        linkopts = linkopts + ["-fopenmp"],
        deps = deps + ["@gtest"],
        **kwargs
    )
