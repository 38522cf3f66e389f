// SPDX-License-Identifier: Apache-2.0
// Hostile and healthy GGUF headers.
#include <gtest/gtest.h>

#include "folders.h"
#include "gguf_builder.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

class GgufHeaderTest : public ::testing::Test {
 protected:
  Checkpoint open(const std::string& bytes) {
    write_bytes(folder_ / "model.gguf", bytes);
    return Checkpoint::open(folder_ / "model.gguf");
  }
  void expect_error(const std::string& bytes, std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { open(bytes); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", "expected"})) << error.what();
  }
  void expect_entry_error(const std::string& entry, std::initializer_list<std::string_view> parts,
                          ErrorKind kind = ErrorKind::kBadFile) {
    GgufFile file = small_gguf();
    file.entries.push_back(entry);
    expect_error(file.bytes(), parts, kind);
  }
  void expect_tensor_error(const std::string& tensor, std::initializer_list<std::string_view> parts,
                           ErrorKind kind = ErrorKind::kBadFile) {
    GgufFile file = small_gguf();
    file.tensors.push_back(tensor);
    file.data_bytes = 4096;
    expect_error(file.bytes(), parts, kind);
  }
  TemporaryFolder folder_;
};

TEST_F(GgufHeaderTest, ASmallFileOpens) {
  for (uint32_t version : {2U, 3U}) {
    GgufFile file = small_gguf();
    file.version = version;
    const Checkpoint checkpoint = open(file.bytes());
    ASSERT_EQ(checkpoint.tensors().size(), 1U);
    const TensorInfo& info = checkpoint.require("model.embed_tokens.weight");
    EXPECT_EQ(info.shape, (std::vector<int64_t>{4, 64}));
    EXPECT_EQ(info.num_bytes, 1024U);
    EXPECT_TRUE(checkpoint.is_gguf());
    EXPECT_EQ(checkpoint.read_f32(info).size(), 256U);
    EXPECT_TRUE(checkpoint.tokenizer_json().empty());
  }
}

TEST_F(GgufHeaderTest, MagicAndVersion) {
  expect_error("", {"4 bytes"});
  expect_error("GGU", {"truncated"});
  expect_error("GGML" + small_gguf().bytes().substr(4), {"'GGML'", "'GGUF'"});
  for (uint32_t version : {0U, 1U, 4U}) {
    GgufFile file = small_gguf();
    file.version = version;
    expect_error(file.bytes(), {"version"}, ErrorKind::kUnsupported);
  }
  GgufFile file = small_gguf();
  file.version = 3U << 24;
  expect_error(file.bytes(), {"big-endian"}, ErrorKind::kUnsupported);
}

TEST_F(GgufHeaderTest, CountsThatLie) {
  for (uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 40, UINT64_MAX - 1}) {
    GgufFile file = small_gguf();
    file.num_entries = count;
    expect_error(file.bytes(), {"number of keys", std::to_string(count)});
    file = small_gguf();
    file.num_tensors = count;
    expect_error(file.bytes(), {"number of tensors", std::to_string(count)});
  }
  GgufFile file = small_gguf();
  file.num_entries = file.entries.size() + 1;  // the first tensor is then read as an entry
  expect_error(file.bytes(), {"name of tensor 0"});
}

TEST_F(GgufHeaderTest, TruncatedAnywhere) {
  const std::string whole = small_gguf().bytes();
  const size_t data_begin = whole.size() - 1024;
  for (size_t size = 0; size < whole.size(); size += size < data_begin ? 1 : 97) {
    const Error error = error_of([&] { open(whole.substr(0, size)); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << size << ": " << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", "expected"})) << error.what();
  }
}

TEST_F(GgufHeaderTest, Strings) {
  expect_entry_error(le<uint64_t>(UINT64_MAX), {"key 8", "18446744073709551615"});
  expect_entry_error(le<uint64_t>(70000) + std::string(70000, 'k'), {"key 8", "at most 65535"});
  expect_entry_error(gguf_string("k") + le<uint32_t>(8) + le<uint64_t>(uint64_t{1} << 62),
                     {"'k'", "4611686018427387904", "truncated"});
  expect_entry_error(gguf_u32("llama.block_count", 1), {"'llama.block_count'", "twice"});
}

TEST_F(GgufHeaderTest, Values) {
  expect_entry_error(gguf_entry("k", 13, le<uint64_t>(0)), {"'k'", "value type 13"});
  expect_entry_error(gguf_entry("k", 7, le<uint8_t>(2)), {"'k'", "boolean of value 2"});
  expect_entry_error(gguf_u32("general.alignment", 0), {"general.alignment", "is 0"});
  expect_entry_error(gguf_u32("general.alignment", 48), {"general.alignment", "power of two"});
  expect_entry_error(gguf_text("general.alignment", "32"), {"general.alignment", "'32'"});
  expect_entry_error(gguf_u32("general.alignment", 1U << 30), {"general.alignment"});
}

TEST_F(GgufHeaderTest, Arrays) {
  const auto array = [](uint32_t type, uint64_t count, const std::string& bytes) {
    return gguf_entry("k", 9, le(type) + le(count) + bytes);
  };
  expect_entry_error(array(4, UINT64_MAX, ""), {"'k'", "uint32"});
  expect_entry_error(array(10, (uint64_t{1} << 61) + 1, ""), {"'k'", "uint64"});
  expect_entry_error(array(8, 1000, ""), {"'k'", "string"});
  expect_entry_error(array(77, 1, "x"), {"'k'", "value type 77"});
  expect_entry_error(array(7, 2, "\x01\x05"), {"'k'", "boolean of value 5"});
  expect_entry_error(array(8, 1, le<uint64_t>(uint64_t{1} << 40)), {"'k'", "1099511627776"});
  std::string nested = le<uint32_t>(0) + le<uint64_t>(1) + "x";
  for (int depth = 0; depth < 7; ++depth) nested = le<uint32_t>(9) + le<uint64_t>(1) + nested;
  GgufFile file = small_gguf();
  file.entries.push_back(gguf_entry("k", 9, nested));
  EXPECT_NO_THROW(open(file.bytes()));
  for (int depth = 0; depth < 2; ++depth) nested = le<uint32_t>(9) + le<uint64_t>(1) + nested;
  expect_entry_error(gguf_entry("k", 9, nested), {"'k'", "nested deeper than 8"});
}

TEST_F(GgufHeaderTest, Tensors) {
  const auto tensor = [](const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset) {
    return gguf_tensor("output.weight", extents, type, offset);
  };
  const auto unsupported = ErrorKind::kUnsupported;
  expect_tensor_error(gguf_tensor("", {4}, 0, 1024), {"tensor 1", "empty name"});
  expect_tensor_error(gguf_tensor("token_embd.weight", {4}, 0, 1024), {"twice"});
  expect_tensor_error(tensor({}, 0, 1024), {"0 extents"});
  expect_tensor_error(tensor({1, 1, 1, 1, 1}, 0, 1024), {"5 extents"});
  expect_tensor_error(tensor({0, 4}, 0, 1024), {"extent of 0"});
  expect_tensor_error(tensor({uint64_t{1} << 63}, 0, 1024), {"extent of"});
  expect_tensor_error(tensor({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 1024), {"overflows"});
  expect_tensor_error(tensor({uint64_t{1} << 61, 2}, 0, 1024), {"overflows"});
  expect_tensor_error(tensor({64, 4}, 100, 1024), {"type 100", "Q4_0", "MXFP4", "IQ1_M"});
  expect_tensor_error(tensor({64, 4}, 4, 1024), {"type 4 (Q4_2)", "expected Q4_0"}, unsupported);
  expect_tensor_error(tensor({256, 4}, 97, 1024), {"97 (Q8_0_X4)", "Q8_0"}, unsupported);
  expect_tensor_error(tensor({256, 4}, 139, 1024),
                      {"139 (IQ4_K)", "only ik_llama.cpp reads", "--allow-requantize", "Q4_K_S"},
                      unsupported);
  expect_tensor_error(tensor({256, 4}, 154, 1024), {"154 (IQ3_KT)", "--imatrix FILE", "IQ3_XXS"},
                      unsupported);
  expect_tensor_error(tensor({256, 4}, 212, 1024), {"212 (Q4_K_R4)", "OUT.gguf Q4_K"}, unsupported);
  expect_tensor_error(tensor({256, 4}, 398, 1024), {"398 (Q8_KV_R8)", "Q8_0"}, unsupported);
  expect_tensor_error(tensor({40, 4}, 2, 1024), {"rows of 40", "multiple of 32", "Q4_0"});
  expect_tensor_error(tensor({64, 4}, 12, 1024), {"multiple of 256", "Q4_K"});
  expect_tensor_error(tensor({96, 4}, 40, 1024), {"multiple of 64", "NVFP4"});
  expect_tensor_error(tensor({192, 4}, 41, 1024), {"multiple of 128", "Q1_0"});
  expect_tensor_error(tensor({64, 4}, 0, 1000), {"offset 1000", "alignment 32"});
  expect_tensor_error(tensor({64, 4}, 0, 512), {"overlap"});
  expect_tensor_error(tensor({64, 4}, 0, 4096), {"offset 4096"});
  // A gap: the tensor before was larger when the file was written.
  expect_tensor_error(tensor({64, 4}, 0, 1056), {"offset 1056", "expected 1024", "token_embd"});
  GgufFile late = small_gguf();
  late.tensors = {gguf_tensor("token_embd.weight", {64, 4}, 0, 32)};
  late.data_bytes = 4096;
  const Error error = error_of([&] { open(late.bytes()); });
  EXPECT_TRUE(is_one_line_with(error, {"offset 32", "expected 0"})) << error.what();
  expect_tensor_error(tensor({64, 4}, 0, UINT64_MAX - 31), {"offset 18446744073709551584"});
  expect_tensor_error(tensor({64, 100}, 0, 1024), {"takes 25600 bytes", "truncated"});
}

TEST_F(GgufHeaderTest, Alignment) {
  GgufFile file = small_gguf();
  file.entries.push_back(gguf_u32("general.alignment", 256));
  file.alignment = 256;
  file.tensors.push_back(gguf_tensor("output.weight", {64, 4}, 0, 1024));
  file.data_bytes = 2048;
  const Checkpoint checkpoint = open(file.bytes());
  EXPECT_EQ(checkpoint.require("lm_head.weight").file_offset % 256, 0U);
  file.tensors.back() = gguf_tensor("output.weight", {64, 4}, 0, 1056);
  expect_error(file.bytes(), {"offset 1056", "alignment 256"});
}

TEST_F(GgufHeaderTest, AFolderOrAPipeIsNoFile) {
  EXPECT_EQ(error_of([&] { Checkpoint::open(folder_.path()); }).kind(), ErrorKind::kBadFile);
  EXPECT_EQ(error_of([&] { Checkpoint::open("/dev/null"); }).kind(), ErrorKind::kBadFile);
}

}  // namespace
}  // namespace vitrine
