// SPDX-License-Identifier: Apache-2.0
// What a run's page says first: what the record is worth, and who made it, when and how.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "audit_run.h"

namespace cli {

/// A line for everyone, and below it what an engineer wants to know.
struct PageFact {
  std::string label, text;
  std::vector<std::pair<std::string, std::string>> details = {};  ///< name, value
};
std::vector<PageFact> page_facts(const Run& run);

/// What the record is worth, in a sentence.
struct PageVerdict {
  /// What the sentence's colour is by: "whole", "partly" or "broken".
  std::string kind;
  std::string text;
};
PageVerdict page_verdict(const Run& run);

}  // namespace cli
