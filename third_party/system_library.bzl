"""What the system's package manager installed, as Bazel targets: a library of the same name, or a file.

A missing header or file stops the build with one line that names the Debian package.
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

def _system_file_impl(ctx):
    if not ctx.path(ctx.attr.path).exists:
        fail("{} is missing: apt-get install {} (or run tools/setup)".format(ctx.attr.path, ctx.attr.debian_package))
    name = ctx.attr.path.split("/")[-1]
    ctx.symlink(ctx.attr.path, name)
    ctx.file("BUILD", 'exports_files(["{}"])'.format(name))

system_file = repository_rule(
    implementation = _system_file_impl,
    local = True,
    attrs = {
        "debian_package": attr.string(mandatory = True),
        "path": attr.string(mandatory = True, doc = "absolute; its last part is the target's name"),
    },
)
