// SPDX-License-Identifier: Apache-2.0
// Importance matrices as llama-imatrix writes them.
#include <algorithm>
#include <limits>

#include "checkpoint/gguf_writer.h"
#include "vitrine/gguf_export.h"

namespace vitrine {
namespace {

/// Throws kInvalidArgument for an entry whose counts do not divide its squares.
void check_entries(const ImportanceMatrix& matrix) {
  for (const auto& [name, entry] : matrix.entries) {
    if (!entry.counts.empty() && entry.mean_squares.size() % entry.counts.size() == 0) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "the importance matrix has " + std::to_string(entry.counts.size()) +
                    " counts and " + std::to_string(entry.mean_squares.size()) + " squares of '" +
                    name + "'; expected a count for each expert, at least one");
  }
}

void write_gguf(const std::string& path, const ImportanceMatrix& matrix, const std::string& source,
                int64_t texts, int64_t length) {
  checkpoint::GgufWriter writer(path);
  writer.set_string("general.type", "imatrix");
  writer.set_strings("imatrix.datasets", {source});
  writer.set_u32("imatrix.chunk_count", static_cast<uint64_t>(texts));
  writer.set_u32("imatrix.chunk_size", static_cast<uint64_t>(length));
  const auto declare = [&](const std::string& name, int64_t rows, int64_t cols) {
    writer.declare(name, 0, {rows, cols}, static_cast<uint64_t>(rows * cols) * sizeof(float));
  };
  for (const auto& [name, entry] : matrix.entries) {
    const int64_t experts = std::ssize(entry.counts);
    declare(name + ".in_sum2", experts, std::ssize(entry.mean_squares) / experts);
    declare(name + ".counts", experts, 1);
  }
  writer.begin();
  for (const auto& [name, entry] : matrix.entries) {
    std::vector<float> sums = entry.mean_squares;
    std::vector<float> counts;
    const size_t width = sums.size() / entry.counts.size();
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] *= static_cast<float>(entry.counts[i / width]);
    }
    for (const int64_t count : entry.counts) counts.push_back(static_cast<float>(count));
    writer.write(name + ".in_sum2", std::as_bytes(std::span(sums)));
    writer.write(name + ".counts", std::as_bytes(std::span(counts)));
  }
  writer.finish();
}

/// Bytes of the older form, lowest first.
class OldBytes {
 public:
  void number(int64_t value) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    put(static_cast<int32_t>(std::min(value, kMost)));
  }
  void value(float value) { put(value); }
  void text(const std::string& text) {
    number(std::ssize(text));
    bytes_ += text;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename Value>
  void put(Value value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string bytes_;
};

/// The older form has one number of calls for all experts of a tensor, and means times it in place
/// of sums. An expert that no row reached has ones; a tensor without any rows is left out.
void write_old(const std::string& path, const ImportanceMatrix& matrix, const std::string& source,
               int64_t texts, int64_t length) {
  const auto most_rows = [](const ImportanceMatrix::Entry& entry) {
    return entry.counts.empty() ? 0 : *std::ranges::max_element(entry.counts);
  };
  OldBytes out;
  out.number(std::ranges::count_if(matrix.entries,
                                   [&](const auto& named) { return most_rows(named.second) > 0; }));
  for (const auto& [name, entry] : matrix.entries) {
    const int64_t rows = most_rows(entry);
    if (rows <= 0) continue;
    const int64_t divisor = std::max<int64_t>(1, length);
    const int64_t calls = rows / divisor + (rows % divisor != 0 ? 1 : 0);
    out.text(name);
    out.number(calls);
    out.number(std::ssize(entry.mean_squares));
    const size_t width = entry.mean_squares.size() / entry.counts.size();
    for (size_t i = 0; i < entry.mean_squares.size(); ++i) {
      const float mean = entry.counts[i / width] > 0 ? entry.mean_squares[i] : 1;
      out.value(mean * static_cast<float>(calls));
    }
  }
  out.number(texts);
  out.text(source);
  write_file_atomically(path, out.bytes());
}

}  // namespace

void write_importance_matrix(const std::string& path, const ImportanceMatrix& matrix,
                             const std::string& source, int64_t texts, int64_t length) {
  check_entries(matrix);
  if (path.ends_with(".dat")) {
    write_old(path, matrix, source, texts, length);
  } else {
    write_gguf(path, matrix, source, texts, length);
  }
}

}  // namespace vitrine
