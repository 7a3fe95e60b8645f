#include "tapehead/tools/errors.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string>

#include "tapehead/core/error.h"

namespace tapehead {

namespace {

constexpr int kUsersMistake = 2, kMachinesRefusal = 1;

int report(const char* type, std::string message, int status) {
  std::ranges::replace(message, '\n', ' ');
  fmt::print(stderr, "error: {}: {}\n", type, message);
  return status;
}

}  // namespace

int run_reporting_errors(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const ValueError& e) {
    return report("ValueError", e.what(), kUsersMistake);
  } catch (const TypeError& e) {
    return report("TypeError", e.what(), kUsersMistake);
  } catch (const RuntimeError& e) {  // a call that is not legal as things stand
    return report("RuntimeError", e.what(), kUsersMistake);
  } catch (const SystemError& e) {
    return report("SystemError", e.what(), kMachinesRefusal);
  } catch (const std::filesystem::filesystem_error& e) {
    return report("SystemError", e.what(), kMachinesRefusal);
  } catch (const std::bad_alloc&) {
    return report("SystemError", "not enough memory; a smaller batch, context or model takes less",
                  kMachinesRefusal);
  } catch (const std::exception& e) {
    return report("RuntimeError", e.what(), kMachinesRefusal);
  }
}

}  // namespace tapehead
