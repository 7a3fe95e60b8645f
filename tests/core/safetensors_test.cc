#include "tapehead/core/safetensors.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "tapehead/core/file.h"
#include "tapehead/core/random.h"
#include "tapehead/core/view.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string temporary(const std::string& name) { return testing::TempDir() + "safetensors_test_" + name; }

// A file of this header and as many bytes of data.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\1');
}

SafetensorsFile parse(const std::string& bytes) { return SafetensorsFile::parse(bytes, "some.safetensors"); }

const char* const kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(Safetensors, EveryDTypeComesBackBitForBit) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  const std::vector<double> values = {0, 1, -2, 3, 0.5, 100};
  // The narrowest first and an odd number of them: order and alignment disagree.
  for (const DType t : {DType::bf16, DType::f16, DType::i32, DType::f32, DType::i64, DType::f64}) {
    tensors.emplace_back(fmt::format("dense {}", t), Tensor::from<double>({3, 2}, values).to(t));
    tensors.emplace_back(fmt::format("scalar {}", t), Tensor::scalar(7, t));
    tensors.emplace_back(fmt::format("empty {}", t), Tensor::zeros({3, 0, 2}, t));
    tensors.emplace_back(fmt::format("strided {}", t),
                         transpose(Tensor::from<double>({2, 3}, values).to(t), 0, 1));
  }
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"quote \" \\ \n ", "ünïcode"}, {"", ""}};
  const std::string path = temporary("dtypes");
  write_safetensors(path, tensors, metadata);

  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.names().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, written] = tensors[i];
    EXPECT_EQ(file.names()[i], name) << "the order given";
    const Tensor read = file.tensor(name);
    EXPECT_EQ(read.shape(), written.shape()) << name;
    EXPECT_EQ(read.dtype(), written.dtype()) << name;
    const size_t bytes = static_cast<size_t>(read.bytes());
    EXPECT_TRUE(bytes == 0 ||  // memcmp takes no null, not even of nothing
                std::memcmp(read.raw_data(), written.contiguous().raw_data(), bytes) == 0)
        << name;
    EXPECT_TRUE(read.storage()->is_foreign() || read.numel() == 0) << name << " is aligned, hence not copied";
  }
}

TEST(Safetensors, NoTensorAtAllIsAFile) {
  const std::string path = temporary("none");
  write_safetensors(path, {});
  EXPECT_TRUE(SafetensorsFile::open(path).names().empty());
  EXPECT_TRUE(parse(file_of("{}", 0)).metadata().empty());
}

TEST(Safetensors, DataBeginAtAMultipleOfEight) {
  const std::string path = temporary("aligned");
  for (int length = 1; length <= 8; ++length) {
    write_safetensors(path, {{std::string(static_cast<size_t>(length), 'x'), Tensor::scalar(1)}});
    EXPECT_EQ((read_file(path).size() - 4) % 8, 0u);
  }
}

TEST(Safetensors, FilesOfTheReferenceLibraryAreRead) {
  const SafetensorsFile file = SafetensorsFile::open("tests/golden/gpt2.safetensors");
  EXPECT_EQ(file.tensor("transformer.wte.weight").shape(), Shape({97, 32}));
  EXPECT_EQ(file.tensor("input_ids").dtype(), DType::i64);
  EXPECT_TRUE(file.metadata().contains("model"));
}

TEST(Safetensors, AnEntryThatIsNotThereIsAnErrorThatNamesIt) {
  const SafetensorsFile file = parse(file_of(kOne, 8));
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("b"));
  EXPECT_THAT([&] { file.tensor("b"); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("some.safetensors"), HasSubstr("\"b\""))));
}

TEST(Safetensors, TensorsOutliveTheFile) {
  const Tensor x = parse(file_of(kOne, 8)).tensor("a");
  float expected;
  std::memcpy(&expected, "\1\1\1\1", 4);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(expected, expected));
}

TEST(Safetensors, WritingToATensorChangesThisProcessAlone) {
  const std::string path = temporary("private");
  write_safetensors(path, {{"x", Tensor::full({3}, 1)}});
  const SafetensorsFile file = SafetensorsFile::open(path);
  file.tensor("x").fill(2);
  EXPECT_THAT(file.tensor("x").to_vector<float>(), ElementsAre(2, 2, 2));
  EXPECT_THAT(SafetensorsFile::open(path).tensor("x").to_vector<float>(), ElementsAre(1, 1, 1));
}

TEST(Safetensors, EntriesThatStandAskewAreCopied) {
  for (size_t padding = 0; padding < 8; ++padding) {
    const std::string header =
        R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[2,10]},"b":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})" +
        std::string(padding, ' ');
    const SafetensorsFile file = parse(file_of(header, 10));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensor("a").raw_data()) % 8, 0u);
    double expected;
    std::memcpy(&expected, "\1\1\1\1\1\1\1\1", 8);
    EXPECT_EQ(file.tensor("a").item(), expected);
    EXPECT_EQ(file.tensor("b").numel(), 1);
  }
}

TEST(Safetensors, SpaceAndAnyOrderAreAllowedInTheHeader) {
  const SafetensorsFile file = parse(file_of(R"({ "b" : {"shape":[ ], "data_offsets":[4, 8],"dtype":"I32"},
    "a":{"data_offsets":[0,4],"dtype":"F32","shape":[1]}, "none":{"dtype":"F32","shape":[0],"data_offsets":[4,4]} }   )",
                                             8));
  EXPECT_THAT(file.names(), ElementsAre("b", "a", "none"));
  EXPECT_EQ(file.tensor("b").shape(), Shape());
}

// ---- What is refused

TEST(SafetensorsRefuses, EveryBrokenRuleByFileAndEntry) {
  struct Case {
    std::string bytes;
    std::vector<std::string> says;
  };
  const auto entry = [](const std::string& fields, size_t data_bytes = 8) {
    return file_of("{\"a\":{" + fields + "}}", data_bytes);
  };
  const auto shaped = [&](const std::string& shape, size_t data_bytes = 8) {
    return entry(
        "\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":[0," + std::to_string(data_bytes) + "]",
        data_bytes);
  };
  const auto offset = [&](const std::string& offsets) {
    return entry("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" + offsets);
  };
  const auto two = [](const std::string& a, const std::string& b, size_t data_bytes) {
    return file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + a +
                       "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + b + "}}",
                   data_bytes);
  };
  const std::string deep = "{\"a\":" + std::string(1'000'000, '[');
  const std::string deep_objects = [] {
    std::string s;
    for (int i = 0; i < 100'000; ++i) s += "{\"a\":";
    return s;
  }();
  const std::vector<Case> cases = {
      // The frame.
      {"", {"0 bytes"}},
      {std::string(7, '\0'), {"7 bytes"}},
      {std::string(8, '\0'), {"{"}},
      {file_of(kOne, 8).substr(0, 30), {"header of", "cut short"}},
      {file_of(kOne, 7), {"\"a\"", "byte 8", "there are 7"}},
      {file_of(kOne, 0), {"\"a\"", "cut short"}},
      {file_of(kOne, 9), {"end at byte 8", "9 bytes"}},
      {file_of("{}", 1), {"1 bytes"}},
      {"\x01\xe1\xf5\x05" + std::string(4, '\0') + std::string(100, ' '), {"100000001", "at most 100000000"}},
      {std::string(8, '\xff') + "{}", {"18446744073709551615"}},
      // The header's JSON.
      {file_of("", 0), {"{"}},
      {file_of(" {}", 0), {"does not begin"}},
      {file_of("[]", 0), {"does not begin"}},
      {file_of("{", 0), {"not JSON", "byte 2"}},
      {file_of("{} {}", 0), {"not JSON"}},
      {file_of("{\"a\xff\":{}}", 0), {"not JSON"}},
      {file_of(std::string("{}\0", 3), 0), {"not JSON"}},
      {file_of(deep, 0), {"\"a\"", "an array"}},
      {file_of(deep_objects, 0), {"\"a\""}},
      // Wrong types, everywhere.
      {file_of("{\"a\":1}", 0), {"\"a\"", "a number, not an object"}},
      {file_of("{\"a\":null}", 0), {"\"a\"", "null, not an object"}},
      {file_of("{\"a\":[]}", 0), {"\"a\"", "an array, not an object"}},
      {file_of("{\"a\":\"x\"}", 0), {"\"a\"", "a string, not an object"}},
      {entry("\"dtype\":1"), {"\"a\"", "a number", "dtype is a string"}},
      {entry("\"dtype\":[\"F32\"]"), {"\"a\"", "an array", "dtype is a string"}},
      {entry("\"dtype\":{}"), {"\"a\"", "an object", "dtype is a string"}},
      {entry("\"dtype\":null"), {"\"a\"", "null", "dtype is a string"}},
      {entry("\"shape\":2"), {"\"a\"", "a number", "shape is an array"}},
      {entry("\"shape\":\"2\""), {"\"a\"", "a string", "shape is an array"}},
      {shaped("[\"2\"]"), {"\"a\"", "a string", "shape is an array"}},
      {shaped("[[2]]"), {"\"a\"", "an array", "shape is an array"}},
      {shaped("[{}]"), {"\"a\"", "an object", "shape is an array"}},
      {shaped("[true]"), {"\"a\"", "true", "shape is an array"}},
      {shaped("[2.0]"), {"\"a\"", "2.0", "shape is an array"}},
      {shaped("[-2]"), {"\"a\"", "-2", "integers >= 0"}},
      {offset("8"), {"\"a\"", "a number", "data_offsets is an array"}},
      {offset("[0,8.5]"), {"\"a\"", "8.5", "data_offsets is an array"}},
      {offset("[-8,0]"), {"\"a\"", "-8", "data_offsets is an array"}},
      {offset("[]"), {"\"a\"", "0 data_offsets"}},
      {offset("[8]"), {"\"a\"", "1 data_offsets"}},
      {offset("[0,8,8]"), {"\"a\"", "3 data_offsets"}},
      {file_of("{\"__metadata__\":\"x\"}", 0), {"__metadata__", "a string, not an object"}},
      {file_of("{\"__metadata__\":{\"k\":1}}", 0), {"__metadata__", "\"k\"", "a number", "strings"}},
      {file_of("{\"__metadata__\":{\"k\":null}}", 0), {"__metadata__", "\"k\"", "null"}},
      {file_of("{\"__metadata__\":{\"k\":{}}}", 0), {"__metadata__", "\"k\"", "an object"}},
      {file_of("{\"__metadata__\":{\"k\":[\"x\"]}}", 0), {"__metadata__", "an array"}},
      // Fields.
      {file_of("{\"a\":{}}", 0), {"\"a\"", "no dtype"}},
      {entry("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), {"\"a\"", "no shape"}},
      {entry("\"dtype\":\"F32\",\"shape\":[2]"), {"\"a\"", "no data_offsets"}},
      {entry("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"name\":\"x\""), {"\"a\"", "\"name\""}},
      {entry("\"dtype\":\"F32\",\"dtype\":\"F32\""), {"\"a\"", "\"dtype\" twice"}},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
           0),
       {"\"a\" twice"}},
      {file_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), {"\"__metadata__\" twice"}},
      {file_of("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0), {"__metadata__", "\"k\" twice"}},
      // Sizes.
      {shaped("[3]"), {"\"a\"", "(3,)", "F32", "8 bytes"}},
      {shaped("[]"), {"\"a\"", "()", "8 bytes"}},
      {shaped("[0]"), {"\"a\"", "(0,)", "8 bytes"}},
      {shaped("[4611686018427387904,4]"), {"\"a\"", "too many elements"}},
      {shaped("[4611686018427387904,4,0]", 0), {"\"a\"", "too many elements"}},
      {shaped("[4611686018427387906]"), {"\"a\"", "does not fit"}},  // times 4: 8, modulo 2^64
      {shaped("[9223372036854775808]"), {"\"a\"", "9223372036854775808", "63 bits"}},
      {shaped("[99999999999999999999]"), {"\"a\"", "99999999999999999999"}},
      // Layout.
      {offset("[8,0]"), {"\"a\"", "ends at byte 0", "begin at 8"}},
      {offset("[0,16]"), {"\"a\"", "byte 16", "there are 8"}},
      {offset("[9223372036854775807,9223372036854775807]"), {"\"a\"", "cut short or damaged"}},
      {two("[0,4]", "[0,4]", 4), {"\"b\"", "overlaps"}},
      {two("[0,4]", "[2,6]", 6), {"\"b\"", "overlaps", "byte 2"}},
      {two("[0,4]", "[8,12]", 12), {"\"b\"", "gap", "byte 8"}},
      {two("[5,9]", "[1,5]", 9), {"\"b\"", "gap", "byte 1"}},
      {two("[0,4]", "[4,8]", 12), {"end at byte 8", "12 bytes"}},
  };
  for (const Case& c : cases) {
    const std::string shown = c.bytes.substr(0, 120);
    try {
      parse(c.bytes);
      ADD_FAILURE() << "accepted: " << shown;
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr("[safetensors] some.safetensors: ")) << shown;
      for (const std::string& text : c.says) EXPECT_THAT(error.what(), HasSubstr(text)) << shown;
    }
  }
}

TEST(SafetensorsRefuses, OtherDTypesAreATypeErrorForWhomeverAsks) {
  for (const std::string dtype : {"BOOL", "U8", "F8_E4M3", "f32", ""}) {
    const SafetensorsFile file =
        parse(file_of("{\"a\":{\"dtype\":\"" + dtype +
                          "\",\"shape\":[8],\"data_offsets\":[0,8]},"
                          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
                      12));
    EXPECT_THAT(file.names(), ElementsAre("a", "b"));
    EXPECT_TRUE(file.contains("a"));
    EXPECT_EQ(file.tensor("b").numel(), 1);
    EXPECT_THAT([&] { file.tensor("a"); },
                ThrowsMessage<TypeError>(
                    AllOf(HasSubstr("some.safetensors"), HasSubstr("\"a\""), HasSubstr("dtype " + dtype))));
  }
}

TEST(SafetensorsRefuses, FilesThatAreNotThereOrAreCutShort) {
  EXPECT_THROW(SafetensorsFile::open(temporary("missing")), ValueError);
  const std::string path = temporary("cut");
  write_safetensors(path, {{"x", Tensor::zeros({100})}});
  std::filesystem::resize_file(path, 200);
  EXPECT_THAT([&] { SafetensorsFile::open(path); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path), HasSubstr("\"x\""))));
  std::filesystem::resize_file(path, 0);
  EXPECT_THAT([&] { SafetensorsFile::open(path); }, ThrowsMessage<ValueError>(HasSubstr(path)));
}

TEST(SafetensorsRefuses, ToWriteWhatItWouldNotRead) {
  const std::string path = temporary("unwritten");
  std::filesystem::remove(path);
  const Tensor x = Tensor::zeros({1});
  const auto refuses = [&](const std::vector<std::pair<std::string, Tensor>>& tensors,
                           const SafetensorsMetadata& metadata, const std::string& says) {
    EXPECT_THAT([&] { write_safetensors(path, tensors, metadata); },
                ThrowsMessage<ValueError>(AllOf(HasSubstr(path), HasSubstr(says))));
  };
  refuses({{"a", x}, {"a", x}}, {}, "\"a\" is given twice");
  refuses({{"a", Tensor()}}, {}, "\"a\" is an undefined tensor");
  refuses({{"__metadata__", x}}, {}, "__metadata__");
  refuses({{"\xff", x}}, {}, "UTF-8");
  refuses({}, {{"k", "\xc3"}}, "UTF-8");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THROW(write_safetensors(temporary("no/such/folder"), {}), SystemError);
}

// ---- Arbitrary bytes

// Reads everything that a file has, so that a sanitizer sees every byte touched.
void read_all(std::string bytes) {
  try {
    const SafetensorsFile file = SafetensorsFile::parse(std::move(bytes));
    for (const std::string& name : file.names()) (void)file.tensor(name).to_vector<double>();
  } catch (const ValueError&) {
  } catch (const TypeError&) {
  }
}

TEST(SafetensorsMutations, OfAValidFileNeverCrash) {
  const std::string path = temporary("mutations");
  write_safetensors(path,
                    {{"weight", Tensor::full({3, 2}, 1.5)},
                     {"index", Tensor::full({2}, 3, DType::i64)},
                     {"half", Tensor::full({1, 1, 1}, 3, DType::bf16)},
                     {"none", Tensor::zeros({0, 4})}},
                    {{"format", "pt"}});
  const std::string valid = read_file(path);
  const size_t data_bytes = 6 * 4 + 2 * 8 + 2;
  const std::string tokens[] = {"{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "\"",
                                "-",
                                "0",
                                "9",
                                "1e99",
                                "null",
                                "true",
                                "\\u0000",
                                "\\ud800",
                                "18446744073709551615",
                                "9223372036854775807",
                                "\"shape\"",
                                "\"__metadata__\"",
                                "F64",
                                "[[[[",
                                " "};
  Generator random{.seed = 1};
  for (int trial = 0; trial < 5'000; ++trial) {
    std::string bytes = valid;
    for (uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
      if (bytes.empty()) break;
      const size_t at = random.below(bytes.size());
      switch (random.below(7)) {
        case 0: bytes[at] = static_cast<char>(random.word()); break;
        case 1: bytes[at] ^= static_cast<char>(1 << random.below(8)); break;
        case 2: bytes.erase(at, 1 + random.below(8)); break;
        case 3: bytes.insert(at, tokens[random.below(std::size(tokens))]); break;
        case 4: bytes.resize(at); break;
        case 5: bytes += bytes.substr(at); break;
        case 6:
          bytes[random.below(std::min<size_t>(bytes.size(), 8))] = static_cast<char>(random.word());
          break;
      }
    }
    // Half of the time the length is made to fit again, so that the header gets its turn.
    if (bytes.size() >= valid.size() && random.below(2)) {
      const uint64_t length = bytes.size() - data_bytes - 8;
      std::memcpy(bytes.data(), &length, 8);
    }
    read_all(std::move(bytes));
  }
}

TEST(SafetensorsMutations, EveryPrefixAndEverySingleChangeOfAByte) {
  const std::string valid = file_of(kOne, 8);
  for (size_t n = 0; n < valid.size(); ++n) EXPECT_THROW(parse(valid.substr(0, n)), ValueError) << n;
  for (size_t at = 0; at < valid.size() - 8; ++at) {
    for (const char byte :
         {'\0', ' ', '"', ',', '-', '.', '0', '9', ':', '[', ']', '{', '}', '\\', '\x7f', '\xff'}) {
      std::string bytes = valid;
      bytes[at] = byte;
      read_all(bytes);
    }
  }
}

}  // namespace
}  // namespace tapehead
