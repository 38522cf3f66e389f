// SPDX-License-Identifier: Apache-2.0
// The room `core`: the interface of a step between logits and a chosen token (sample.h has
// Vitrine's own, and the pipeline).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// Where in a sequence a sampler stage stands; everything that its random numbers may depend on.
struct SampleContext {
  uint64_t seed = 0;                      ///< of the request
  int64_t position = 0;                   ///< absolute position that the sampled token will take
  uint32_t branch = 0;                    ///< which fork of the sequence
  std::span<const int32_t> history = {};  ///< all tokens of the sequence so far
  /// A constraint's mask: bit (id % 32) of word (id / 32) is set where that token may come, ids
  /// beyond the mask may not. Empty: anything may come.
  std::span<const uint32_t> allowed_tokens = {};
  /// True where the constraint leaves no choice here: penalties then leave the logits alone.
  bool is_forced = false;
  /// Positions in the history, ascending, whose tokens a constraint forced; penalties count none of
  /// them.
  std::span<const int64_t> forced_positions = {};
};

/// The tokens that are still in play. Starts dense (every token of the vocabulary, `ids` empty,
/// logits indexed by id); the first stage that narrows the choice makes it sparse.
struct Candidates {
  std::span<float> logits;                       ///< [count] natural-log scores, unnormalised
  std::span<int32_t> ids;                        ///< [count], or empty while dense
  std::vector<float>* logits_storage = nullptr;  ///< capacity: the vocabulary; never reallocated
  std::vector<int32_t>* ids_storage = nullptr;   ///< capacity: the vocabulary; never reallocated
  bool sorted = false;                           ///< descending logits, ties by lower id
  int32_t selected = -1;                         ///< the chosen id, once a stage has selected
  /// Its probability among the candidates, from the stage that selected it; NaN: it didn't say.
  float selected_probability = std::numeric_limits<float>::quiet_NaN();
};

/// How a sampler came to its token.
struct SampleDecision {
  int32_t candidates = 0;  ///< tokens of nonzero probability that were left to choose from
  float probability = 0;   ///< of the chosen one among them; NaN where the stage didn't say
};

/// One step of the sampler pipeline. A host adds its own by deriving from this class.
class VITRINE_API SamplerStage {
 public:
  virtual ~SamplerStage() = default;
  /// Returns its name as the command line and the log know it ("top_p").
  virtual std::string_view name() const = 0;
  /// Returns the stable number that keys this stage's random numbers; it is never reused for
  /// another stage. Numbers from 1000 are for hosts.
  virtual uint32_t stage_id() const = 0;
  /// Edits the candidates, on the host. Must not allocate for a vocabulary seen before.
  virtual void apply(Candidates& candidates, const SampleContext& context) = 0;
  /// Returns true where the output head's epilogue can stand in for the whole pipeline ending here
  /// (the greedy stage): then no logits row is read back.
  virtual bool is_device_greedy() const { return false; }
  /// Returns a stage with the same parameters and state, for a fork of the sequence; null: it
  /// cannot be forked.
  virtual std::unique_ptr<SamplerStage> fork() const { return nullptr; }
  /// Returns its parameters as --explain prints them ("p = 0.95"); empty where it has none.
  virtual std::string parameters() const { return {}; }
};

}  // namespace vitrine
