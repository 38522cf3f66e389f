// SPDX-License-Identifier: Apache-2.0
// What `quantize --gate` holds a new checkpoint to, before that has its name.
#pragma once

#include <optional>
#include <string>

#include "common.h"
#include "vitrine/gates.h"

namespace cli {

/// Says that a gate refused what was made.
struct GateRefused : vitrine::Error {
  explicit GateRefused(const std::string& message)
      : vitrine::Error(vitrine::ErrorKind::kUnsupported, message) {}
};

class QuantizeGate {
 public:
  void add_to(CLI::App& command);
  bool is_wanted() const { return !gate_.empty(); }
  /// Reads gate and baseline; evaluates `source` where there is no baseline yet. `out`: the
  /// folder to make, beside which results stand.
  void prepare(const std::string& source, const std::string& out);
  /// Evaluates a folder and holds it to the gate. Throws GateRefused, and kCancelled after Ctrl-C.
  void check(const std::string& folder);
  /// Returns the verdict for a manifest; null where there is none.
  nlohmann::ordered_json record() const;
  /// 0 where it passed, 4 where it is inconclusive.
  int exit_code() const { return verdict_ ? verdict_->exit_code() : 0; }

 private:
  vitrine::Evaluation evaluate(const std::string& model, const std::string& path,
                               bool overwrite) const;

  std::string gate_, baseline_path_, suite_ = "core", out_;
  std::optional<vitrine::GateFile> file_;
  std::optional<vitrine::Evaluation> baseline_;
  std::optional<vitrine::Verdict> verdict_;
};

}  // namespace cli
