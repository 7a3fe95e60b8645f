"""A library that the system's package manager installed, as a Bazel target of the same name.

A missing header stops the build with one line that names the Debian package.
"""

_INCLUDE_DIRS = ["/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/local/include"]

_BUILD = """package(default_visibility = ["//visibility:public"])

cc_library(
    name = "{name}",
    srcs = {archives},
    hdrs = glob(["include/**/*.h"], allow_empty = True),
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
)
"""

def _system_library_impl(ctx):
    dirs = [ctx.attr.include_dir] if ctx.attr.include_dir else _INCLUDE_DIRS
    found = [d for d in dirs if ctx.path(d + "/" + ctx.attr.header).exists]
    missing = [a for a in ctx.attr.archives if not ctx.path(a).exists]
    if not found or missing:
        fail("{} is missing: apt-get install {} (or run tools/setup)".format(
            missing[0] if missing else ctx.attr.header,
            ctx.attr.debian_package,
        ))

    # The compiler finds /usr/include by itself; only a folder of the library's own is put on its path.
    if ctx.attr.include_dir:
        ctx.symlink(ctx.attr.include_dir, "include")
    archives = []
    for archive in ctx.attr.archives:
        name = archive.split("/")[-1]
        ctx.symlink(archive, name)
        archives.append(name)
    ctx.file("BUILD", _BUILD.format(
        name = ctx.name,
        archives = archives,
        defines = ctx.attr.defines,
        includes = ["include"] if ctx.attr.include_dir else [],
        linkopts = ctx.attr.linkopts,
    ))

system_library = repository_rule(
    implementation = _system_library_impl,
    local = True,
    attrs = {
        "debian_package": attr.string(mandatory = True),
        "header": attr.string(mandatory = True, doc = "a header that proves the library is there"),
        "include_dir": attr.string(doc = "where its headers stand, if not on the compiler's own path"),
        "archives": attr.string_list(doc = "static archives, absolute paths"),
        "defines": attr.string_list(),
        "linkopts": attr.string_list(),
    },
)
