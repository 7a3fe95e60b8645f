"""Stands in for rules_cc: Bazel 4 still carries the C++ rules itself, and these names are all that is asked for."""

cc_library = native.cc_library
cc_binary = native.cc_binary
cc_test = native.cc_test
cc_import = native.cc_import
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
