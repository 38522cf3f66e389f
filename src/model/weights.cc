// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "checkpoint/column_order.h"
#include "core/cancel_watch.h"
#include "core/run_pieces.h"
#include "model/latent_weights.h"
#include "model/named_vector.h"

namespace vitrine::model {

WeightMemory::~WeightMemory() {
  for (const Chunk& chunk : chunks_) munmap(chunk.pages, chunk.size);
}

std::byte* WeightMemory::allocate(size_t size, const std::string& what) {
  constexpr size_t kAlignment = 64, kLargePage = size_t{2} << 20, kChunk = size_t{32} << 20;
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded > left_) {
    const size_t usable = std::max(kChunk, (rounded + kLargePage - 1) / kLargePage * kLargePage);
    void* pages = mmap(nullptr, usable + kLargePage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
      throw Error(ErrorKind::kOutOfMemory, "cannot allocate " + std::to_string(size) +
                                               " bytes for " + what +
                                               "; free memory or use a smaller model or context");
    }
    chunks_.push_back({pages, usable + kLargePage});
    const auto address = reinterpret_cast<uintptr_t>(pages);
    next_ = static_cast<std::byte*>(pages) + (kLargePage - address % kLargePage) % kLargePage;
    left_ = usable;
#ifdef MADV_HUGEPAGE
    madvise(next_, left_, MADV_HUGEPAGE);  // refused where the system has none: small pages do
#endif
  }
  std::byte* memory = next_;
  next_ += rounded;
  left_ -= rounded;
  return memory;
}

std::byte* CheckpointWeights::allocate(size_t size, const std::string& module) {
  num_bytes_ += size;
  return memory_.allocate(size, "tensor '" + module + "'");
}

bool CheckpointWeights::map(StoredMatrix& matrix, const std::string& module) {
  const size_t beside = matrix.bytes_beside_map();
  if (!matrix.map(checkpoint_, beside == 0 ? nullptr : allocate(beside, module))) return false;
  num_mapped_bytes_ += ops::weight_bytes(matrix.weight) - beside;
  return true;
}

namespace {

/// The module's, where it is the whole matrix.
std::string name_of_rows(const std::string& module, int64_t rows, int64_t begin, int64_t end) {
  if (begin == 0 && end == rows) return module;
  return module + "[" + std::to_string(begin) + ":" + std::to_string(end) + "]";
}

}  // namespace

const kernels::Weight& CheckpointWeights::matrix_rows(const std::string& module, int64_t rows,
                                                      int64_t cols, int64_t begin, int64_t end) {
  if (begin < 0 || begin >= end || end > rows || begin % kernels::kTileRows != 0 ||
      (end % kernels::kTileRows != 0 && end != rows)) {
    throw Error(ErrorKind::kInternal, "rows " + std::to_string(begin) + " to " +
                                          std::to_string(end) + " of tensor '" + module +
                                          "' are asked for, which has " + std::to_string(rows));
  }
  const std::string name = name_of_rows(module, rows, begin, end);
  auto found = matrices_.find(name);
  if (found == matrices_.end()) {
    StoredMatrix stored = find_stored_matrix(checkpoint_, module, rows, cols, takes_blocks_);
    stored.keep_rows(begin, end);
    if (!mapped_ || !map(stored, module)) {
      pack_later(stored, module);
    } else if (stored.weight.blocks == nullptr) {
      mapped_floats_[name].data = const_cast<void*>(stored.weight.data);
    }
    num_parameters_ += (end - begin) * cols;
    found = matrices_.emplace(name, stored.weight).first;
  }
  const kernels::Weight& weight = found->second;
  if (weight.rows != end - begin || weight.cols != cols) {
    throw Error(ErrorKind::kInternal, "tensor '" + module + "' is used with two shapes");
  }
  return weight;
}

void CheckpointWeights::pack_later(StoredMatrix& stored, const std::string& module) {
  if (!read_) {
    num_bytes_ += stored.num_bytes();
    return;
  }
  stored.place(allocate(stored.num_bytes(), module));
  pending_.push_back(stored);
}

bool CheckpointWeights::orders_rows(const std::string& module) {
  const auto tensors = checkpoint_.find_quantized_tensors(module);
  if (!tensors || tensors->number_format != NumberFormat::kInteger) return false;
  return !tensors->floats || checkpoint::is_sortable(*tensors);
}

CheckpointWeights::Order CheckpointWeights::share_order(const Order& order) {
  const auto [place, is_new] = orders_.insert(order);
  if (is_new) num_bytes_ += order->size() * sizeof(int32_t);
  return *place;
}

ops::FormedMatrix CheckpointWeights::formed_matrix(const std::string& module, int64_t rows,
                                                   int64_t cols, const int32_t* row_order) {
  if (!takes_blocks_ || !checkpoint_.is_quantized()) return {&matrix(module, rows, cols), {}};
  auto found = ordered_.find(module);
  if (found == ordered_.end()) {
    StoredMatrix stored = find_stored_matrix(checkpoint_, module, rows, cols, takes_blocks_,
                                             /*takes_form=*/true);
    if (stored.column_order == nullptr && row_order == nullptr) {
      row_scales_[module] = stored.row_scale;
      return {&matrix(module, rows, cols), stored.input_form()};
    }
    Ordered ordered;
    if (stored.column_order != nullptr) stored.column_order = share_order(stored.column_order);
    ordered.form = stored.input_form();
    stored.row_order = ordered.row_order = row_order;
    pack_later(stored, module);
    ordered.weight = stored.weight;
    num_parameters_ += rows * cols;
    found = ordered_.emplace(module, std::move(ordered)).first;
  }
  const Ordered& ordered = found->second;
  if (ordered.weight.rows != rows || ordered.weight.cols != cols ||
      ordered.row_order != row_order) {
    throw Error(ErrorKind::kInternal, "tensor '" + module + "' is used with two shapes or orders");
  }
  return {&ordered.weight, ordered.form};
}

void CheckpointWeights::load(int threads, int64_t most_active_experts,
                             const std::atomic<bool>* cancelled) {
  experts_.allocate(most_active_experts);
  const std::vector<StoredMatrix> pending = std::exchange(pending_, {});
  // Pieces of about a megabyte: read, they are still in the cache when they are packed.
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  struct Piece {
    size_t matrix;
    int64_t row_begin, row_end;
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < pending.size(); ++i) {
    const int64_t rows = pending[i].weight.rows;
    const int64_t tiles =
        std::max<int64_t>(1, kPieceBytes / (pending[i].stored_row_bytes * kernels::kTileRows));
    const bool is_whole = pending[i].row_order != nullptr;
    const int64_t step = is_whole ? rows : tiles * kernels::kTileRows;
    for (int64_t row = 0; row < rows; row += step) {
      pieces.push_back({i, row, std::min(rows, row + step)});
    }
  }
  const auto make_work = [&] {
    return [&, buffer = std::vector<std::byte>()](size_t i) mutable {
      if (core::is_raised(cancelled)) {
        throw Error(ErrorKind::kCancelled, checkpoint_.path() +
                                               ": loading was cancelled by its host "
                                               "(EngineOptions::cancelled)");
      }
      const Piece& piece = pieces[i];
      read_stored_rows(kernel_, checkpoint_, pending[piece.matrix], piece.row_begin, piece.row_end,
                       buffer);
    };
  };
  core::run_pieces(threads, pieces.size(), make_work);
}

const float* CheckpointWeights::vector(const std::string& tensor, int64_t length) {
  auto found = vectors_.find(tensor);
  if (found == vectors_.end()) {
    const NamedVector named = find_named_vector(checkpoint_, tensor, length);
    std::vector<float> values(static_cast<size_t>(read_ ? 0 : length));
    if (read_) values = read_named_vector(checkpoint_, named);
    found = vectors_.emplace(tensor, std::move(values)).first;
    num_bytes_ += static_cast<uint64_t>(length) * sizeof(float);
    num_parameters_ += length;
  }
  return found->second.data();
}

const ops::LatentWeights& CheckpointWeights::latent(const ops::LatentModule& module) {
  auto found = latents_.find(module.module);
  if (found != latents_.end()) return found->second;
  num_parameters_ += module.heads * (module.key_rows + module.value_rows) * module.latent;
  ops::LatentWeights weights;
  auto blocks = takes_blocks_ ? find_latent_blocks(checkpoint_, module) : std::nullopt;
  if (blocks) {
    pack_later(blocks->keys, module.module);
    pack_later(blocks->values, module.module);
    weights = {blocks->keys.weight, blocks->values.weight};
    return latents_.emplace(module.module, weights).first->second;
  }
  weights = find_latent_weights(checkpoint_, module);
  const size_t key_bytes = ops::weight_bytes(weights.keys);
  const size_t value_bytes = ops::weight_bytes(weights.values);
  if (read_) {
    std::byte* keys = allocate(key_bytes, module.module);
    std::byte* values = allocate(value_bytes, module.module);
    read_latent_weights(checkpoint_, module, weights, keys, values);
    weights.keys.data = keys;
    weights.values.data = values;
  } else {
    num_bytes_ += key_bytes + value_bytes;
  }
  return latents_.emplace(module.module, weights).first->second;
}

size_t CheckpointWeights::strip_bytes() const {
  size_t most = 0;
  for (const auto& [module, weight] : matrices_) {
    most = std::max(most, ops::Products::strip_bytes(weight));
  }
  return most;
}

Error CheckpointWeights::bad_number_error(const kernels::Weight& matrix) const {
  const auto found =
      std::ranges::find_if(matrices_, [&](const auto& entry) { return &entry.second == &matrix; });
  const std::string module = found->first.substr(0, found->first.find('['));
  const auto quantized = checkpoint_.find_quantized_tensors(module);
  const int64_t rows =
      quantized ? quantized->rows : checkpoint_.find(module + ".weight")->shape.front();
  return model::bad_number_error(
      checkpoint_, find_stored_matrix(checkpoint_, module, rows, matrix.cols, takes_blocks_), -1);
}

std::vector<std::span<const std::byte>> CheckpointWeights::memory() const {
  std::vector<std::span<const std::byte>> parts;
  const auto add = [&](const void* data, size_t size) {
    if (data != nullptr) parts.emplace_back(static_cast<const std::byte*>(data), size);
  };
  const auto add_matrix = [&](const kernels::Weight& weight) {
    if (weight.blocks != nullptr) {
      add(weight.blocks, static_cast<size_t>(weight.rows * kernels::stored_row_bytes(weight)));
      return;
    }
    const kernels::WeightBytes bytes = kernels::packed_bytes(weight);
    add(weight.data, bytes.data);
    add(weight.scales, bytes.scales);
    add(weight.offsets, bytes.offsets);
  };
  for (const auto& [module, weight] : matrices_) add_matrix(weight);
  for (const auto& [module, ordered] : ordered_) add_matrix(ordered.weight);
  for (const auto& [module, halves] : latents_) {
    add_matrix(halves.keys);
    add_matrix(halves.values);
  }
  return parts;
}

}  // namespace vitrine::model
