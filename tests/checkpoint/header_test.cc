// SPDX-License-Identifier: Apache-2.0
// Hostile and healthy safetensors headers.
#include <gtest/gtest.h>

#include "folders.h"

namespace vitrine {
namespace {

using testing::error_of;
using testing::is_one_line_with;
using testing::safetensors_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

class HeaderTest : public ::testing::Test {
 protected:
  HeaderTest() { write_bytes(folder_ / "config.json", testing::small_config()); }

  Checkpoint open_with(const std::string& bytes) {
    write_bytes(folder_ / "model.safetensors", bytes);
    return Checkpoint::open(folder_.path());
  }
  void expect_error(const std::string& bytes, std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { open_with(bytes); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", "expected"})) << error.what();
  }
  void expect_header_error(const std::string& header, size_t data_bytes,
                           std::initializer_list<std::string_view> parts,
                           ErrorKind kind = ErrorKind::kBadFile) {
    expect_error(safetensors_bytes(header, data_bytes), parts, kind);
  }

  TemporaryFolder folder_;
};

constexpr char kHealthy[] =
    R"({"__metadata__":{"format":"pt"},
        "b":{"dtype":"U8","shape":[2,3],"data_offsets":[8,14]},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "empty":{"dtype":"F32","shape":[0,4],"data_offsets":[14,14]}}   )";

TEST_F(HeaderTest, ReadsWhatIsThere) {
  const Checkpoint checkpoint = open_with(safetensors_bytes(kHealthy, 14));
  ASSERT_EQ(checkpoint.tensors().size(), 3u);
  const TensorInfo& b = checkpoint.require("b");
  EXPECT_EQ(b.dtype, DType::kU8);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.num_bytes, 6u);
  std::vector<std::byte> bytes(6);
  checkpoint.read(b, bytes);
  EXPECT_EQ(std::to_integer<int>(bytes[5]), 13);
  checkpoint.read(b, 2, std::span(bytes.data(), 1));
  EXPECT_EQ(std::to_integer<int>(bytes[0]), 10);
  EXPECT_THROW(checkpoint.read(b, 6, std::span(bytes.data(), 1)), Error);
  EXPECT_THROW(checkpoint.read(b, UINT64_MAX, std::span(bytes.data(), 2)), Error);
  EXPECT_THROW(checkpoint.read(b, std::span(bytes.data(), 5)), Error);
  EXPECT_TRUE(checkpoint.read_f32("empty").empty());
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  EXPECT_EQ(error_of([&] { checkpoint.read_f32("b"); }).kind(), ErrorKind::kUnsupported);
  const std::vector<int64_t> wrong = {3, 2};
  EXPECT_TRUE(is_one_line_with(error_of([&] { checkpoint.require("b", wrong); }),
                               {"'b'", "[2, 3]", "expected [3, 2]", "model.safetensors"}));
  EXPECT_TRUE(is_one_line_with(error_of([&] { checkpoint.require("c"); }), {"'c' is missing"}));
}

TEST_F(HeaderTest, WidensEachFloatFormat) {
  const std::string header =
      R"({"f":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
          "h":{"dtype":"F16","shape":[1],"data_offsets":[4,6]},
          "b":{"dtype":"BF16","shape":[1],"data_offsets":[6,8]}})";
  std::string bytes = safetensors_bytes(header, 0);
  bytes += std::string("\x00\x00\xc0\x3f\x00\x3e\xc0\x3f", 8);
  const Checkpoint checkpoint = open_with(bytes);
  for (const char* name : {"f", "h", "b"}) {
    EXPECT_EQ(checkpoint.read_f32(name), std::vector<float>{1.5f}) << name;
  }
}

TEST_F(HeaderTest, RefusesABrokenLength) {
  expect_error("", {"has 0 bytes"});
  expect_error("abc", {"has 3 bytes"});
  std::string whole = safetensors_bytes(kHealthy, 14);
  expect_error(whole.substr(0, 60), {"header length", "truncated"});
  whole[7] = '\x7f';
  expect_error(whole, {"header length is 91", "at most 100000000"});
  expect_error(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), {"header length is 100000001"});
  expect_error(std::string(8, '\0'), {"does not start with '{'"});
}

TEST_F(HeaderTest, RefusesAFileThatIsTooShortOrTooLong) {
  expect_header_error(kHealthy, 13, {"data_offsets of 'b' are [8, 14]", "out of range"});
  expect_header_error(kHealthy, 15, {"tensors cover 14 bytes, but 15"});
  expect_header_error("{}", 1, {"tensors cover 0 bytes, but 1"});
}

TEST_F(HeaderTest, RefusesOffsetsThatOverlapOrLeaveAGap) {
  expect_header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                          "b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                      6, {"data_offsets of 'b' are [2, 6], overlapping", "begin at 4"});
  expect_header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                          "b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
                      10, {"data_offsets of 'b' are [6, 10], leaving a gap"});
  expect_header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4,
                      {"[4, 0], out of range"});
  expect_header_error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}})",
                      1, {"out of range"});
}

TEST_F(HeaderTest, RefusesAShapeThatContradictsItsBytes) {
  expect_header_error(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})", 20,
                      {"data_offsets of 'a'", "20 bytes", "expected 24", "[2, 3]"});
  expect_header_error(
      R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
      {"overflows"});
  expect_header_error(
      R"({"a":{"dtype":"F32","shape":[9223372036854775807,2,0],"data_offsets":[0,0]}})", 0,
      {"overflows"});
  expect_header_error(R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0]}})",
                      0, {"'shape' of 'a' holds 9223372036854775808"});
  expect_header_error(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
                      {"'shape' of 'a' holds -1"});
}

TEST_F(HeaderTest, RefusesJsonThatIsNotAHeader) {
  expect_header_error("{", 0, {"invalid JSON at its byte"});
  expect_header_error(R"({"a":)", 0, {"invalid JSON"});
  expect_header_error("{\"\xff\":{}}", 0, {"invalid JSON"});
  expect_header_error(R"({"a":1})", 0, {"'a'", "holds 1"});
  expect_header_error(R"({"a":[]})", 0, {"holds a list"});
  expect_header_error(R"({"a":{}})", 0, {"'a' is incomplete"});
  expect_header_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4,
                      {"'a' is incomplete"});
  expect_header_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4,
                      {"third offset"});
  expect_header_error(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4,
                      {"'shape' of 'a'", "fractional"});
  expect_header_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e400]}})", 4,
                      {"invalid JSON"});
  expect_header_error(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4,
                      {"'dtype' of 'a' holds 7"});
  expect_header_error(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4,
                      {"holds a list"});
  expect_header_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4,
                      {"'x' of 'a' is unknown"});
  expect_header_error(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
                      {"'dtype' of 'a' stands twice"});
  expect_header_error(R"({"__metadata__":{"a":1}})", 0, {"'__metadata__' holds 1"});
  expect_header_error(R"({"__metadata__":"x"})", 0, {"holds 'x'"});
  std::string deep = R"({"a":{"dtype":"F32","shape":)" + std::string(100000, '[');
  expect_header_error(deep, 0, {"holds a list"});
}

TEST_F(HeaderTest, RefusesANameGivenTwice) {
  expect_header_error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                          "a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                      2, {"the tensor 'a' twice"});
}

TEST_F(HeaderTest, NamesADtypeThatItLacks) {
  expect_header_error(R"({"a":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}})", 1,
                      {"'dtype' of 'a' is 'F8_E5M2'"}, ErrorKind::kUnsupported);
  expect_header_error(R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}})", 1,
                      {"'dtype' of 'a' is 'Q4'"});
}

TEST_F(HeaderTest, KeepsAMessageOnOneLineWhateverTheName) {
  expect_header_error(R"({"a\nb\u0000":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1,
                      {"'a\\x0ab\\x00'"});
  expect_header_error("{\"" + std::string(5000, 'n') + "\":{}}", 0, {"nnn…'"});
}

TEST_F(HeaderTest, RefusesWhatIsNotARegularFile) {
  std::filesystem::create_directory(folder_ / "model.safetensors");
  const Error error = error_of([&] { Checkpoint::open(folder_.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", "not a regular file"}));
}

TEST_F(HeaderTest, NamesWhatTheFolderLacks) {
  EXPECT_TRUE(is_one_line_with(error_of([&] { Checkpoint::open(folder_.path()); }),
                               {"neither model.safetensors nor model.safetensors.index.json"}));
  const Error error = error_of([&] { Checkpoint::open(folder_ / "nowhere"); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"nowhere'", "is not there", "expected a folder"}));
}

TEST_F(HeaderTest, SaysWhereAFileThatShrankEnds) {
  const Checkpoint checkpoint = open_with(safetensors_bytes(kHealthy, 14));
  std::filesystem::resize_file(folder_ / "model.safetensors", 20);
  std::vector<std::byte> bytes(6);
  const Error error = error_of([&] { checkpoint.read(checkpoint.require("b"), bytes); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", "ends at byte"}));
}

}  // namespace
}  // namespace vitrine
