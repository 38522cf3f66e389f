// SPDX-License-Identifier: Apache-2.0
// The room `core`: the interface of what makes one prediction of several specialists'
// (federation.h has Vitrine's own).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "vitrine/core.h"

namespace vitrine {

/// What a specialist's share of a token is.
enum class ShareKind : uint8_t {
  kResponsibility,  ///< weight * p / joint: the posterior; they sum to one
  kTerm,  ///< weight * log p; they sum to the joint's log-probability plus the log-normaliser
};

/// One specialist's prediction of the next token: log p(t) = logits[t] - log_sum_exp.
struct SpecialistRow {
  std::span<const float> logits;  ///< [vocabulary]
  double log_sum_exp = 0;         ///< of all its logits
};

/// What a combiner sees of one position.
struct CombinerInput {
  std::span<const SpecialistRow> specialists;  ///< in the federation's order
  std::span<const float> hidden_state;         ///< the base's, where the combiner needs it
};

/// One specialist's part in one token.
struct SpecialistShare {
  double logprob = 0;  ///< nats: the specialist's own log-probability of the token
  double weight = 0;   ///< the weight that the combiner gave it at this position
  double share = 0;    ///< see ShareKind
  bool operator==(const SpecialistShare&) const = default;
};

/// The joint's log-probability of a token.
struct JointScore {
  double logprob = 0;         ///< nats
  double log_normaliser = 0;  ///< log Z over the vocabulary; 0 where nothing is normalised
};

/// Makes one distribution of several specialists'. A host adds its own by deriving from this class
/// (docs/federation.md). Not thread-safe.
class VITRINE_API Combiner {
 public:
  virtual ~Combiner() = default;
  /// Returns its name in the log and the plan ("mixture").
  virtual std::string_view name() const = 0;
  /// Returns what the shares of explain() mean.
  virtual ShareKind shares() const { return ShareKind::kResponsibility; }
  /// Returns true where CombinerInput::hidden_state must be there.
  virtual bool needs_hidden_state() const { return false; }
  /// Writes the joint's log-probability of every token, normalised. Must not allocate for sizes
  /// seen before.
  virtual void combine(const CombinerInput& input, std::span<float> joint) = 0;
  /// Accounts for one token, after combine() on the same input: fills `shares` [specialists] and
  /// returns the joint's score.
  virtual JointScore explain(const CombinerInput& input, int32_t token,
                             std::span<SpecialistShare> shares) = 0;
};

}  // namespace vitrine
