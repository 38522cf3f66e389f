// SPDX-License-Identifier: Apache-2.0
// What the room writes: safetensors files, small files, hashes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <span>

#include "folders.h"

namespace vitrine {
namespace {

using testing::error_of;
using testing::is_one_line_with;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

int count_files(const std::string& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) count += entry.exists();
  return count;
}

/// Files above a size can't be written while this lives: as on a full disk, write() fails.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &old_limit_);
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {bytes, old_limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_limit_ = {};
  void (*old_handler_)(int) = nullptr;
};

TEST(Writer, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", testing::small_config());
  const std::vector<float> floats = {1.0f, -2.5f, 3.0f};
  const std::vector<int64_t> shape = {3, 1};
  const std::vector<uint8_t> bytes = {7};
  SafetensorsWriter writer(folder / "model.safetensors");
  writer.declare("bytes", DType::kU8, {1});
  writer.declare("floats", DType::kF32, shape);
  writer.declare("none", DType::kBF16, {0});
  writer.declare("shape", DType::kI64, {2});
  writer.begin({{"format", "pt"}, {"note", "a \"quote\""}});
  writer.write("shape", std::as_bytes(std::span(shape)));
  writer.write("floats", std::as_bytes(std::span(floats)).first(5));
  writer.write("bytes", std::as_bytes(std::span(bytes)));
  writer.write("floats", std::as_bytes(std::span(floats)).subspan(5));
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  writer.finish();
  EXPECT_EQ(count_files(folder.path()), 2);

  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.tensors().size(), 4u);
  EXPECT_EQ(checkpoint.read_f32("floats"), floats);
  std::vector<int64_t> found(2);
  checkpoint.read(checkpoint.require("shape"), std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, shape);
  for (const TensorInfo& info : checkpoint.tensors()) {
    EXPECT_EQ(info.file_offset % dtype_size(info.dtype), 0u) << info.name;
  }
}

TEST(Writer, RefusesMisuse) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x.safetensors");
  writer.declare("a", DType::kU8, {2});
  EXPECT_THROW(writer.declare("a", DType::kU8, {2}), Error);
  EXPECT_THROW(writer.declare("__metadata__", DType::kU8, {2}), Error);
  EXPECT_THROW(writer.declare("b", DType::kU8, {-1}), Error);
  EXPECT_THROW(writer.declare("c", DType::kF32, {int64_t{1} << 61, 1}), Error);
  const std::vector<std::byte> bytes(3);
  EXPECT_THROW(writer.write("a", bytes), Error);
  EXPECT_THROW(writer.finish(), Error);
  writer.begin();
  EXPECT_THROW(writer.begin(), Error);
  EXPECT_THROW(writer.declare("d", DType::kU8, {2}), Error);
  EXPECT_THROW(writer.write("a", bytes), Error);
  EXPECT_THROW(writer.write("z", bytes), Error);
  writer.write("a", std::span(bytes).first(1));
  EXPECT_TRUE(is_one_line_with(error_of([&] { writer.finish(); }),
                               {"x.safetensors", "'a' got 1 bytes; expected 2"}));
}

TEST(Writer, LeavesTheOldFileWholeWhereItFails) {
  const TemporaryFolder folder;
  write_bytes(folder / "x.safetensors", "old");
  {
    SafetensorsWriter writer(folder / "x.safetensors");
    writer.declare("a", DType::kU8, {2});
    writer.begin();
    EXPECT_EQ(count_files(folder.path()), 2);
  }
  EXPECT_EQ(read_bytes(folder / "x.safetensors"), "old");
  EXPECT_EQ(count_files(folder.path()), 1);

  const std::vector<std::byte> bytes(100'000);
  {
    const FileSizeLimit limit(4096);
    const Error error = error_of([&] {
      SafetensorsWriter writer(folder / "x.safetensors");
      writer.declare("a", DType::kU8, {100'000});
      writer.begin();
      writer.write("a", bytes);
      writer.finish();
    });
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_TRUE(is_one_line_with(error, {"x.safetensors: can't be written"})) << error.what();
    EXPECT_THROW(write_file_atomically(folder / "x.safetensors", bytes), Error);
  }
  EXPECT_EQ(read_bytes(folder / "x.safetensors"), "old");
  EXPECT_EQ(count_files(folder.path()), 1);
}

TEST(Writer, SaysWhichFileCannotBeWritten) {
  const TemporaryFolder folder;
  const Error error = error_of([&] { write_file_atomically(folder / "no/file", "text"); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_TRUE(is_one_line_with(error, {"no/file: can't be written: No such file"}));
  std::filesystem::create_directory(folder / "taken");
  EXPECT_THROW(write_file_atomically(folder / "taken", "text"), Error);
  EXPECT_EQ(count_files(folder.path()), 1);
}

TEST(SmallFiles, AreReplacedAtOnce) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a.json", "one");
  write_file_atomically(folder / "a.json", "two");
  EXPECT_EQ(read_text_file(folder / "a.json", 3), "two");
  EXPECT_EQ(count_files(folder.path()), 1);
  const Error error = error_of([&] { read_text_file(folder / "a.json", 2); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {"a.json: has 3 bytes; expected at most 2"}));
}

TEST(SmallFiles, NeverWaitForANamedPipe) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "config.json").c_str(), 0600), 0);
  EXPECT_TRUE(is_one_line_with(error_of([&] { Checkpoint::open(folder.path()); }),
                               {"config.json", "not a regular file"}));
}

TEST(Sha256, EqualsTheStandardsExamples) {
  const TemporaryFolder folder;
  write_bytes(folder / "empty", "");
  write_bytes(folder / "abc", "abc");
  write_bytes(folder / "million", std::string(1'000'000, 'a'));
  write_bytes(folder / "longer", std::string(3'000'000, 'a'));
  EXPECT_EQ(sha256_of_file(folder / "empty"),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of_text("abc"), sha256_of_file(folder / "abc"));
  EXPECT_EQ(sha256_of_file(folder / "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of_file(folder / "million"),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_NE(sha256_of_file(folder / "longer"), sha256_of_file(folder / "million"));
  EXPECT_THROW(sha256_of_file(folder / "none"), Error);
}

}  // namespace
}  // namespace vitrine
