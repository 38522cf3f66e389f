// SPDX-License-Identifier: Apache-2.0
// The files of llama-imatrix: GGUF with sums of squares, and before that a list of floats.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "checkpoint/file_io.h"
#include "checkpoint/gguf_header.h"
#include "vitrine/gguf_export.h"

namespace vitrine {
namespace {

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";
constexpr int32_t kMostEntries = 1 << 20, kMostName = 1 << 12;
constexpr int32_t kMostValues = 1 << 28;

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kBadFile, path + ": " + what);
}

void check_square(const std::string& path, const std::string& name, float value) {
  if (std::isfinite(value) && value >= 0) return;
  bad(path, "'" + name + "' has a sum of squares of " + std::to_string(value) +
                "; expected numbers of 0 or more");
}

std::vector<float> read_floats(const checkpoint::InputFile& file, const TensorInfo& info) {
  if (info.dtype != DType::kF32) bad(file.path(), "'" + info.name + "' is no F32; expected F32");
  std::vector<float> values(info.num_bytes / sizeof(float));
  file.read(info.file_offset, std::as_writable_bytes(std::span(values)));
  return values;
}

ImportanceMatrix read_gguf(const checkpoint::InputFile& file) {
  const checkpoint::GgufHeader header = checkpoint::read_gguf_header(file);
  ImportanceMatrix matrix;
  for (const TensorInfo& sums : header.tensors) {
    if (!sums.name.ends_with(kSums)) continue;
    const std::string name = sums.name.substr(0, sums.name.size() - kSums.size());
    const auto counts =
        std::ranges::find(header.tensors, name + std::string(kCounts), &TensorInfo::name);
    if (counts == header.tensors.end()) {
      bad(file.path(), "'" + sums.name + "' has no '" + name + std::string(kCounts) +
                           "'; expected one beside it");
    }
    ImportanceMatrix::Entry entry;
    entry.mean_squares = read_floats(file, sums);
    const std::vector<float> rows = read_floats(file, *counts);
    if (rows.empty() || entry.mean_squares.size() % rows.size() != 0) {
      bad(file.path(), "'" + counts->name + "' has " + std::to_string(rows.size()) +
                           " counts for " + std::to_string(entry.mean_squares.size()) +
                           " sums; expected one for each expert");
    }
    const size_t width = entry.mean_squares.size() / rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      check_square(file.path(), counts->name, rows[i]);
      entry.counts.push_back(static_cast<int64_t>(rows[i]));
      for (size_t c = i * width; c < (i + 1) * width; ++c) {
        check_square(file.path(), sums.name, entry.mean_squares[c]);
        if (rows[i] > 0) entry.mean_squares[c] /= rows[i];
      }
    }
    matrix.entries[name] = std::move(entry);
  }
  if (matrix.entries.empty()) bad(file.path(), "has no tensor 'NAME.in_sum2'; expected some");
  return matrix;
}

/// Numbers of the older file, each checked before it is believed.
class OldReader {
 public:
  explicit OldReader(const checkpoint::InputFile& file) : file_(file) {}

  ImportanceMatrix read() {
    ImportanceMatrix matrix;
    const int32_t entries = number("the number of entries", 1, kMostEntries);
    for (int32_t i = 0; i < entries; ++i) {
      std::string name(static_cast<size_t>(number("the length of a name", 1, kMostName)), '\0');
      take(std::as_writable_bytes(std::span(name)));
      const int32_t calls = number("the calls of '" + name + "'", 0, INT32_MAX);
      const int32_t count = number("the values of '" + name + "'", 1, kMostValues);
      ImportanceMatrix::Entry entry;
      if (static_cast<uint64_t>(count) * sizeof(float) > file_.size() - at_) cut();
      entry.mean_squares.resize(static_cast<size_t>(count));
      take(std::as_writable_bytes(std::span(entry.mean_squares)));
      // Sums are the means times the calls, of all experts alike.
      for (float& value : entry.mean_squares) {
        check_square(file_.path(), name, value);
        if (calls > 0) value /= static_cast<float>(calls);
      }
      entry.counts = {calls};
      matrix.entries[name] = std::move(entry);
    }
    return matrix;
  }

 private:
  [[noreturn]] void cut() const {
    bad(file_.path(), "ends at byte " + std::to_string(file_.size()) +
                          " in the middle of an entry; expected an importance matrix");
  }
  void take(std::span<std::byte> out) {
    if (out.size() > file_.size() - at_) cut();
    file_.read(at_, out);
    at_ += out.size();
  }
  int32_t number(const std::string& what, int32_t low, int32_t high) {
    int32_t value = 0;
    take(std::as_writable_bytes(std::span(&value, 1)));
    if (value >= low && value <= high) return value;
    bad(file_.path(), what + " is " + std::to_string(value) + "; expected " + std::to_string(low) +
                          " to " + std::to_string(high));
  }

  const checkpoint::InputFile& file_;
  uint64_t at_ = 0;
};

}  // namespace

ImportanceMatrix read_importance_matrix(const std::string& path) {
  const checkpoint::InputFile file(path);
  if (checkpoint::has_gguf_magic(file)) return read_gguf(file);
  return OldReader(file).read();
}

}  // namespace vitrine
