"""A test that headers are included from where a room may reach, also those that a dependency brings along."""

load("//tools/build:rules.bzl", "ROOMS", "ROOM_PACKAGES")

# Of another room, only what stands at its top: backends/backend.h, and not backends/cpu/.
_CHECK = """
if grep -HnE '#include "tapehead/' {files} | grep -vE '"tapehead/({room}/.*|({others})/[^/]*)"'; then
  echo "{room} includes headers of {known} alone"
  status=1
fi
"""

def _rooms_test_impl(ctx):
    script = "#!/bin/sh\nstatus=0\n"
    for room, known in ROOMS.items():
        script += _CHECK.format(
            files = " ".join([f.short_path for f in ctx.files._sources if f.short_path.startswith(room + "/")]),
            room = room,
            others = "|".join(known),
            known = ", ".join(known),
        )
    ctx.actions.write(ctx.outputs.executable, script + "exit $status\n", is_executable = True)
    return [DefaultInfo(runfiles = ctx.runfiles(files = ctx.files._sources))]

rooms_test = rule(
    doc = "Looks at every source of every room.",
    implementation = _rooms_test_impl,
    attrs = {"_sources": attr.label_list(default = ["//%s:sources" % package for package in ROOM_PACKAGES])},
    test = True,
)
