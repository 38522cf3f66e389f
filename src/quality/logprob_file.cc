// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "vitrine/perplexity.h"

namespace vitrine {

static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");

namespace {

constexpr std::string_view kMagic = "_logits_";
constexpr float kRange = 16;       // of logits below the largest one
constexpr float kLargest = 65535;  // of uint16
constexpr int64_t kMostVocab = 1 << 24, kMostContext = 1 << 24, kMostChunks = 1 << 24;
constexpr size_t kHeadBytes = 8 + 3 * sizeof(int32_t);

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kIo, path + ": " + what + ": " + std::strerror(errno));
}

size_t rows_of_chunk(const LogprobFileHead& head) {
  return static_cast<size_t>(head.context - 1 - head.context / 2);
}
/// uint16 values of a row: two floats, and an even number of them.
size_t row_values(const LogprobFileHead& head) {
  return 2 * ((static_cast<size_t>(head.vocab_size) + 1) / 2) + 4;
}

void check_number(const std::string& path, ErrorKind kind, const char* what, int64_t found,
                  int64_t least, int64_t most) {
  if (found >= least && found <= most) return;
  throw Error(kind, path + ": '" + what + "' is " + std::to_string(found) + "; expected " +
                        std::to_string(least) + " to " + std::to_string(most));
}

void check_head(const std::string& path, ErrorKind kind, const LogprobFileHead& head) {
  check_number(path, kind, "n_ctx", head.context, 4, kMostContext);
  check_number(path, kind, "n_vocab", head.vocab_size, 1, kMostVocab);
  check_number(path, kind, "n_chunk", head.chunks, 1, kMostChunks);
}

// The nearest whole number, a half to the even one, as llama.cpp rounds (by adding 1.5 times 2^23).
uint16_t nearest(float value) { return static_cast<uint16_t>(std::nearbyint(value)); }

// In float32, as llama.cpp computes a row, so that equal logits make equal bytes.
void write_row(std::span<const float> logits, std::span<uint16_t> row) {
  const auto [least, largest] = std::ranges::minmax(logits);
  const float floor = std::max(least, largest - kRange);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const auto log_sum = static_cast<float>(std::log(sum));
  const float numbers[2] = {(largest - floor) / kLargest, floor - largest - log_sum};
  std::memcpy(row.data(), numbers, sizeof numbers);
  const float inverse = numbers[0] != 0 ? 1 / numbers[0] : 0;
  const std::span<uint16_t> values = row.subspan(4);
  for (size_t id = 0; id < logits.size(); ++id) {
    values[id] = logits[id] > floor ? nearest(inverse * (logits[id] - floor)) : uint16_t{0};
  }
}

}  // namespace

struct LogprobFileWriter::Impl {
  std::string path, part;
  LogprobFileHead head;
  std::ofstream file;
  std::vector<uint16_t> row;
  size_t rows = 0, added = 0;
  bool is_whole = false;

  void write(const void* bytes, size_t size) {
    file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    if (!file) fail(path, "cannot be written");
  }
};

LogprobFileWriter::LogprobFileWriter(const std::string& path, const LogprobFileHead& head)
    : impl_(std::make_unique<Impl>()) {
  check_head(path, ErrorKind::kInvalidArgument, head);
  if (std::ssize(head.ids) != head.chunks * head.context) {
    throw Error(ErrorKind::kInvalidArgument, path + ": " + std::to_string(head.ids.size()) +
                                                 " ids of " + std::to_string(head.chunks) +
                                                 " chunks of " + std::to_string(head.context) +
                                                 "; expected as many as they have");
  }
  Impl& impl = *impl_;
  impl.path = path;
  impl.part = path + ".part";
  impl.head = head;
  impl.rows = rows_of_chunk(head) * static_cast<size_t>(head.chunks);
  impl.row.resize(row_values(head));
  impl.file.open(impl.part, std::ios::binary | std::ios::trunc);
  if (!impl.file) fail(impl.part, "cannot be written");
  const int32_t numbers[3] = {static_cast<int32_t>(head.context),
                              static_cast<int32_t>(head.vocab_size),
                              static_cast<int32_t>(head.chunks)};
  impl.write(kMagic.data(), kMagic.size());
  impl.write(numbers, sizeof numbers);
  impl.write(head.ids.data(), head.ids.size() * sizeof(int32_t));
}

LogprobFileWriter::~LogprobFileWriter() {
  if (impl_->is_whole) return;
  impl_->file.close();
  std::error_code ignored;
  std::filesystem::remove(impl_->part, ignored);
}

void LogprobFileWriter::add(std::span<const float> logits) {
  Impl& impl = *impl_;
  if (std::ssize(logits) != impl.head.vocab_size || impl.added == impl.rows) {
    throw Error(ErrorKind::kInvalidArgument,
                impl.path + ": row " + std::to_string(impl.added) + " has " +
                    std::to_string(logits.size()) + " logits; expected " +
                    std::to_string(impl.rows) + " rows of " + std::to_string(impl.head.vocab_size));
  }
  write_row(logits, impl.row);
  impl.write(impl.row.data(), impl.row.size() * sizeof(uint16_t));
  ++impl.added;
}

void LogprobFileWriter::finish() {
  Impl& impl = *impl_;
  if (impl.added != impl.rows) {
    throw Error(ErrorKind::kInvalidArgument, impl.path + ": " + std::to_string(impl.added) +
                                                 " rows; expected " + std::to_string(impl.rows));
  }
  impl.file.close();
  if (!impl.file) fail(impl.path, "cannot be written");
  std::error_code problem;
  std::filesystem::rename(impl.part, impl.path, problem);
  if (problem) throw Error(ErrorKind::kIo, impl.path + ": " + problem.message());
  impl.is_whole = true;
}

struct LogprobFileReader::Impl {
  std::string path;
  LogprobFileHead head;
  std::ifstream file;
  std::vector<uint16_t> row;
  size_t rows = 0, read = 0;

  void read_bytes(void* bytes, size_t size) {
    file.read(static_cast<char*>(bytes), static_cast<std::streamsize>(size));
    if (!file) fail(path, "cannot be read further");
  }
};

LogprobFileReader::LogprobFileReader(const std::string& path) : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.path = path;
  std::error_code problem;
  const auto size = std::filesystem::file_size(path, problem);
  if (problem) throw Error(ErrorKind::kIo, path + ": " + problem.message());
  impl.file.open(path, std::ios::binary);
  if (!impl.file) fail(path, "cannot be read");
  std::string magic(kMagic.size(), '\0');
  int32_t numbers[3] = {};
  const bool is_long = size >= kHeadBytes;
  if (is_long) impl.read_bytes(magic.data(), magic.size());
  if (magic != kMagic) {
    throw Error(ErrorKind::kBadFile,
                path +
                    ": does not begin with '_logits_'; expected log-probabilities of "
                    "`perplexity --kl-divergence-base`");
  }
  impl.read_bytes(numbers, sizeof numbers);
  impl.head = {numbers[0], numbers[1], numbers[2], {}};
  check_head(path, ErrorKind::kBadFile, impl.head);
  impl.rows = rows_of_chunk(impl.head) * static_cast<size_t>(impl.head.chunks);
  const size_t ids = static_cast<size_t>(impl.head.context * impl.head.chunks);
  const size_t expected =
      kHeadBytes + ids * sizeof(int32_t) + impl.rows * row_values(impl.head) * sizeof(uint16_t);
  if (size != expected) {
    throw Error(ErrorKind::kBadFile, path + ": " + std::to_string(size) + " bytes; expected " +
                                         std::to_string(expected) +
                                         " of its chunks and vocabulary: it is cut off");
  }
  impl.head.ids.resize(ids);
  impl.read_bytes(impl.head.ids.data(), ids * sizeof(int32_t));
  const auto is_none = [&](int32_t id) { return id < 0 || id >= impl.head.vocab_size; };
  if (const auto found = std::ranges::find_if(impl.head.ids, is_none);
      found != impl.head.ids.end()) {
    throw Error(ErrorKind::kBadFile, path + ": id " + std::to_string(*found) + "; expected 0 to " +
                                         std::to_string(impl.head.vocab_size - 1));
  }
  impl.row.resize(row_values(impl.head));
}

LogprobFileReader::~LogprobFileReader() = default;
const LogprobFileHead& LogprobFileReader::head() const { return impl_->head; }

void LogprobFileReader::next(std::span<float> logprobs) {
  Impl& impl = *impl_;
  if (std::ssize(logprobs) != impl.head.vocab_size || impl.read == impl.rows) {
    throw Error(ErrorKind::kInvalidArgument,
                impl.path + ": row " + std::to_string(impl.read) + " is asked for with " +
                    std::to_string(logprobs.size()) + " tokens; expected " +
                    std::to_string(impl.rows) + " rows of " + std::to_string(impl.head.vocab_size));
  }
  impl.read_bytes(impl.row.data(), impl.row.size() * sizeof(uint16_t));
  float numbers[2];
  std::memcpy(numbers, impl.row.data(), sizeof numbers);
  const float scale = numbers[0], floor = numbers[1];
  if (!(std::isfinite(scale) && std::isfinite(floor) && scale >= 0)) {
    throw Error(ErrorKind::kBadFile, impl.path + ": row " + std::to_string(impl.read) +
                                         " has the scale " + std::to_string(scale) +
                                         " and the least value " + std::to_string(floor) +
                                         "; expected finite numbers");
  }
  for (size_t id = 0; id < logprobs.size(); ++id) {
    logprobs[id] = scale * static_cast<float>(impl.row[id + 4]) + floor;
  }
  ++impl.read;
}

}  // namespace vitrine
