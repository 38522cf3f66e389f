// SPDX-License-Identifier: Apache-2.0
#include "ops/products.h"

#include <algorithm>

#include "ops/plan.h"
#include "ops/weight_lines.h"

namespace vitrine::ops {

using kernels::Weight;

namespace {

Weight strip_of(const Weight& weight, int64_t rows) {
  Weight strip = weight;
  strip.rows = rows;
  strip.blocks = strip.row_scales = nullptr;
  strip.row_zero_points = nullptr;
  return strip;
}

int64_t first_group(const Weight& weight, int64_t row) {
  return row * kernels::group_count(weight.cols, weight.group_size);
}

const void* scales_of(const Weight& weight, int64_t row) {
  return static_cast<const std::byte*>(weight.row_scales) +
         first_group(weight, row) * kernels::scale_size(weight.scale_format);
}

const std::byte* moved(const void* from, int64_t bytes) {
  return from == nullptr ? nullptr : static_cast<const std::byte*>(from) + bytes;
}

/// Rows [row_begin, row_end) of a matrix in memory.
Weight rows_of(const Weight& weight, int64_t row_begin, int64_t row_end) {
  Weight before = weight, rows = weight;
  before.rows = row_begin;
  rows.rows = row_end - row_begin;
  const kernels::WeightBytes skipped = kernels::packed_bytes(before);
  rows.data = moved(weight.data, static_cast<int64_t>(skipped.data));
  rows.scales = moved(weight.scales, static_cast<int64_t>(skipped.scales));
  rows.offsets = moved(weight.offsets, static_cast<int64_t>(skipped.offsets));
  return rows;
}

/// Bytes of 8-bit floats are read where they stand.
bool is_packed_in_strips(const Weight& weight) {
  return weight.format != kernels::WeightFormat::kE4M3;
}

}  // namespace

/// Scratch of the thread that is inside a product: there is one for each that can be.
class Products::Borrowed {
 public:
  explicit Borrowed(const std::vector<Scratch>& all) {
    for (size_t i = 0;; i = (i + 1) % all.size()) {
      if (all[i].is_taken.exchange(true, std::memory_order_acquire)) continue;
      scratch_ = &all[i];
      return;
    }
  }
  ~Borrowed() { scratch_->is_taken.store(false, std::memory_order_release); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  std::byte* memory() const { return scratch_->memory; }

 private:
  const Scratch* scratch_ = nullptr;
};

void Products::allocate(PlanMemory& memory, int threads, size_t strip_bytes) {
  if (strip_bytes == 0) return;
  strip_bytes_ = strip_bytes;
  scratch_ = std::vector<Scratch>(static_cast<size_t>(threads));
  for (Scratch& scratch : scratch_) {
    scratch.memory = static_cast<std::byte*>(memory.allocate(2 * strip_bytes));
  }
}

size_t Products::strip_bytes(const Weight& weight) {
  if (weight.blocks == nullptr) return 0;
  if (!is_packed_in_strips(weight)) return whole_lines(1);
  const int64_t rows = std::min(weight.rows, kStripRows);
  return whole_lines(kernels::packed_bytes(strip_of(weight, rows)));
}

Weight Products::pack(const Weight& weight, int64_t row_begin, int64_t row_end,
                      std::byte* memory) const {
  if (weight.blocks == nullptr) return rows_of(weight, row_begin, row_end);  // one of a pair
  Weight strip = strip_of(weight, row_end - row_begin);
  const auto* rows =
      static_cast<const std::byte*>(weight.blocks) + row_begin * kernels::stored_row_bytes(weight);
  if (!is_packed_in_strips(weight)) {
    const auto count = static_cast<size_t>(strip.rows * weight.cols);
    if (kernels::has_nan(rows, count)) bad_matrix_.store(&weight);
    strip.data = rows;
    strip.scales = scales_of(weight, row_begin);
    return strip;
  }
  const kernels::WeightBytes bytes = kernels::packed_bytes(strip);
  std::byte* scales = memory + whole_lines(bytes.data);
  std::byte* offsets = bytes.offsets == 0 ? nullptr : scales + whole_lines(bytes.scales);
  int64_t bad_row = -1;
  if (weight.row_scales != nullptr) {
    kernels::WordRows words = {.words = rows, .scales = scales_of(weight, row_begin)};
    if (weight.row_zero_points != nullptr) {
      words.zero_points = weight.row_zero_points + first_group(weight, row_begin);
    }
    bad_row = kernel_.pack_words(strip, 0, strip.rows, words, memory, scales, offsets);
  } else {
    bad_row = kernel_.pack_blocks(weight.block_format, strip, 0, strip.rows, rows, memory, scales,
                                  offsets);
  }
  if (bad_row >= 0) bad_matrix_.store(&weight);
  strip.data = memory;
  strip.scales = scales;
  strip.offsets = offsets;
  return strip;
}

void Products::linear(const Weight& weight, int64_t row_begin, int64_t row_end,
                      const kernels::Activations& input, const kernels::RowMap& rows,
                      const float* bias, const float* residual_scale, float* out,
                      int64_t out_stride) const {
  if (weight.blocks == nullptr) {
    kernel_.linear(weight, row_begin, row_end, input, rows, bias, residual_scale, out, out_stride);
    return;
  }
  const Borrowed scratch(scratch_);
  for (int64_t row = row_begin; row < row_end; row += kStripRows) {
    const int64_t end = std::min(row_end, row + kStripRows);
    const Weight strip = pack(weight, row, end, scratch.memory());
    kernel_.linear(strip, 0, strip.rows, input, rows, bias != nullptr ? bias + row : nullptr,
                   residual_scale, out + row, out_stride);
  }
}

void Products::gate_up(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
                       const kernels::Activations& input, const kernels::RowMap& rows, float* out,
                       int64_t out_stride) const {
  if (gate.blocks == nullptr && up.blocks == nullptr) {
    kernel_.gate_up(gate, up, row_begin, row_end, input, rows, out, out_stride);
    return;
  }
  const Borrowed scratch(scratch_);
  for (int64_t row = row_begin; row < row_end; row += kStripRows) {
    const int64_t end = std::min(row_end, row + kStripRows);
    const Weight gate_strip = pack(gate, row, end, scratch.memory());
    const Weight up_strip = pack(up, row, end, scratch.memory() + strip_bytes_);
    kernel_.gate_up(gate_strip, up_strip, 0, end - row, input, rows, out + row, out_stride);
  }
}

void Products::embed_row(const Weight& table, int64_t row, float multiplier, float* out) const {
  if (table.blocks == nullptr) return kernel_.embed_row(table, row, multiplier, out);
  const Borrowed scratch(scratch_);
  kernel_.embed_row(pack(table, row, row + 1, scratch.memory()), 0, multiplier, out);
}

}  // namespace vitrine::ops
