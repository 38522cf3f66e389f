// Reruns what a log recorded: the same tokens through an engine, in the same steps.
#pragma once

#include <optional>
#include <vector>

#include "audit_run.h"

namespace cli {

/// What an engine needs to hold the log's sequences at once.
struct RerunSizes {
  int64_t context = 1, sequences = 1;
};
RerunSizes rerun_sizes(const Run& run);

inline constexpr int kRerunStepTokens = 512;  ///< as `generate` steps through a prompt …
inline constexpr int kRerunRows = 32;         ///< … and where the prompt is scored

/// [run.records]: each record again, with the prediction for the recorded next token; empty where
/// it follows a position that was lost. Each record's tokens are fed as recorded.
/// `force_routes`: with the recorded experts, weighted by the engine's routers. Throws what
/// Engine::step throws.
std::vector<std::optional<vitrine::TokenRecord>> rerun(const Run& run, vitrine::Engine& engine,
                                                       bool force_routes);

}  // namespace cli
