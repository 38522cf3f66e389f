// SPDX-License-Identifier: Apache-2.0
#include "model/adapter_folds.h"

#include <nlohmann/json.hpp>

#include "checkpoint/file_io.h"
#include "checkpoint/safetensors_header.h"
#include "core/json_text.h"

namespace vitrine::model {
namespace {

constexpr const char* kManifestName = "/vitrine_manifest.json";
constexpr uint64_t kMaxManifestBytes = uint64_t{512} << 20;
constexpr std::string_view kWeightSuffix = ".weight";

/// Cuts what a name ends with; returns whether it did.
bool cut_end(std::string& name, std::string_view end) {
  if (!name.ends_with(end)) return false;
  name.resize(name.size() - end.size());
  return true;
}

}  // namespace

AdapterFolds::AdapterFolds(const Checkpoint& checkpoint) : folder_(checkpoint.path()) {
  if (checkpoint.is_gguf()) return;
  const std::string path = folder_ + "/" + kFoldsName;
  const std::string manifest = folder_ + kManifestName;
  if (checkpoint::file_exists(path)) read_file(path);
  if (checkpoint::file_exists(manifest)) read_manifest(manifest);
}

void AdapterFolds::read_file(const std::string& path) {
  const checkpoint::InputFile file(path);
  for (const TensorInfo& info : checkpoint::read_safetensors_header(file, 0)) {
    std::string module = info.name;
    const bool is_rows = cut_end(module, kFoldedRows);
    const bool is_known = (is_rows || cut_end(module, kFoldedColumns)) &&
                          cut_end(module, kWeightSuffix) && info.dtype == DType::kF32 &&
                          info.shape.size() == 1;
    if (!is_known) {
      throw Error(ErrorKind::kBadFile, path + ": tensor " + quote_text(info.name) +
                                           " is no fold; expected F32 factors of a matrix's "
                                           ".weight.rows or .weight.columns");
    }
    std::vector<float> factors(static_cast<size_t>(info.shape[0]));
    file.read(info.file_offset, std::as_writable_bytes(std::span(factors)));
    AdapterFold& fold = folds_[module];
    (is_rows ? fold.rows : fold.columns) = std::move(factors);
  }
}

/// A manifest names what was folded, by factors that the file of folds may lack.
void AdapterFolds::read_manifest(const std::string& path) {
  const auto manifest =
      nlohmann::json::parse(read_text_file(path, kMaxManifestBytes), nullptr, false);
  const auto folded = manifest.is_object() ? manifest.find("folded") : manifest.end();
  if (folded == manifest.end() || !folded->is_array()) return;
  for (const nlohmann::json& name : *folded) {
    if (!name.is_string()) continue;
    std::string module = name.get<std::string>();
    if (cut_end(module, kWeightSuffix) && !folds_.contains(module)) unknown_.insert(module);
  }
}

const AdapterFold* AdapterFolds::find(const std::string& module, const std::string& adapter) const {
  if (unknown_.contains(module)) {
    throw Error(ErrorKind::kUnsupported,
                adapter + ": module " + quote_text(module) + " was folded in " + folder_ +
                    ", and no " + kFoldsName +
                    " there tells how; expected a folder that is quantized anew, or \"" +
                    kMadeForFolded +
                    "\": true in adapter_config.json of an adapter that was trained on this one");
  }
  const auto found = folds_.find(module);
  return found == folds_.end() ? nullptr : &found->second;
}

void fold_half(const AdapterFold& fold, bool is_a, int64_t rows, int64_t cols,
               std::span<float> values, const std::string& adapter) {
  const std::vector<float>& factors = is_a ? fold.columns : fold.rows;
  if (factors.empty()) return;
  const int64_t expected = is_a ? cols : rows;
  if (std::ssize(factors) != expected) {
    throw Error(ErrorKind::kBadFile, adapter + ": the model's " + kFoldsName + " has " +
                                         std::to_string(factors.size()) +
                                         " factors for it; expected " + std::to_string(expected));
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      values[static_cast<size_t>(row * cols + col)] *=
          factors[static_cast<size_t>(is_a ? col : row)];
    }
  }
}

}  // namespace vitrine::model
