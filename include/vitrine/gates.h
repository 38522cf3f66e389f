// SPDX-License-Identifier: Apache-2.0
// The room `gates`: two evaluations compared item by item, and held to a gate file (docs/gates.md).
//
//     const Evaluation base = read_evaluation("base.eval"), cand = read_evaluation("cand.eval");
//     const Verdict verdict = run_gate(GateFile::open("default"), base, cand);
//     if (verdict.outcome == GateOutcome::kPasses) ship();
//
// All functions are thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrine/evaluation.h"
#include "vitrine/statistics.h"

namespace vitrine {

// ---- Comparison --------------------------------------------------------------------------------

/// Where two answers to one item part.
struct Parting {
  bool input_differs = false;    ///< the prompts' ids were not the same: nothing below is known
  bool is_known = false;         ///< both told the ids of their answers
  int64_t index = -1;            ///< the first id that differs, from 0; -1: none does
  int32_t baseline_token = -1;   ///< the id there; -1: the answer had ended
  int32_t candidate_token = -1;  ///< likewise
};

/// An item that one of two answers rightly.
struct Flip {
  std::string task = {};              ///< its task
  std::string id = {};                ///< within the task
  bool is_lost = false;               ///< the baseline alone is right; else the candidate alone
  bool is_critical = false;           ///< EvaluatedItem::is_critical
  bool is_counted = false;            ///< its task counts (ComparedTask::is_counted)
  Parting parting = {};               ///< where the answers part
  std::string expected = {};          ///< what would be right, for people
  std::string baseline_answer = {};   ///< its text
  std::string candidate_answer = {};  ///< its text
};

/// Another thing that is no longer as it was, of an item.
struct ItemChange {
  std::string task = {};  ///< its task
  std::string id = {};    ///< within the task
  /// "parse_lost", "parse_gained", "new_loop", "loop_gone", "new_refusal" (of a harmless prompt),
  /// "new_unsafe", "new_error".
  std::string what = {};
  Parting parting = {};  ///< where the answers part
};

/// Scores of items that are more than right or wrong, of both sides.
struct PairedScore {
  size_t num_items = 0;  ///< that have one on both sides
  double baseline = 0;   ///< mean
  double candidate = 0;  ///< mean
  Estimate drop = {};    ///< baseline less candidate; items of a group are one cluster
};

/// Tokens of texts at positions that are about as far from their window's beginning.
struct TextBucket {
  int64_t first = 0;     ///< position
  int64_t last = 0;      ///< position
  size_t count = 0;      ///< tokens
  double kl = 0;         ///< mean, nats
  double agreement = 0;  ///< share with the same most probable token
};

/// Texts as two models predict them. KL(baseline || candidate) is that of what the lists of the
/// most probable tokens tell (top_divergence()), which is at most the whole one.
struct TextComparison {
  size_t num_texts = 0;                  ///< items
  size_t num_tokens = 0;                 ///< that both predicted
  double baseline_perplexity = 0;        ///< of these
  double candidate_perplexity = 0;       ///< of these
  Estimate logprob_drop = {};            ///< nats a token
  Estimate kl = {};                      ///< nats a token; texts of a group are one cluster
  double kl_high = 0;                    ///< its 99.9th percentile
  Interval kl_high_interval = {};        ///< of that, by order statistics, each bound 95 %
  Estimate agreement = {};               ///< share of tokens with the same most probable one
  double largest_drop = 0;               ///< nats that a token lost
  std::string largest_id = {};           ///< its item
  int64_t largest_position = 0;          ///< its number in the item, from 1
  std::vector<TextBucket> buckets = {};  ///< by position, from 1: [2^i, 2^(i+1))
};

/// A task, item by item. Counts are of items that both sides have.
struct ComparedTask {
  std::string name = {};              ///< SuiteTask::name
  std::string domain = {};            ///< SuiteTask::domain
  TaskKind kind = TaskKind::kAnswer;  ///< SuiteTask::kind
  size_t num_items = 0;               ///< that both have
  /// The baseline is surely better than chance (one-sided binomial test at 5 %), so that there is
  /// something to lose. Texts are not counted by right and wrong.
  bool is_counted = false;
  std::string not_counted = {};     ///< why
  double chance = 0;                ///< SuiteTask::chance
  double p_chance = 1;              ///< of that test
  PairedAnswers answers = {};       ///< the baseline first
  Interval baseline_success = {};   ///< of its share, together 95 % (Clopper and Pearson)
  Interval candidate_success = {};  ///< likewise
  Interval drop = {};               ///< PairedAnswers::drop_interval, each bound 95 %
  size_t equal_digests = 0;         ///< the same answer to the last bit
  size_t inputs_differ = 0;         ///< Parting::input_differs
  std::map<std::string, size_t> changes = {};           ///< how many of each ItemChange::what
  std::optional<PairedScore> score = {};                ///< EvaluatedItem::score
  std::optional<PairedScore> reference = {};            ///< nats a token of the reference answer
  std::optional<PairedScore> margin = {};               ///< nats, right over best wrong choice
  std::optional<PairedScore> right_probability = {};    ///< of the right choice among all
  std::optional<TextComparison> text = {};              ///< of kText
  std::optional<PairedRatio> first_token_seconds = {};  ///< the candidate's over the baseline's
  std::optional<PairedRatio> token_seconds = {};        ///< between tokens of an answer
};

/// Two evaluations, item by item.
struct VITRINE_API EvaluationComparison {
  size_t num_items = 0;          ///< that both have
  size_t counted_items = 0;      ///< of tasks that are counted
  size_t critical_items = 0;     ///< EvaluatedItem::is_critical, that both have
  size_t critical_lost = 0;      ///< of these, that the baseline alone answers rightly
  size_t equal_digests = 0;      ///< with the same answer to the last bit
  PairedAnswers answers = {};    ///< of counted items, the baseline first
  Interval drop = {};            ///< of these, each bound 95 %
  std::vector<Flip> flips = {};  ///< in the baseline's order, of tasks that do not count too
  std::vector<ItemChange> changes = {};                 ///< in the baseline's order
  std::vector<ComparedTask> tasks = {};                 ///< in the suite's order
  Calibration baseline_calibration = {};                ///< of the probabilities of chosen choices
  Calibration candidate_calibration = {};               ///< likewise
  std::optional<TextComparison> text = {};              ///< all texts
  std::optional<PairedRatio> first_token_seconds = {};  ///< all answers
  std::optional<PairedRatio> token_seconds = {};        ///< likewise
  std::vector<std::string> notes = {};                  ///< what could not be compared, a line each
};

/// Compares two evaluations of one suite. What one of them lacks is told in notes. Throws
/// kInvalidArgument where the suites differ, and where no item is in both.
VITRINE_API EvaluationComparison compare_evaluations(const Evaluation& baseline,
                                                     const Evaluation& candidate);
/// Returns it as a JSON object; docs/gates.md names its fields. Numbers that are none are null.
VITRINE_API std::string comparison_json(const EvaluationComparison& comparison);

// ---- Gates -------------------------------------------------------------------------------------

/// How a rule decides.
enum class GateKind : uint8_t {
  /// Passes where the upper bound of what was found is at most the rule's, is refused where a test
  /// says that it is worse, and is undecided between.
  kWithin,
  kNotWorse,  ///< refused where a test says that it is worse, else passes
  kExact,     ///< what was found, and nothing inferred, is at most the rule's bound
};

/// One rule of a gate.
struct GateRule {
  std::string name = {};              ///< within its gate
  std::string metric = {};            ///< what is measured (gate_metrics())
  std::string scope = "all";          ///< "all", a domain, a task, or names' beginning and "*"
  std::string except = {};            ///< what of it is left out, likewise; empty: nothing
  GateKind kind = GateKind::kWithin;  ///< how it decides
  double bound = 0;                   ///< in the metric's unit
  double times_noise = 0;        ///< above 0: the bound is so many times the most that noise does
  double confidence = 0.95;      ///< of each bound of the interval
  bool is_optional = false;      ///< what was not measured leaves the verdict as it is
  bool is_beyond_noise = false;  ///< refused only for more than noise alone does
  bool never_refuses = false;    ///< passes or is inconclusive: what it measures has causes
                                 ///< beside the candidate
  bool is_of_counted = false;    ///< looks at tasks that count alone (ComparedTask::is_counted)
  std::string stands_for = {};   ///< a rule that it decides where it passes; it refuses nothing
  std::string next = {};         ///< the next move where it fails
  std::map<std::string, double> options = {};  ///< the metric's own
};

/// Rules that a candidate is held to: a TOML file (docs/gates.md).
struct VITRINE_API GateFile {
  std::string path = {};             ///< the file, or the name of a built-in one
  std::string name = {};             ///< `[gate] name`
  std::string about = {};            ///< `[gate] about`
  std::string text = {};             ///< all of it
  std::string sha256 = {};           ///< of its text
  double confidence = 0.95;          ///< all refusals together are wrong with at most the rest
  std::vector<GateRule> rules = {};  ///< in its order
  /// Opens a gate file, or the built-in gate of that name: "default", "exact", "production",
  /// "rounding". Throws
  /// kInvalidArgument where there is neither, kIo, and kBadFile (naming file, rule, field, what was
  /// found and expected).
  static GateFile open(const std::string& path);
  /// Reads a gate file's text; `path` names it in errors. Throws kBadFile as open() does.
  static GateFile parse(const std::string& text, const std::string& path);
};

/// What may stand in GateRule::metric.
struct GateMetricFacts {
  std::string name = {};                  ///< as rules have it
  std::string unit = {};                  ///< "share", "items", "nats" or "ratio"
  std::string about = {};                 ///< what it measures
  std::string things = "items";           ///< what is counted in num_items: "items" or "tokens"
  bool is_count = false;                  ///< kExact alone
  std::vector<std::string> options = {};  ///< further fields of its rules
};
/// Returns all metrics, by name.
VITRINE_API std::vector<GateMetricFacts> gate_metrics();
/// Returns the names of the built-in gates.
VITRINE_API std::vector<std::string> builtin_gates();
/// Returns the text of a built-in gate, to begin one's own from. Throws kInvalidArgument for
/// another name.
VITRINE_API std::string builtin_gate_text(const std::string& name);

/// What a rule, or a whole gate, says.
enum class GateOutcome : uint8_t {
  kPasses,        ///< held
  kRefused,       ///< not held
  kInconclusive,  ///< too little was measured
  kNotMeasured,   ///< of a rule: nothing was
};
/// Returns "passes", "refused", "inconclusive" or "not measured".
VITRINE_API std::string_view gate_outcome_name(GateOutcome outcome);

/// What a rule says of a candidate.
struct VITRINE_API RuleVerdict {
  GateRule rule = {};                               ///< the rule
  std::string unit = {};                            ///< of found, interval and noise
  std::string things = {};                          ///< GateMetricFacts::things
  GateOutcome outcome = GateOutcome::kNotMeasured;  ///< what it says
  std::string why = {};                             ///< where nothing was measured
  std::string decided_by = {};                      ///< the rule that stands for it and passes
  double found = 0;                                 ///< what was measured
  Interval interval = {};                    ///< of it, each bound of `confidence`; NaN: none
  double confidence = 0;                     ///< that it was computed with
  double p_value = 0;                        ///< of the test that says "worse"; NaN: none
  double p_holm = 0;                         ///< after Holm's correction over the gate's rules
  size_t num_items = 0;                      ///< that were measured
  std::optional<int64_t> items_needed = {};  ///< so many would decide, at 80 % power
  std::vector<double> noise = {};            ///< found for each evaluation of a perturbed baseline
  bool is_within_noise = false;              ///< it would be refused, but noise alone does as much
  std::vector<std::string> items = {};       ///< TASK/ID of what breaks it, the first ones
  size_t num_breaking = 0;                   ///< how many there are
  /// Returns it as one line.
  std::string text() const;
};

/// What a gate says of a candidate.
struct VITRINE_API Verdict {
  GateOutcome outcome = GateOutcome::kInconclusive;  ///< of all rules together
  std::string gate = {};                             ///< GateFile::name
  std::string gate_sha256 = {};                      ///< GateFile::sha256
  std::string baseline_sha256 = {};                  ///< Evaluation::sha256
  std::string candidate_sha256 = {};                 ///< Evaluation::sha256
  std::string suite_digest = {};                     ///< Evaluation::suite_digest
  std::vector<std::string> noise_sha256 = {};        ///< Evaluation::sha256 of each
  std::vector<RuleVerdict> rules = {};               ///< in the gate's order
  /// Returns what a process exits with: 0 passes, 3 refused, 4 inconclusive.
  int exit_code() const;
  /// Returns the verdict and its rules, a line each.
  std::string text() const;
};

/// Holds a candidate to a gate. Refusals hold 1 - GateFile::confidence together (Holm); a gate
/// passes only where all of its rules do, which takes no correction. `noise`: evaluations of the
/// baseline's model perturbed at the size of an ulp, which tell what noise alone does: a rule with
/// is_beyond_noise is inconclusive where one of them does as much, and the bound of one with
/// times_noise is set by them. The same arguments give the same verdict to the bit. Throws as
/// compare_evaluations() does, kInvalidArgument for evaluations that are not complete, and kBadFile
/// for a scope that the suite does not have.
VITRINE_API Verdict run_gate(const GateFile& gate, const Evaluation& baseline,
                             const Evaluation& candidate, std::span<const Evaluation> noise = {});
/// Returns it as a JSON object; docs/gates.md names its fields. Numbers that are none are null.
VITRINE_API std::string verdict_json(const Verdict& verdict);

}  // namespace vitrine
