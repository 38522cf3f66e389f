// SPDX-License-Identifier: Apache-2.0
// Private to the room: what an open checkpoint holds.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "file_io.h"
#include "gguf_header.h"
#include "quantization_config.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

namespace checkpoint {
struct GgufArchitecture;
}

struct Checkpoint::Impl {
  std::string path;
  std::string config_path;
  std::string index_path;  ///< empty where there is one weight file
  std::string config_json;
  std::string generation_config_json;
  std::string tokenizer_path;
  std::string rank_tokenizer_path;           ///< the file that stands in for a tokenizer.json
  std::vector<std::string> weight_paths;     ///< in order of name
  std::vector<checkpoint::InputFile> files;  ///< those of weight_paths
  std::vector<TensorInfo> tensors;           ///< in order of name
  std::unique_ptr<const checkpoint::QuantizationConfig> quantization;  ///< null: none
  std::unordered_map<std::string, int64_t> stacked_columns;         ///< as StackedModules::columns
  std::optional<checkpoint::GgufMetadata> gguf_metadata;            ///< of a GGUF file
  const checkpoint::GgufArchitecture* gguf_architecture = nullptr;  ///< of a GGUF file
};

namespace checkpoint {
/// Opens a GGUF file. Throws as Checkpoint::open.
std::shared_ptr<Checkpoint::Impl> open_gguf(const std::string& path);
}  // namespace checkpoint

}  // namespace vitrine
