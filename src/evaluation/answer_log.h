// SPDX-License-Identifier: Apache-2.0
// Private to the library: the sealed log of one item's answer.
#pragma once

#include <string>

#include "vitrine/evaluation.h"

namespace vitrine::evaluation {

/// A file's name for an item: its name where that is plain, else with a hash of it.
std::string log_name(const std::string& item);

class AnswerLog {
 public:
  /// Throws what VtrLog does.
  AnswerLog(const ModelTargetOptions& options, const ServeRequest& request,
            const std::string& item);
  AuditSink& sink() { return log_.sink(); }
  /// Ends the log and returns its file's name.
  std::string finish(const std::string& reason);

 private:
  std::string path_;
  const std::optional<SealKey> key_;
  VtrLog log_;
};

}  // namespace vitrine::evaluation
