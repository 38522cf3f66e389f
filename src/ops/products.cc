#include "ops/products.h"

#include <algorithm>

#include "ops/plan.h"
#include "ops/weight_lines.h"

namespace vitrine::ops {

using kernels::Weight;

namespace {

Weight strip_of(const Weight& weight, int64_t rows) {
  return kernels::block_weight(weight.block_format, rows, weight.cols);
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
  const int64_t rows = std::min(weight.rows, kStripRows);
  return whole_lines(kernels::packed_bytes(strip_of(weight, rows)));
}

Weight Products::pack(const Weight& weight, int64_t row_begin, int64_t row_end,
                      std::byte* memory) const {
  Weight strip = strip_of(weight, row_end - row_begin);
  const kernels::WeightBytes bytes = kernels::packed_bytes(strip);
  std::byte* scales = memory + whole_lines(bytes.data);
  std::byte* offsets = scales + whole_lines(bytes.scales);
  const int64_t row_bytes = kernels::block_row_bytes(weight.block_format, weight.cols);
  const int64_t bad_row =
      kernel_.pack_blocks(weight.block_format, strip, 0, strip.rows,
                          static_cast<const std::byte*>(weight.blocks) + row_begin * row_bytes,
                          memory, scales, bytes.offsets == 0 ? nullptr : offsets);
  if (bad_row >= 0) bad_matrix_.store(&weight);
  strip.data = memory;
  strip.scales = scales;
  if (bytes.offsets != 0) strip.offsets = offsets;
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
