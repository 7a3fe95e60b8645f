"""A test that headers are included from where a room may reach, also those that a dependency brings along."""

load("//tools/build:rules.bzl", "ROOMS")

_Sources = provider(fields = ["files"])

def _collect_impl(target, ctx):
    own = [f for kind in ["srcs", "hdrs"] for t in getattr(ctx.rule.attr, kind, []) for f in t.files.to_list()]
    deps = [dep[_Sources].files for dep in getattr(ctx.rule.attr, "deps", []) if _Sources in dep]
    return [_Sources(files = depset([f for f in own if f.is_source], transitive = deps))]

_collect = aspect(implementation = _collect_impl, attr_aspects = ["deps"])

# Of another room, only what stands at its top: backends/backend.h, and not backends/cpu/.
_CHECK = """
if grep -HnE '#include "tapehead/' {files} | grep -vE '"tapehead/({room}/.*|({others})/[^/]*)"'; then
  echo "{room} includes headers of {known} alone"
  status=1
fi
"""

def _rooms_test_impl(ctx):
    files = depset(transitive = [dep[_Sources].files for dep in ctx.attr.deps]).to_list()
    script = "#!/bin/sh\nstatus=0\n"
    for room, known in ROOMS.items():
        if not [f for f in files if f.short_path.startswith(room + "/")]:
            fail("rooms_test sees no file of " + room)
        script += _CHECK.format(
            files = " ".join([f.short_path for f in files if f.short_path.startswith(room + "/")]),
            room = room,
            others = "|".join(known),
            known = ", ".join(known),
        )
    ctx.actions.write(ctx.outputs.executable, script + "exit $status\n", is_executable = True)
    return [DefaultInfo(runfiles = ctx.runfiles(files = files))]

rooms_test = rule(
    doc = "Looks at the sources of `deps` and of all that they depend on.",
    implementation = _rooms_test_impl,
    attrs = {"deps": attr.label_list(aspects = [_collect])},
    test = True,
)
