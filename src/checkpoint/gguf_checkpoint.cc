// SPDX-License-Identifier: Apache-2.0
// Opening a GGUF file, and the others of a split one, as a checkpoint.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "checkpoint_impl.h"
#include "gguf_model.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr int64_t kMaxSplits = 99999;  // five digits in the files' names
constexpr std::string_view kRopeFactors = "rope_freqs.weight";

std::string split_suffix(int64_t number, int64_t count) {
  char text[64];
  std::snprintf(text, sizeof(text), "-%05lld-of-%05lld.gguf", static_cast<long long>(number + 1),
                static_cast<long long>(count));
  return text;
}

/// Paths of all files of a split model, the first one given.
std::vector<std::string> split_paths(const std::string& path, const GgufMetadata& metadata) {
  const int64_t count = metadata.integer("split.count", 0, kMaxSplits).value_or(0);
  if (count <= 1) return {path};
  const int64_t number = metadata.required_integer("split.no", 0, count - 1);
  const std::string suffix = split_suffix(number, count);
  if (!path.ends_with(suffix)) {
    throw_bad_file(path + ": is file " + std::to_string(number + 1) + " of " +
                   std::to_string(count) + " of a split model; expected a name that ends with " +
                   suffix);
  }
  const std::string stem = path.substr(0, path.size() - suffix.size());
  if (number != 0) {
    throw_bad_file(path + ": is file " + std::to_string(number + 1) + " of " +
                   std::to_string(count) + " of a split model; expected the first, " + stem +
                   split_suffix(0, count));
  }
  std::vector<std::string> paths;
  for (int64_t i = 0; i < count; ++i) {
    paths.push_back(stem + split_suffix(i, count));
    if (!file_exists(paths.back())) {
      throw_bad_file(paths.back() + ": is not there; expected all " + std::to_string(count) +
                     " files of the split model beside " + path);
    }
  }
  return paths;
}

void check_split(const GgufMetadata& metadata, int64_t number, int64_t count) {
  if (metadata.required_integer("split.no", 0, kMaxSplits) != number) {
    metadata.bad("split.no", std::to_string(number) + ", as the file's name says");
  }
  if (metadata.required_integer("split.count", 0, kMaxSplits) != count) {
    metadata.bad("split.count", std::to_string(count) + ", as in the first file");
  }
}

/// Opens the files and reads their headers; tensors keep the files' names. Returns the metadata of
/// the first, which holds everything but the splits' own numbers.
GgufMetadata open_files(const std::string& path, Checkpoint::Impl& impl) {
  impl.files.emplace_back(path);
  GgufHeader first = read_gguf_header(impl.files.front());
  impl.weight_paths = split_paths(path, first.metadata);
  impl.tensors = std::move(first.tensors);
  const auto count = static_cast<int64_t>(impl.weight_paths.size());
  for (int64_t i = 1; i < count; ++i) {
    impl.files.emplace_back(impl.weight_paths[static_cast<size_t>(i)]);
    GgufHeader header = read_gguf_header(impl.files.back());
    check_split(header.metadata, i, count);
    for (TensorInfo& info : header.tensors) {
      info.file_index = static_cast<int>(i);
      impl.tensors.push_back(std::move(info));
    }
  }
  if (count > 1) {
    const auto total = first.metadata.integer("split.tensors.count", 0, INT32_MAX);
    if (total && *total != static_cast<int64_t>(impl.tensors.size())) {
      first.metadata.bad("split.tensors.count",
                         std::to_string(impl.tensors.size()) + ", which the files hold together");
    }
  }
  return std::move(first.metadata);
}

/// Takes `rope_freqs.weight` out of the tensors; its values, or nothing where there is none.
std::vector<float> take_rope_factors(Checkpoint::Impl& impl) {
  const auto found = std::ranges::find(impl.tensors, kRopeFactors, &TensorInfo::name);
  if (found == impl.tensors.end()) return {};
  const TensorInfo info = *found;
  impl.tensors.erase(found);
  const InputFile& file = impl.files[static_cast<size_t>(info.file_index)];
  constexpr int64_t kMaxFactors = 1 << 20;
  if (info.dtype != DType::kF32 || info.block_format != nullptr || info.shape.size() != 1 ||
      info.shape[0] > kMaxFactors) {
    throw_bad_file(file.path() + ": tensor " + quote_text(kRopeFactors) + " is " +
                   std::string(info.storage_name()) + " " + shape_text(info.shape) +
                   "; expected F32 [half a head]");
  }
  std::vector<float> factors(static_cast<size_t>(info.shape[0]));
  file.read(info.file_offset, std::as_writable_bytes(std::span(factors)));
  return factors;
}

}  // namespace

std::shared_ptr<Checkpoint::Impl> open_gguf(const std::string& path) {
  auto impl = std::make_shared<Checkpoint::Impl>();
  impl->path = path;
  impl->config_path = path + " (metadata)";
  GgufMetadata metadata = open_files(path, *impl);
  const GgufArchitecture& architecture = find_gguf_architecture(metadata, impl->tensors);
  impl->gguf_architecture = &architecture;
  const Multipliers multipliers = take_multipliers(impl->files, impl->tensors);
  impl->tensors = map_gguf_tensors(architecture, metadata, std::move(impl->tensors), multipliers,
                                   impl->weight_paths);
  const std::vector<float> rope_factors = take_rope_factors(*impl);
  std::ranges::sort(impl->tensors, {}, &TensorInfo::name);
  const auto repeated = std::ranges::adjacent_find(impl->tensors, {}, &TensorInfo::name);
  if (repeated != impl->tensors.end()) {
    throw_bad_file(impl->weight_paths[static_cast<size_t>(repeated->file_index)] + ": holds " +
                   quote_text(gguf_tensor_name(architecture, repeated->name)) +
                   " twice (two files, or stacked and single experts); expected it once");
  }
  impl->config_json = gguf_config_json({architecture, metadata, impl->tensors, rope_factors});
  impl->generation_config_json = gguf_generation_config_json(metadata);
  impl->gguf_metadata.emplace(std::move(metadata));
  return impl;
}

}  // namespace vitrine::checkpoint
