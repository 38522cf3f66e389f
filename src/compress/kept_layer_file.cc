// SPDX-License-Identifier: Apache-2.0
#include "kept_layer_file.h"

#include <algorithm>
#include <cstring>

#include "stored_form.h"

namespace vitrine::compress {
namespace {

constexpr std::string_view kLayerMagic = "VITRINE-LAYER-1\n";
constexpr uint64_t kHashedBytes = 1u << 20;  // at once

/// What stands before a matrix's numbers, behind its name.
struct MatrixHead {
  int64_t rows = 0, cols = 0;
  int32_t number_format = 0, bits = 0, group_size = 0, scale_dtype = 0;
  uint64_t value_bytes = 0, scales = 0, zero_points = 0;
  int64_t rows_seen = 0;
  double shrinkage = 0, loss = 0, damping = 0, mean_error = 0, worst_error = 0;
  float input_range = 0, divisor = 0;
};

/// The last bytes of a file.
struct LayerFoot {
  uint64_t matrices = 0, folds = 0, folds_at = 0;
  Sha256Digest digest{};
};
constexpr size_t kHashedFoot = offsetof(LayerFoot, digest);

std::span<const uint8_t> hashable(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

/// Gathers what is written at once.
class LayerBytes {
 public:
  template <typename Value>
  void put(const Value& value) {
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void put_name(const std::string& name) {
    put(static_cast<uint64_t>(name.size()));
    put_bytes(std::as_bytes(std::span(name)));
  }
  std::span<const std::byte> all() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Whether values are integers of fewer bits than a byte.
bool has_few_bits(const QuantizedMatrix& matrix) {
  return matrix.number_format == NumberFormat::kInteger && matrix.bits < 8;
}

/// Whether scales are kept in their dtype, and as float32 otherwise.
bool has_narrow_scales(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

uint64_t bytes_of_bits(uint64_t count, int bits) {
  return (count * static_cast<uint64_t>(bits) + 7) / 8;
}

/// Values from -2^(bits - 1) on, one behind the other, the lowest bits first.
std::vector<std::byte> pack_values(std::span<const int8_t> values, int bits) {
  std::vector<std::byte> packed;
  packed.reserve(bytes_of_bits(values.size(), bits));
  uint32_t waiting = 0;
  int count = 0;
  for (const int8_t value : values) {
    waiting |= static_cast<uint32_t>(value + (1 << (bits - 1))) << count;
    for (count += bits; count >= 8; count -= 8, waiting >>= 8) {
      packed.push_back(static_cast<std::byte>(waiting & 0xff));
    }
  }
  if (count > 0) packed.push_back(static_cast<std::byte>(waiting));
  return packed;
}

std::vector<int8_t> unpack_values(std::span<const std::byte> packed, size_t size, int bits) {
  std::vector<int8_t> values(size);
  uint32_t waiting = 0;
  int count = 0;
  size_t next = 0;
  for (int8_t& value : values) {
    for (; count < bits; count += 8) waiting |= static_cast<uint32_t>(packed[next++]) << count;
    value = static_cast<int8_t>(static_cast<int>(waiting & ((1u << bits) - 1)) - (1 << (bits - 1)));
    waiting >>= bits;
    count -= bits;
  }
  return values;
}

}  // namespace

KeptLayerWriter::KeptLayerWriter(const std::string& path, const std::string& binding)
    : file_(path) {
  hash_.update(hashable(std::as_bytes(std::span(binding))));
  write(std::as_bytes(std::span(kLayerMagic)));
}

void KeptLayerWriter::write(std::span<const std::byte> bytes) {
  file_.write(size_, bytes);
  hash_.update(hashable(bytes));
  size_ += bytes.size();
}

void KeptLayerWriter::add(const CalibratedMatrix& calibrated) {
  const QuantizedMatrix& matrix = calibrated.matrix;
  const std::span<const std::byte> raw = std::as_bytes(std::span(matrix.values));
  const std::vector<std::byte> values = has_few_bits(matrix)
                                            ? pack_values(matrix.values, matrix.bits)
                                            : std::vector(raw.begin(), raw.end());
  const std::vector<std::byte> scales = narrow(
      matrix.scales, has_narrow_scales(matrix.scale_dtype) ? matrix.scale_dtype : DType::kF32);
  LayerBytes bytes;
  bytes.put_name(calibrated.planned->module);
  bytes.put(MatrixHead{.rows = matrix.rows,
                       .cols = matrix.cols,
                       .number_format = static_cast<int32_t>(matrix.number_format),
                       .bits = matrix.bits,
                       .group_size = matrix.group_size,
                       .scale_dtype = static_cast<int32_t>(matrix.scale_dtype),
                       .value_bytes = values.size(),
                       .scales = matrix.scales.size(),
                       .zero_points = matrix.zero_points.size(),
                       .rows_seen = calibrated.facts.rows_seen,
                       .shrinkage = calibrated.facts.shrinkage,
                       .loss = calibrated.facts.loss,
                       .damping = calibrated.facts.damping,
                       .mean_error = calibrated.error.mean_absolute,
                       .worst_error = calibrated.error.worst_absolute,
                       .input_range = calibrated.facts.input_range,
                       .divisor = matrix.divisor});
  bytes.put_bytes(values);
  bytes.put_bytes(scales);
  bytes.put_bytes(std::as_bytes(std::span(matrix.zero_points)));
  write(bytes.all());
  ++matrices_;
}

void KeptLayerWriter::finish(const Folds& folds, const std::vector<std::string>& tensors) {
  LayerFoot foot{.matrices = matrices_, .folds = tensors.size(), .folds_at = size_};
  for (const std::string& tensor : tensors) {
    const Fold& fold = *folds.find(tensor);
    LayerBytes bytes;
    bytes.put_name(tensor);
    bytes.put(static_cast<uint64_t>(fold.adds_one ? 1 : 0));
    for (const std::vector<float>* factors : {&fold.rows, &fold.columns}) {
      bytes.put(static_cast<uint64_t>(factors->size()));
      bytes.put_bytes(std::as_bytes(std::span(*factors)));
    }
    write(bytes.all());
  }
  write(std::as_bytes(std::span(&foot, 1)).first(kHashedFoot));
  foot.digest = hash_.finish();
  file_.write(size_, std::as_bytes(std::span(foot.digest)));
  file_.commit();
}

std::unique_ptr<KeptLayerReader> KeptLayerReader::open(const std::string& path,
                                                       const std::string& binding) {
  if (!checkpoint::file_exists(path)) return nullptr;
  std::unique_ptr<KeptLayerReader> reader(new KeptLayerReader(path));
  const uint64_t size = reader->file_.size();
  if (size < kLayerMagic.size() + sizeof(LayerFoot)) return nullptr;
  LayerFoot foot;
  reader->file_.read(size - sizeof(foot), std::as_writable_bytes(std::span(&foot, 1)));
  Sha256 hash;
  hash.update(hashable(std::as_bytes(std::span(binding))));
  std::vector<std::byte> block;
  const uint64_t hashed = size - foot.digest.size();
  for (uint64_t at = 0; at < hashed; at += block.size()) {
    block.resize(std::min(kHashedBytes, hashed - at));
    reader->file_.read(at, block);
    hash.update(hashable(block));
  }
  if (hash.finish() != foot.digest) return nullptr;
  reader->at_ = kLayerMagic.size();
  reader->end_ = size - sizeof(foot);
  reader->matrices_ = foot.matrices;
  reader->folds_ = foot.folds;
  reader->folds_at_ = foot.folds_at;
  return reader;
}

void KeptLayerReader::refuse() const {
  throw Error(ErrorKind::kBadFile, file_.path() +
                                       ": a kept layer holds what no run writes; expected what its "
                                       "hash says: remove its folder and begin anew");
}

std::vector<std::byte> KeptLayerReader::take(uint64_t size) {
  if (at_ > end_ || size > end_ - at_) refuse();
  std::vector<std::byte> bytes(size);
  file_.read(at_, bytes);
  at_ += size;
  return bytes;
}

template <typename Value>
std::vector<Value> KeptLayerReader::take_values(uint64_t count) {
  if (count > end_ / sizeof(Value)) refuse();
  const std::vector<std::byte> bytes = take(count * sizeof(Value));
  std::vector<Value> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

template <typename Value>
Value KeptLayerReader::take_value() {
  return take_values<Value>(1).front();
}

std::string KeptLayerReader::take_name() {
  const std::vector<char> letters = take_values<char>(take_value<uint64_t>());
  return {letters.begin(), letters.end()};
}

void KeptLayerReader::read_folds(const Checkpoint& source, Folds& folds) {
  at_ = folds_at_;
  for (uint64_t i = 0; i < folds_; ++i) {
    const std::string tensor = take_name();
    Fold fold;
    fold.adds_one = take_value<uint64_t>() != 0;
    fold.rows = take_values<float>(take_value<uint64_t>());
    fold.columns = take_values<float>(take_value<uint64_t>());
    if (!fits_tensor(fold, source.find(tensor))) refuse();
    folds.set(tensor, std::move(fold));
  }
}

void KeptLayerReader::read_matrices(
    const std::function<const PlannedTensor*(const std::string&)>& find,
    const std::function<void(CalibratedMatrix&&)>& visit) {
  at_ = kLayerMagic.size();
  for (uint64_t i = 0; i < matrices_; ++i) visit(take_matrix(find));
}

CalibratedMatrix KeptLayerReader::take_matrix(
    const std::function<const PlannedTensor*(const std::string&)>& find) {
  CalibratedMatrix calibrated;
  calibrated.planned = find(take_name());
  const auto head = take_value<MatrixHead>();
  if (calibrated.planned == nullptr) refuse();
  const std::vector<int64_t>& shape = calibrated.planned->source->shape;
  const QuantMethod& method = *calibrated.planned->method;
  const bool fits = head.rows == shape[0] && head.cols == shape[1] && head.bits == method.bits &&
                    head.number_format == static_cast<int32_t>(method.number_format) &&
                    head.group_size > 0;
  if (!fits) refuse();
  QuantizedMatrix& matrix = calibrated.matrix;
  matrix.number_format = method.number_format;
  matrix.bits = head.bits;
  matrix.group_size = head.group_size;
  matrix.rows = head.rows;
  matrix.cols = head.cols;
  matrix.scale_dtype = static_cast<DType>(head.scale_dtype);
  matrix.divisor = head.divisor;
  const auto size = static_cast<uint64_t>(head.rows * head.cols);
  if (head.value_bytes != (has_few_bits(matrix) ? bytes_of_bits(size, head.bits) : size)) refuse();
  const std::vector<std::byte> values = take(head.value_bytes);
  if (has_few_bits(matrix)) {
    matrix.values = unpack_values(values, size, head.bits);
  } else {
    matrix.values.resize(size);
    if (size > 0) std::memcpy(matrix.values.data(), values.data(), size);
  }
  if (has_narrow_scales(matrix.scale_dtype)) {
    const auto halves = take_values<uint16_t>(head.scales);
    matrix.scales.resize(head.scales);
    widen_to_f32(halves.data(), matrix.scale_dtype, std::ssize(halves), matrix.scales.data());
  } else {
    matrix.scales = take_values<float>(head.scales);
  }
  matrix.zero_points = take_values<int8_t>(head.zero_points);
  calibrated.facts = {.rows_seen = head.rows_seen,
                      .shrinkage = head.shrinkage,
                      .loss = head.loss,
                      .damping = head.damping,
                      .input_range = head.input_range};
  calibrated.error = {head.mean_error, head.worst_error};
  return calibrated;
}

}  // namespace vitrine::compress
