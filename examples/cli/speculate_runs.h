// SPDX-License-Identifier: Apache-2.0
// This says what `bench speculate` asks for, and what came of each candidate.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common.h"
#include "vitrine/constrain.h"
#include "vitrine/drafters.h"

namespace cli {

struct BenchSpeculateArguments {
  std::string model, prompts, costs_file;
  std::vector<std::string> candidates = {"ngram", "suffix", "auto"};
  std::vector<std::string> kinds;  // of answers; empty: what --temperature says
  std::vector<int> head_layers;
  std::vector<int> right_runs;  // of recorded answers, instead of candidates
  int max_prompts = 0;          // 0: all
  int max_new_tokens = 128, max_drafts = 8, max_depth = 0, repeat = 3;
  float temperature = 0;
  bool cost = false, json = false, selects = false, probes = false;
  bool is_raw = false;      // prompts, though the model has a chat template
  bool is_ungated = false;  // candidates but auto
  DeviceOptions device;

  /// Returns how many guesses a pass brings at most, whoever guesses.
  int most_drafts() const;
};

/// The ids of each prompt: as a user's message, where the model has a chat template and --raw is
/// not given; what ends a turn goes to `end_ids` then.
std::vector<std::vector<int32_t>> encode_prompts(const BenchSpeculateArguments& arguments,
                                                 const vitrine::Checkpoint& checkpoint,
                                                 const vitrine::Tokenizer& tokenizer,
                                                 std::vector<int32_t>& end_ids);

/// How answers are made.
struct AnswerKind {
  std::string name;
  vitrine::SamplerOptions sampler;
  bool has_schema = false;
};
/// "greedy", "sampled", "penalties", "schema".
std::vector<std::string> answer_kind_names();
/// Returns the kinds of these names, or that of a temperature where there are none.
std::vector<AnswerKind> answer_kinds(const std::vector<std::string>& names, float temperature);

/// Answers say something of speed from so many tokens on.
inline constexpr int64_t kFewestTokens = 16;

/// Sums up a candidate over the answers of one kind.
struct CandidateRuns {
  std::string name, kind;
  // Seconds of each prompt whose answers count, all of its answers together.
  std::vector<double> plain_seconds, seconds;
  std::vector<double> ratios;  // of each of these prompts, the median of its pairs
  int64_t tokens = 0;          // of the answers that count, all rounds
  int64_t answers = 0;         // of these
  vitrine::SpeculationCounts counts;
  int64_t prompts = 0, identical = 0;
  int64_t first_tokens = 0;      // of one answer to each prompt
  int64_t different_tokens = 0;  // of each of these, all together
  // Prompts whose answers are too short to count, and what was measured of these answers.
  int64_t short_answers = 0, short_tokens = 0;
  double short_plain_seconds = 0, short_seconds = 0;
  vitrine::SpeculationCounts short_counts;

  /// All tokens that count, guessed over plain.
  double speed() const;
  double tokens_a_pass() const;
  double upkeep_microseconds() const;
};

/// Who guesses.
struct DraftCandidate {
  std::string name;
  // This one learns nothing of an answer; null: each answer has a new drafter.
  std::unique_ptr<vitrine::Drafter> kept;
  std::optional<vitrine::VocabularyOverlap> overlap;  // of a model
  int right_run = 0;  // of the recorded answer in each pass; 0: it is no record
};

/// Prints what heads among the candidates guess at the layers that they read, and at those beside.
int probe_head_layers(const BenchSpeculateArguments& arguments,
                      const std::vector<std::vector<int32_t>>& prompts,
                      const vitrine::EngineOptions& options, int model_layers);
std::string speculate_table(const BenchSpeculateArguments& arguments,
                            const std::vector<CandidateRuns>& all);
nlohmann::ordered_json speculate_report(const BenchSpeculateArguments& arguments,
                                        const std::vector<CandidateRuns>& all,
                                        const vitrine::PassCosts& costs);
/// Prints what a candidate is worth at each temperature, predicted and measured.
std::string selection_table(const BenchSpeculateArguments& arguments,
                            const std::vector<DraftCandidate>& candidates,
                            const std::vector<CandidateRuns>& all, const vitrine::PassCosts& costs);

/// Prints what passes cost; of a mixture of experts also what they are expected to read.
std::string costs_table(const vitrine::Engine& engine, const std::string& model,
                        const vitrine::PassCosts& costs);
nlohmann::ordered_json costs_report(const vitrine::Engine& engine, const std::string& model,
                                    const vitrine::PassCosts& costs);

}  // namespace cli
