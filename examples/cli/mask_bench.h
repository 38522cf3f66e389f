// SPDX-License-Identifier: Apache-2.0
// MaskBench's counting: schemas, instances, tokens, masks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "vitrine/constrain.h"
#include "vitrine/tokenizer.h"

namespace cli {

/// The bytes of every id; special tokens have none. The ids that end a text: those of `end_tokens`
/// that the vocabulary has, else its first special token.
vitrine::TokenTable token_table(const vitrine::Tokenizer& tokenizer);

/// A value as Python's json.dumps writes it: ", " and ": " between parts, ASCII only.
std::string dump_like_python(const nlohmann::ordered_json& value);

struct MaskBenchOptions {
  vitrine::SchemaOptions schema = vitrine::SchemaOptions::every_spelling();  // of the files' texts
  double time_limit = 60;    // seconds for one schema; beyond: a timeout
  bool shares_masks = true;  // between schemas (TokenTable::limit_shared)
  int64_t token_limit = -1;  // of an answer; -1: none, and no mask is limited
};

struct MaskBenchResult {
  enum Outcome : uint8_t {
    kPassing,
    kCompileError,
    kValidationError,
    kInvalidationError,
    kTimeout
  } outcome = kPassing;
  std::string reason;
};

/// Runs schemas one after the other and keeps what was measured.
class MaskBench {
 public:
  MaskBench(const vitrine::Tokenizer& tokenizer, const MaskBenchOptions& options);

  /// `text`: {"schema": …, "tests": [{"valid": …, "data": …}]}.
  MaskBenchResult run(const std::string& name, const std::string& text);
  /// {"summary": …, "failures": {name: reason}}; where schemas may be weakened, also
  /// {"weakened": {name: [pointer, …]}}, and their number in the summary. "slowest" names the
  /// schemas with the slowest masks and the slowest first ones, in microseconds.
  nlohmann::ordered_json report() const;

 private:
  void add_to_hash();
  void make_mask(vitrine::Constraint& constraint, size_t used);
  MaskBenchResult measure(const std::string& name, const std::string& text);
  std::string run_instance(const vitrine::Grammar& grammar, const std::string& text, bool valid);

  const vitrine::Tokenizer& tokenizer_;
  MaskBenchOptions options_;
  vitrine::TokenTable table_;
  std::vector<uint32_t> mask_;
  std::vector<double> mask_us_, first_us_, limit_us_;
  std::vector<std::pair<double, std::string>> slowest_, slowest_first_;  // a schema's
  uint64_t masks_hash_ = 0;  // of all masks, in their order
  std::map<std::string, MaskBenchResult> failures_;
  std::map<std::string, std::vector<std::string>> weakened_;
  size_t num_schemas_ = 0;
  size_t counts_[5] = {};
};

}  // namespace cli
