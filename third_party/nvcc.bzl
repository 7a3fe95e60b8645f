"""Compiles .cu files with nvcc, for compute capabilities 8.0 and 9.0, and as PTX for newer ones."""

load("@cuda//:toolkit.bzl", "CUDA_HOME", "FOUND")

# For what is built and tested on every machine that can, without --config=cuda.
WHERE_NVCC_IS = [] if FOUND else ["@platforms//:incompatible"]

_FLAGS = [
    "-std=c++20",
    "-O3",
    "--expt-relaxed-constexpr",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    # fmt turns constexpr off for nvcc, halfway, and nvcc cannot evaluate its consteval.
    "-DFMT_USE_CONSTEXPR=1",
    "-DFMT_CONSTEVAL=",
    # The standard library's functions of long double, which no kernel calls.
    "-diag-suppress=20208",
    "-Werror=all-warnings",
    "-Xcompiler=-Wall,-Wextra,-Werror,-fPIC,-ffp-contract=off",
    "-Xptxas=-warn-spills,-Werror",
]

def _cuda_objects_impl(ctx):
    if not FOUND:
        fail("--config=cuda needs NVIDIA's CUDA toolkit: there is no {}/bin/nvcc; set CUDA_HOME to where it is".format(CUDA_HOME))
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    objects = []
    for source in ctx.files.srcs:
        object = ctx.actions.declare_file(source.basename[:-len(".cu")] + ".o")
        arguments = ctx.actions.args()
        arguments.add_all(_FLAGS)
        for option, folders in [
            ("-I", context.includes),
            ("-I", context.quote_includes),
            ("-isystem", context.system_includes),
        ]:
            arguments.add_all(folders, before_each = option)
        arguments.add_all(context.defines, before_each = "-D")
        arguments.add_all(["-c", source, "-o", object])
        ctx.actions.run(
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = [arguments],
            inputs = depset([source], transitive = [context.headers]),
            outputs = [object],
            use_default_shell_env = True,
            mnemonic = "Nvcc",
            progress_message = "Compiling %s for CUDA" % source.short_path,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "deps": attr.label_list(providers = [CcInfo]),
    },
)
