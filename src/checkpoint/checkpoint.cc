// SPDX-License-Identifier: Apache-2.0
#include "vitrine/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint_impl.h"
#include "delta_config.h"
#include "fused_experts.h"
#include "gguf_model.h"
#include "gguf_read.h"
#include "mxfp4_modules.h"
#include "rank_tokenizer.h"
#include "safetensors_header.h"
#include "side_config.h"
#include "stacked_modules.h"
#include "strided_read.h"
#include "text.h"
#include "wrapper.h"

namespace vitrine {
namespace {

using checkpoint::throw_bad_file;

constexpr uint64_t kMaxConfigBytes = 4u << 20;
constexpr uint64_t kMaxIndexBytes = 32u << 20;
constexpr uint64_t kMaxTokenizerBytes = 512u << 20;

/// Shards are plain names in the folder. A link may lead out of it only into the `blobs` folder of
/// a Hugging Face cache, whose snapshot folders hold nothing but links.
void check_shard_path(const std::string& folder, const std::string& shard,
                      const std::string& index_path) {
  namespace fs = std::filesystem;
  const std::string field = index_path + ": weight_map names the file " + quote_text(shard);
  if (shard.empty() || shard == "." || shard == ".." ||
      shard.find_first_of(std::string("/\\\0", 3)) != std::string::npos ||
      !shard.ends_with(".safetensors")) {
    throw_bad_file(field + "; expected the plain name of a .safetensors file in the same folder");
  }
  const fs::path path = fs::path(folder) / shard;
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (error) throw_bad_file(field + ", which is missing; expected it in " + folder);
  const fs::path root = fs::canonical(folder, error);
  const fs::path blobs = root.parent_path().filename() == "snapshots"
                             ? root.parent_path().parent_path() / "blobs"
                             : fs::path();
  if (target.parent_path() != root && (blobs.empty() || target.parent_path() != blobs)) {
    throw_bad_file(field + ", a link that leads out of the folder; expected a file in " + folder);
  }
}

/// tensor name -> shard, of model.safetensors.index.json.
std::map<std::string, std::string> read_index(const std::string& folder,
                                              const std::string& index_path) {
  const nlohmann::json index =
      parse_json_object(read_text_file(index_path, kMaxIndexBytes), index_path);
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    throw_bad_file(index_path + ": field 'weight_map' is " +
                   (weight_map == index.end() ? "missing" : found_text(*weight_map)) +
                   "; expected an object from tensor to file");
  }
  std::map<std::string, std::string> shard_of_tensor;
  std::set<std::string> checked;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string()) {
      throw_bad_file(index_path + ": weight_map of " + quote_text(tensor) + " is " +
                     found_text(shard) + "; expected a file name");
    }
    const auto& name = shard.get_ref<const std::string&>();
    if (checked.insert(name).second) check_shard_path(folder, name, index_path);
    shard_of_tensor.emplace(tensor, name);
  }
  return shard_of_tensor;
}

/// Opens the weight files and reads their headers into `impl`.
void open_weights(const std::string& folder, Checkpoint::Impl& impl) {
  const std::string single_path = folder + "/model.safetensors";
  const std::string index_path = folder + "/model.safetensors.index.json";
  std::map<std::string, std::string> shard_of_tensor;
  if (impl.quantization) impl.weight_paths = impl.quantization->find_weight_files(folder);
  if (!impl.weight_paths.empty()) {
    // Named by the writer of the quantized model.
  } else if (checkpoint::file_exists(single_path)) {
    impl.weight_paths = {single_path};
  } else if (checkpoint::file_exists(index_path)) {
    impl.index_path = index_path;
    shard_of_tensor = read_index(folder, index_path);
    for (const auto& [tensor, shard] : shard_of_tensor) {
      impl.weight_paths.push_back(folder + "/" + shard);
    }
    std::ranges::sort(impl.weight_paths);
    const auto repeated = std::ranges::unique(impl.weight_paths);
    impl.weight_paths.erase(repeated.begin(), repeated.end());
  } else {
    throw_bad_file(folder +
                   ": holds neither model.safetensors nor model.safetensors.index.json; expected a "
                   "Hugging Face model folder in safetensors format");
  }

  std::map<std::string, int> file_of_tensor;
  for (size_t i = 0; i < impl.weight_paths.size(); ++i) {
    impl.files.emplace_back(impl.weight_paths[i]);
    auto tensors = checkpoint::read_safetensors_header(impl.files.back(), static_cast<int>(i));
    for (TensorInfo& info : tensors) {
      const auto [other, is_new] = file_of_tensor.emplace(info.name, static_cast<int>(i));
      if (!is_new) {
        throw_bad_file(impl.weight_paths[i] + ": holds the tensor " + quote_text(info.name) +
                       " that " + impl.weight_paths[static_cast<size_t>(other->second)] +
                       " holds too; expected it once");
      }
      impl.tensors.push_back(std::move(info));
    }
  }
  for (const auto& [tensor, shard] : shard_of_tensor) {
    const auto found = file_of_tensor.find(tensor);
    const std::string path = folder + "/" + shard;
    if (found == file_of_tensor.end() ||
        impl.weight_paths[static_cast<size_t>(found->second)] != path) {
      throw_bad_file(index_path + ": weight_map places the tensor " + quote_text(tensor) + " in " +
                     quote_text(shard) + ", which doesn't hold it; expected an index that fits");
    }
  }
}

std::string shape_of(std::span<const int64_t> shape) {
  return checkpoint::shape_text(std::vector<int64_t>(shape.begin(), shape.end()));
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& folder) {
  if (folder.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "a model's path is empty; expected a checkpoint's folder or a .gguf file");
  }
  std::error_code status;
  const bool is_there = std::filesystem::exists(folder, status);
  if (!is_there && !status) {
    throw Error(
        ErrorKind::kInvalidArgument,
        "model '" + folder +
            "' is not there; expected a folder with config.json and model.safetensors, or a "
            ".gguf file");
  }
  if (is_there && !std::filesystem::is_directory(folder, status)) {
    return Checkpoint(checkpoint::open_gguf(folder));
  }
  auto impl = std::make_shared<Impl>();
  impl->path = folder;
  impl->config_path = folder + "/config.json";
  if (!checkpoint::file_exists(impl->config_path)) {
    throw_bad_file(impl->config_path +
                   ": is not there; expected a Hugging Face model's folder, which has one, or a "
                   "GGUF file");
  }
  impl->config_json = read_text_file(impl->config_path, kMaxConfigBytes);
  const nlohmann::json config = parse_json_object(impl->config_json, impl->config_path);
  const checkpoint::Fields fields(config, impl->config_path);
  if (const auto quantization = checkpoint::quantization_fields(fields)) {
    impl->quantization = checkpoint::read_quantization(*quantization);
  } else {
    impl->quantization = checkpoint::read_side_config(folder);
  }
  const std::string generation_path = folder + "/generation_config.json";
  if (checkpoint::file_exists(generation_path)) {
    impl->generation_config_json = read_text_file(generation_path, kMaxConfigBytes);
    parse_json_object(impl->generation_config_json, generation_path);
  }
  const std::string tokenizer_path = folder + "/tokenizer.json";
  if (checkpoint::file_exists(tokenizer_path)) {
    impl->tokenizer_path = tokenizer_path;
  } else {
    impl->rank_tokenizer_path = checkpoint::find_rank_tokenizer(folder);
  }

  open_weights(folder, *impl);
  checkpoint::rename_text_tensors(impl->tensors, impl->weight_paths);
  checkpoint::StackedModules stacked = checkpoint::split_stacked_modules(
      std::move(impl->tensors), impl->quantization.get(), impl->files);
  impl->tensors = std::move(stacked.tensors);
  impl->stacked_columns = std::move(stacked.columns);
  impl->tensors = checkpoint::split_fused_experts(std::move(impl->tensors), impl->weight_paths);
  if (impl->quantization) {
    impl->tensors = checkpoint::place_mxfp4_modules(std::move(impl->tensors), *impl->quantization,
                                                    impl->weight_paths);
  }
  std::ranges::sort(impl->tensors, {}, &TensorInfo::name);
  const auto repeated = std::ranges::adjacent_find(impl->tensors, {}, &TensorInfo::name);
  if (repeated != impl->tensors.end()) {  // only a fused tensor can bring a name a second time
    const TensorInfo& fused = repeated->fused_from.empty() ? *std::next(repeated) : *repeated;
    throw_bad_file(impl->weight_paths[static_cast<size_t>(fused.file_index)] +
                   ": the fused tensor " + quote_text(fused.fused_from) + " holds " +
                   quote_text(fused.name) + ", which stands elsewhere too; expected it once");
  }
  return Checkpoint(std::move(impl));
}

Checkpoint::Checkpoint(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(const Checkpoint&) = default;
Checkpoint& Checkpoint::operator=(const Checkpoint&) = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const std::string& Checkpoint::path() const { return impl_->path; }
bool Checkpoint::is_gguf() const { return impl_->gguf_metadata.has_value(); }
const std::string& Checkpoint::config_json() const { return impl_->config_json; }
const std::string& Checkpoint::config_name() const { return impl_->config_path; }
const std::string& Checkpoint::generation_config_json() const {
  return impl_->generation_config_json;
}
const std::string& Checkpoint::tokenizer_path() const { return impl_->tokenizer_path; }
std::string Checkpoint::tokenizer_json() const {
  if (impl_->gguf_metadata) return checkpoint::gguf_tokenizer_json(*impl_->gguf_metadata);
  if (!impl_->rank_tokenizer_path.empty()) {
    return checkpoint::rank_tokenizer_json(impl_->rank_tokenizer_path);
  }
  if (impl_->tokenizer_path.empty()) return {};
  return read_text_file(impl_->tokenizer_path, kMaxTokenizerBytes);
}
std::string Checkpoint::tokenizer_name() const {
  if (is_gguf()) return impl_->path + " (tokenizer)";
  return impl_->rank_tokenizer_path.empty() ? impl_->tokenizer_path : impl_->rank_tokenizer_path;
}
const std::vector<std::string>& Checkpoint::weight_files() const { return impl_->weight_paths; }
const std::vector<TensorInfo>& Checkpoint::tensors() const { return impl_->tensors; }

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      impl_->tensors, name, {},
      [](const TensorInfo& info) -> std::string_view { return info.name; });
  return found == impl_->tensors.end() || found->name != name ? nullptr : &*found;
}

const TensorInfo& Checkpoint::require(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) {
    throw_bad_file(impl_->path + ": tensor " + quote_text(name_in_file(name)) +
                   " is missing; expected it in the weight files (does the config fit them?)");
  }
  return *info;
}

const TensorInfo& Checkpoint::require(std::string_view name, std::span<const int64_t> shape) const {
  const TensorInfo& info = require(name);
  if (!std::ranges::equal(info.shape, shape)) {
    throw_bad_file(impl_->weight_paths[static_cast<size_t>(info.file_index)] + ": tensor " +
                   quote_text(name_in_file(name)) + " has shape " + shape_of(info.shape) +
                   "; expected " + shape_of(shape) + " from " +
                   (is_gguf() ? "the metadata" : "config.json"));
  }
  return info;
}

const TensorInfo& Checkpoint::require_vector(std::string_view name, int64_t length) const {
  const int64_t shapes[] = {1, length};
  const TensorInfo* info = find(name);
  const bool is_row = info != nullptr && std::ranges::equal(info->shape, shapes);
  return is_row ? *info : require(name, std::span(shapes).last(1));
}

void Checkpoint::read(const TensorInfo& info, std::span<std::byte> out) const {
  if (out.size() != info.num_bytes) {
    throw Error(ErrorKind::kInvalidArgument, "buffer for tensor " + quote_text(info.name) +
                                                 " has " + std::to_string(out.size()) +
                                                 " bytes; expected " +
                                                 std::to_string(info.num_bytes));
  }
  read(info, 0, out);
}

void Checkpoint::read(const TensorInfo& info, uint64_t byte_offset,
                      std::span<std::byte> out) const {
  if (byte_offset > info.num_bytes || out.size() > info.num_bytes - byte_offset ||
      info.file_index < 0 || static_cast<size_t>(info.file_index) >= impl_->files.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                "read of " + std::to_string(out.size()) + " bytes from byte " +
                    std::to_string(byte_offset) + " of tensor " + quote_text(info.name) +
                    " is out of range; expected to stay within " + std::to_string(info.num_bytes));
  }
  const checkpoint::InputFile& file = impl_->files[static_cast<size_t>(info.file_index)];
  if (checkpoint::is_strided(info)) {
    return checkpoint::read_strided(impl_->files, info, byte_offset, out);
  }
  if (checkpoint::is_transformed(info)) {
    return checkpoint::read_transformed(file, info, byte_offset, out);
  }
  file.read(info.file_offset + byte_offset, out);
}

void Checkpoint::read_blocks(const TensorInfo& info, int64_t row_begin,
                             std::span<std::byte> out) const {
  uint64_t row_bytes = 0;
  if (info.block_format != nullptr && !info.shape.empty()) {
    row_bytes = static_cast<uint64_t>(info.shape.back() / info.block_format->block_size *
                                      info.block_format->block_bytes);
  }
  if (row_bytes == 0 || row_begin < 0 || out.size() % row_bytes != 0 ||
      static_cast<uint64_t>(row_begin) > info.stored_bytes / row_bytes ||
      out.size() > info.stored_bytes - static_cast<uint64_t>(row_begin) * row_bytes) {
    throw Error(ErrorKind::kInvalidArgument,
                "read of " + std::to_string(out.size()) + " bytes from row " +
                    std::to_string(row_begin) + " of tensor " + quote_text(info.name) +
                    " is out of range; expected whole rows of its " +
                    std::to_string(info.stored_bytes) + " bytes of blocks");
  }
  if (checkpoint::is_strided(info)) {
    return checkpoint::read_strided_blocks(impl_->files, info, row_begin, out);
  }
  checkpoint::read_block_rows(impl_->files[static_cast<size_t>(info.file_index)], info, row_begin,
                              out);
}

void Checkpoint::read_ahead(const TensorInfo& info) const noexcept {
  const auto file = static_cast<size_t>(info.file_index);
  if (info.file_index < 0 || file >= impl_->files.size() || checkpoint::is_strided(info)) return;
  impl_->files[file].read_ahead(info.file_offset, info.stored_bytes);
}

std::span<const std::byte> Checkpoint::map(const TensorInfo& info, bool any_alignment) const {
  if (info.file_index < 0 || static_cast<size_t>(info.file_index) >= impl_->files.size()) {
    throw Error(ErrorKind::kInvalidArgument, "tensor " + quote_text(info.name) +
                                                 " is of another checkpoint; expected one of " +
                                                 impl_->path);
  }
  const bool has_blocks = info.block_format != nullptr;
  const bool is_aligned =
      has_blocks || any_alignment || info.file_offset % dtype_size(info.dtype) == 0;
  if (info.interleaved_head_rows > 0 || checkpoint::is_strided(info) || !is_aligned) return {};
  const std::span<const std::byte> file = impl_->files[static_cast<size_t>(info.file_index)].map();
  return file.subspan(static_cast<size_t>(info.file_offset),
                      static_cast<size_t>(has_blocks ? info.stored_bytes : info.num_bytes));
}

void Checkpoint::check_unchanged() const {
  for (const checkpoint::InputFile& file : impl_->files) file.check_unchanged();
}

std::string Checkpoint::name_in_file(std::string_view tensor) const {
  if (!impl_->gguf_metadata) return std::string(tensor);
  return checkpoint::gguf_tensor_name(*impl_->gguf_architecture, tensor);
}

std::vector<float> Checkpoint::read_f32(std::string_view name) const {
  return read_f32(require(name));
}

void Checkpoint::require_floats(const TensorInfo& info) const {
  if (info.dtype == DType::kF32 || info.dtype == DType::kF16 || info.dtype == DType::kBF16) return;
  checkpoint::throw_unsupported(impl_->weight_paths[static_cast<size_t>(info.file_index)] +
                                ": tensor " + quote_text(name_in_file(info.name)) + " has dtype " +
                                std::string(dtype_name(info.dtype)) +
                                "; expected F32, F16 or BF16");
}

std::vector<float> Checkpoint::read_f32(const TensorInfo& info) const {
  require_floats(info);
  const size_t element_size = dtype_size(info.dtype);
  const size_t count = static_cast<size_t>(info.num_bytes) / element_size;
  std::vector<float> values(count);
  if (info.dtype == DType::kF32) {
    read(info, std::as_writable_bytes(std::span(values)));
    return values;
  }
  std::vector<std::byte> block(std::min<size_t>(size_t{1} << 20, info.num_bytes));
  for (size_t done = 0; done < count;) {
    const size_t next = std::min(count - done, block.size() / element_size);
    read(info, done * element_size, std::span(block.data(), next * element_size));
    widen_to_f32(block.data(), info.dtype, static_cast<int64_t>(next), values.data() + done);
    done += next;
  }
  return values;
}

}  // namespace vitrine
