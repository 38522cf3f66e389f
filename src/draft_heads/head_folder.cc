// SPDX-License-Identifier: Apache-2.0
#include "draft_heads/head_folder.h"

#include <algorithm>
#include <filesystem>

#include "core/json_text.h"

namespace vitrine::draft_heads {

namespace {

namespace fs = std::filesystem;

constexpr const char* kConverter = "scripts/convert_heads";

/// The name of a pickle in the folder; empty where safetensors files stand there, or no pickle.
std::string find_pickle(const std::string& folder) {
  std::string pickle;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string extension = entry->path().extension().string();
    if (extension == ".safetensors") return {};
    if (extension != ".pt" && extension != ".bin" && extension != ".pth") continue;
    const std::string name = entry->path().filename().string();
    if (pickle.empty() || name < pickle) pickle = name;
  }
  return pickle;
}

}  // namespace

Checkpoint open_heads(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw Error(ErrorKind::kInvalidArgument,
                "draft heads " + quote_text(folder) +
                    " are no folder; expected one with config.json and model.safetensors");
  }
  if (const std::string pickle = find_pickle(folder); !pickle.empty()) {
    throw Error(
        ErrorKind::kUnsupported,
        folder + "/" + pickle +
            " is a pickle, which runs code when it is read; expected model.safetensors, as `" +
            kConverter + " " + folder + " NEW_FOLDER` writes it");
  }
  return Checkpoint::open(folder);
}

bool has_matrix(const Checkpoint& heads, const std::string& module) {
  return heads.find(module + ".weight") != nullptr || heads.find_quantized(module) != nullptr;
}

std::string extents_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

std::vector<int32_t> read_tokens(const Checkpoint& heads, std::string_view name, int64_t count,
                                 int64_t vocabulary, bool offsets) {
  const std::vector<int64_t> shape = {count};
  const TensorInfo& info = heads.require(name, shape);
  const std::string place = heads.path() + ": tensor " + quote_text(name);
  if (info.dtype != DType::kI64) {
    throw Error(ErrorKind::kBadFile,
                place + " is " + std::string(info.storage_name()) + "; expected I64");
  }
  std::vector<int64_t> stored(static_cast<size_t>(count));
  heads.read(info, std::as_writable_bytes(std::span(stored)));
  std::vector<int32_t> tokens(stored.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    const auto own = offsets ? static_cast<int64_t>(i) : 0;
    // Compared so that no sum overflows.
    if (stored[i] < -own || stored[i] >= vocabulary - own) {
      throw Error(ErrorKind::kBadFile,
                  place + " holds " + std::to_string(stored[i]) + " at " + std::to_string(i) +
                      "; expected " + (offsets ? "offsets to tokens" : "tokens") + " from 0 to " +
                      std::to_string(vocabulary - 1) + ", which the model has");
    }
    tokens[i] = static_cast<int32_t>(own + stored[i]);
  }
  return tokens;
}

}  // namespace vitrine::draft_heads
