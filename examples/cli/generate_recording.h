// SPDX-License-Identifier: Apache-2.0
// Where the records of a `generate` go: a log, a ring of slabs, a stream of messages.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "generate_request.h"
#include "stream_target.h"
#include "summary.h"

namespace cli {

/// Outlives the engine that writes into it, and the request that it was opened for outlives it.
class Recording {
 public:
  /// Opens what the options name and says what stands in its head; from here on Ctrl-C only sets a
  /// flag. Returns where the engine's records go, or null.
  vitrine::AuditSink* open(const GenerateArguments& arguments, const GenerateRequest& request,
                           const vitrine::ModelSummary& model);
  /// No record follows.
  void finish(const std::string& reason);
  /// What was recorded, for --summary. After finish().
  const Summary& summary();
  /// Null where there is none.
  const Log* log() const { return log_.get(); }
  const vitrine::AuditStream* stream() const { return stream_.get(); }

 private:
  // Destroyed last to first: the log before what its callbacks use.
  Summary summary_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<vitrine::SlabRing> ring_;
  std::unique_ptr<StreamTarget> target_;
  std::unique_ptr<vitrine::AuditStream> stream_;
  std::optional<vitrine::TeeSink> both_;
};

}  // namespace cli
