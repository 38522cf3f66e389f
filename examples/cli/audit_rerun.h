// SPDX-License-Identifier: Apache-2.0
// Reruns what a log recorded: the same tokens through an engine, in the same steps.
#pragma once

#include <optional>
#include <vector>

#include "audit_run.h"
#include "vitrine/federation_engine.h"

namespace cli {

/// What an engine needs to hold the log's sequences at once.
struct RerunSizes {
  int64_t context = 1, sequences = 1;
};
RerunSizes rerun_sizes(const Run& run);

inline constexpr int kRerunStepTokens = 512;  ///< as `generate` steps through a prompt …
inline constexpr int kRerunRows = 32;         ///< … and where the prompt is scored

/// What the log's sampler chooses when it is asked again.
struct Choices {
  size_t equal = 0, different = 0;
  size_t first = 0;         ///< index of the first record whose choice differs
  int32_t first_token = 0;  ///< what was chosen there this time
};

/// The options and the seed that the log's head names, where they decided alone: none where it
/// names no sampler, or something beside it (a constraint). Throws kInvalidArgument for options
/// that are none.
std::optional<vitrine::SamplerOptions> logged_sampler(const Run& run);

/// [run.records]: each record again, with the prediction for the recorded next token (and how the
/// sampler came to it, where `choices` are asked for and it is chosen again); empty where it
/// follows a position that was lost. Each record's tokens are fed as recorded.
/// `force_routes`: with the recorded experts, weighted by the engine's routers. `choices`: filled
/// by logged_sampler's pipeline, one for each answer, on the logits (EngineOptions::keep_logits);
/// the n-th fork of a log draws as branch n, as `generate --n-best` does. Throws what Engine::step
/// throws.
std::vector<std::optional<vitrine::TokenRecord>> rerun(const Run& run, vitrine::Stepper& engine,
                                                       bool force_routes,
                                                       Choices* choices = nullptr);

}  // namespace cli
