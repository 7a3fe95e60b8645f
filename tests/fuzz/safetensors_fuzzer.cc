// Arbitrary bytes as a safetensors file: every one is read whole, or refused with an error of ours.
#include "tapehead/core/error.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/tests/fuzz/fuzzer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tapehead;
  try {
    const SafetensorsFile file =
        SafetensorsFile::parse(std::string(reinterpret_cast<const char*>(data), size));
    for (const std::string& name : file.names()) {
      const Tensor tensor = file.tensor(name);
      // Touches every byte of the entry, under its dtype.
      if (is_floating(tensor.dtype())) {
        tensor.to_vector<double>();
      } else {
        tensor.to_vector<int64_t>();
      }
    }
  } catch (const ValueError&) {  // NOLINT: refusing is what it should do
  } catch (const TypeError&) {
  }
  return 0;
}
