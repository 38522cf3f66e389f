// SPDX-License-Identifier: Apache-2.0
// Oracles whose windows are others and whose context is long enough for many blocks.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {

/// A copy of an oracle that says another window.
class WindowFolder {
 public:
  explicit WindowFolder(const std::string& oracle, const nlohmann::json& changes) {
    const std::string source = oracle_folder(oracle);
    std::ifstream file(source + "/config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    config["max_position_embeddings"] = 8192;
    config.update(changes);
    write_bytes(folder_ / "config.json", config.dump());
    std::filesystem::create_symlink(source + "/model.safetensors", folder_ / "model.safetensors");
  }
  WindowFolder(const std::string& oracle, int64_t window)
      : WindowFolder(oracle, nlohmann::json{{"sliding_window", window}}) {}
  std::string path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

/// Options under which blocks below windows are given back.
inline EngineOptions window_options(int kv_block_size, int threads = 1, int max_context = 700) {
  EngineOptions options = test_options(threads, kv_block_size);
  options.max_context = max_context;
  options.max_sequences = 3;
  options.max_step_tokens = 48;
  options.max_logit_rows = 48;
  return options;
}

/// All rows of a text that is one step: nothing is given back before its end.
inline Rows score_whole(const std::string& path, std::span<const int32_t> ids,
                        const std::vector<std::string>& kv_codecs = {}) {
  EngineOptions options = test_options(2);
  options.max_context = static_cast<int>(ids.size());
  options.max_sequences = 1;
  options.max_step_tokens = options.max_logit_rows = static_cast<int>(ids.size());
  options.kv_codecs = kv_codecs;
  return score(*Engine::load(path, options), ids);
}

}  // namespace vitrine::testing
