// SPDX-License-Identifier: Apache-2.0
// Adds to a folder's manifest what `quantize` knows beside what it did, and signs it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common.h"
#include "vitrine/audit_log.h"

namespace cli {

/// Refuses a text that is no day of the calendar; `option` names it.
void require_calendar_day(const std::string& option, const std::string& day);

class QuantizeEvidence {
 public:
  void add_to(CLI::App& command);
  /// Returns whether something was asked for that only a folder has.
  bool is_given() const { return !key_file_.empty() || !expires_.empty(); }
  /// Reads the key, and what a file of `calibrate` says of its corpus; empty: there is none. Throws
  /// kBadFile where it has counts of another model.
  void prepare(const std::string& model, const std::string& calibration);
  /// Returns what is known before: the day on which it expires, the corpus.
  nlohmann::ordered_json facts() const;
  /// Writes a folder's seal, where there is a key.
  void seal(const std::string& folder) const;

 private:
  std::string key_file_, expires_;
  std::optional<vitrine::SealKey> key_;
  nlohmann::ordered_json corpus_;
};

}  // namespace cli
