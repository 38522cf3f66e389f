// SPDX-License-Identifier: Apache-2.0
// Compares what adapters do on a quantized base with what they did on its source.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common.h"
#include "lora_options.h"

namespace cli {

/// The text on which models are compared, and how.
struct AdapterText {
  std::string model;               ///< the source's path
  std::vector<int32_t> ids;        ///< of the text
  int64_t window = 0;              ///< tokens of a context
  vitrine::EngineOptions options;  ///< of each model, without an adapter
};

class QuantizeAdapters {
 public:
  void add_to(CLI::App& command);
  bool is_wanted() const { return !given_.empty(); }
  /// Finds the adapters' files, and loads each once beside the source, so that one that does not
  /// fit is refused before anything is quantized.
  void prepare(const AdapterText& text);
  /// Runs source and result over the text with each adapter and without. Throws kCancelled after
  /// Ctrl-C.
  void compare(const AdapterText& text, const std::string& result_folder);
  /// Returns what was found, for the manifest: null where there are none.
  const nlohmann::ordered_json& record() const { return record_; }
  /// A line for each.
  std::string describe() const;

 private:
  std::vector<std::string> given_;
  LoraParts parts_;
  nlohmann::ordered_json record_;
};

}  // namespace cli
