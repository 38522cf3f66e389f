#include "model/weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

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

namespace {

const TensorInfo* find_blocks(const Checkpoint& checkpoint, const std::string& module) {
  const TensorInfo* info = checkpoint.find(module + ".weight");
  const bool fits = info != nullptr && info->shape.size() == 2 && info->block_format != nullptr &&
                    kernels::has_block_format(info->block_format->ggml_type);
  return fits ? info : nullptr;
}

std::string partner_of(const std::string& module) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {".gate_proj", ".up_proj"}, {".up_proj", ".gate_proj"}, {".w1", ".w3"}, {".w3", ".w1"}};
  for (const auto& [suffix, other] : kPairs) {
    if (module.ends_with(suffix)) {
      return module.substr(0, module.size() - suffix.size()) + std::string(other);
    }
  }
  return {};
}

kernels::BlockFormat format_of(const TensorInfo& info) {
  return static_cast<kernels::BlockFormat>(info.block_format->ggml_type);
}

}  // namespace

const TensorInfo* find_packed_blocks(const Checkpoint& checkpoint, const std::string& module) {
  const TensorInfo* info = find_blocks(checkpoint, module);
  if (info == nullptr) return nullptr;
  const std::string partner = partner_of(module);
  return partner.empty() || find_blocks(checkpoint, partner) != nullptr ? info : nullptr;
}

std::byte* CheckpointWeights::allocate(size_t size, const std::string& module) {
  num_bytes_ += size;
  return memory_.allocate(size, "tensor '" + module + "'");
}

const kernels::Weight& CheckpointWeights::matrix(const std::string& module, int64_t rows,
                                                 int64_t cols) {
  auto found = matrices_.find(module);
  if (found == matrices_.end()) {
    kernels::Weight weight;
    if (const TensorInfo* info = find_packed_blocks(checkpoint_, module)) {
      const std::array<int64_t, 2> shape = {rows, cols};
      plan_blocks(weight, checkpoint_.require(info->name, shape), module);
    } else if (std::optional<QuantizedMatrix> quantized = checkpoint_.read_quantized(module)) {
      check_matrix_shape(checkpoint_, module, *quantized, rows, cols);
      load_quantized(weight, *quantized, module);
    } else {
      plan_float(weight, module, rows, cols);
    }
    num_parameters_ += rows * cols;
    found = matrices_.emplace(module, weight).first;
  }
  const kernels::Weight& weight = found->second;
  if (weight.rows != rows || weight.cols != cols) {
    throw Error(ErrorKind::kInternal, "tensor '" + module + "' is used with two shapes");
  }
  return weight;
}

void CheckpointWeights::plan_blocks(kernels::Weight& weight, const TensorInfo& info,
                                    const std::string& module) {
  weight = kernels::block_weight(format_of(info), info.shape[0], info.shape[1]);
  if (!read_) return;
  const kernels::WeightBytes bytes = kernels::packed_bytes(weight);
  Pending pending;
  pending.info = &info;
  weight.data = pending.data = allocate(bytes.data, module);
  weight.scales = pending.scales = allocate(bytes.scales, module);
  if (bytes.offsets != 0) weight.offsets = pending.offsets = allocate(bytes.offsets, module);
  pending.weight = weight;
  pending.stored_row_bytes = kernels::block_row_bytes(format_of(info), info.shape[1]);
  pending_.push_back(pending);
}

void CheckpointWeights::plan_float(kernels::Weight& weight, const std::string& module, int64_t rows,
                                   int64_t cols) {
  const std::array<int64_t, 2> shape = {rows, cols};
  const TensorInfo& info = checkpoint_.require(module + ".weight", shape);
  switch (info.dtype) {
    case DType::kF32: weight.format = kernels::WeightFormat::kF32; break;
    case DType::kF16: weight.format = kernels::WeightFormat::kF16; break;
    case DType::kBF16: weight.format = kernels::WeightFormat::kBF16; break;
    default:
      throw Error(ErrorKind::kUnsupported,
                  checkpoint_.path() + ": tensor '" + info.name + "' has dtype " +
                      std::string(dtype_name(info.dtype)) + "; expected F32, F16 or BF16");
  }
  weight.rows = rows;
  weight.cols = cols;
  if (!read_) return;
  Pending pending;
  pending.info = &info;
  weight.data = pending.data = allocate(info.num_bytes, module);
  pending.weight = weight;
  pending.stored_row_bytes = cols * static_cast<int64_t>(dtype_size(info.dtype));
  pending_.push_back(pending);
}

void CheckpointWeights::load_rows(const Pending& matrix, int64_t row_begin, int64_t row_end,
                                  std::vector<std::byte>& buffer) const {
  const TensorInfo& info = *matrix.info;
  const auto offset = static_cast<size_t>(row_begin * matrix.stored_row_bytes);
  const auto size = static_cast<size_t>((row_end - row_begin) * matrix.stored_row_bytes);
  if (kernels::is_float_format(matrix.weight.format)) {
    checkpoint_.read(info, offset, std::span(matrix.data + offset, size));
    return;
  }
  buffer.resize(size);
  checkpoint_.read_blocks(info, row_begin, buffer);
  const int64_t bad_row =
      kernels::pack_blocks(format_of(info), matrix.weight, row_begin, row_end, buffer.data(),
                           matrix.data, matrix.scales, matrix.offsets);
  if (bad_row < 0) return;
  throw Error(ErrorKind::kBadFile,
              checkpoint_.weight_files()[static_cast<size_t>(info.file_index)] + ": tensor '" +
                  info.name + "' has a scale that is infinite or no number in row " +
                  std::to_string(bad_row) + "; expected finite numbers");
}

void CheckpointWeights::load(int threads) {
  // Pieces of about a megabyte: read, they are still in the cache when they are packed.
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  struct Piece {
    size_t matrix;
    int64_t row_begin, row_end;
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < pending_.size(); ++i) {
    const int64_t rows = pending_[i].weight.rows;
    const int64_t tiles =
        std::max<int64_t>(1, kPieceBytes / (pending_[i].stored_row_bytes * kernels::kTileRows));
    const int64_t step = tiles * kernels::kTileRows;
    for (int64_t row = 0; row < rows; row += step) {
      pieces.push_back({i, row, std::min(rows, row + step)});
    }
  }
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first_error;
  auto work = [&] {
    std::vector<std::byte> buffer;
    for (size_t i = next.fetch_add(1); i < pieces.size(); i = next.fetch_add(1)) {
      try {
        load_rows(pending_[pieces[i].matrix], pieces[i].row_begin, pieces[i].row_end, buffer);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (first_error == nullptr) first_error = std::current_exception();
        next.store(pieces.size());
      }
    }
  };
  std::vector<std::jthread> helpers;
  const size_t useful = std::min(static_cast<size_t>(std::max(1, threads)), pieces.size());
  for (size_t i = 1; i < useful; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  pending_.clear();
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

void CheckpointWeights::load_quantized(kernels::Weight& weight, const QuantizedMatrix& matrix,
                                       const std::string& module) {
  weight.format = matrix.bits == 4 ? kernels::WeightFormat::kInt4 : kernels::WeightFormat::kInt8;
  weight.scale_format = matrix.scale_dtype == DType::kBF16  ? kernels::ScaleFormat::kBF16
                        : matrix.scale_dtype == DType::kF16 ? kernels::ScaleFormat::kF16
                                                            : kernels::ScaleFormat::kF32;
  weight.group_size = matrix.group_size;
  weight.rows = matrix.rows;
  weight.cols = matrix.cols;
  if (!matrix.zero_points.empty()) weight.offset_format = kernels::OffsetFormat::kZeroPoint;
  const kernels::WeightBytes bytes = kernels::packed_bytes(weight);
  std::byte* data = allocate(bytes.data, module);
  std::byte* scales = allocate(bytes.scales, module);
  kernels::pack_quantized(weight.format, weight.scale_format, weight.group_size, weight.rows,
                          weight.cols, 0, weight.rows, matrix.values.data(), matrix.scales.data(),
                          data, scales);
  weight.data = data;
  weight.scales = scales;
  if (bytes.offsets == 0) return;
  std::byte* offsets = allocate(bytes.offsets, module);
  const std::vector<float> zero_points(matrix.zero_points.begin(), matrix.zero_points.end());
  kernels::pack_offsets(weight.offset_format, weight.group_size, weight.rows, weight.cols, 0,
                        weight.rows, zero_points.data(), offsets);
  weight.offsets = offsets;
}

const float* CheckpointWeights::vector(const std::string& tensor, int64_t length) {
  auto found = vectors_.find(tensor);
  if (found == vectors_.end()) {
    const std::array<int64_t, 1> shape = {length};
    const TensorInfo& info = checkpoint_.require(tensor, shape);
    std::vector<float> values(static_cast<size_t>(read_ ? 0 : length));
    if (read_) values = checkpoint_.read_f32(info);
    found = vectors_.emplace(tensor, std::move(values)).first;
    num_bytes_ += static_cast<uint64_t>(length) * sizeof(float);
    num_parameters_ += length;
  }
  return found->second.data();
}

void check_matrix_shape(const Checkpoint& checkpoint, const std::string& module,
                        const QuantizedMatrix& matrix, int64_t rows, int64_t cols) {
  if (matrix.rows == rows && matrix.cols == cols) return;
  throw Error(ErrorKind::kBadFile,
              checkpoint.path() + ": tensor '" + module + "' is [" + std::to_string(matrix.rows) +
                  ", " + std::to_string(matrix.cols) + "], but the config makes it [" +
                  std::to_string(rows) + ", " + std::to_string(cols) + "]");
}

}  // namespace vitrine::model
