// The `tapehead` program and the tests of every op in one, for a machine without Bazel and this source.
//
//   program test [GoogleTest's flags]     the tests, on TAPEHEAD_TEST_DEVICE
//   program ...                           as tapehead ...
#include "tapehead/tools/program.h"

#include <gtest/gtest.h>

#include <string_view>

#include "tapehead/tools/errors.h"

int main(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "test")
    return tapehead::run_reporting_errors([&] { tapehead::run_program(argc, argv); });
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
