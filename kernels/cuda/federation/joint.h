// SPDX-License-Identifier: Apache-2.0
// A federation's joint, made where its specialists' rows of logits are (docs/numerics.md, "A
// federation's joint"): the log-probabilities that the host's combiners make, by the same order.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

inline constexpr int kJointBlockEntries = 1024;
inline constexpr int kMaxSpecialists = 64;

enum class JointKind : int32_t {
  kMixture,  ///< sum of weight * p
  kGate,     ///< the same, weights softmax(gate * hidden state + bias)
  kProduct,  ///< product of p^weight, normalised
};

/// What a block of logits adds to its row's log-sum-exp.
struct JointSum {
  double sum = 0;  ///< of exp(logit - max)
  float max = 0;   ///< -inf where no logit is above it; the sum is 0 or NaN then
};

/// Doubles that a row of the joint takes: log Z, then four lists with a number for each specialist:
/// its log-sum-exp, its weight, its logit of the chosen token, its logit of the runner-up.
constexpr int64_t joint_values(int64_t specialists) { return 1 + 4 * specialists; }
constexpr int64_t joint_blocks(int64_t vocab) {
  return (vocab + kJointBlockEntries - 1) / kJointBlockEntries;
}

struct Joint {
  JointKind kind = JointKind::kMixture;
  int32_t specialists = 0;               ///< 1 to kMaxSpecialists
  int64_t vocab = 0;                     ///< 1 to 2^22
  double weights[kMaxSpecialists] = {};  ///< not of a gate
  int64_t hidden = 0;                    ///< of a gate
  const float* gate = nullptr;           ///< [specialists, hidden]
  const float* bias = nullptr;           ///< [specialists]
  /// [specialists + 1] where each one's rows of logits begin, [.., vocab]; then the hidden states
  /// that a gate reads, [.., hidden].
  const float* const* sources = nullptr;
  const int32_t* rows = nullptr;  ///< [joints, specialists + 1] which row of each source
  JointSum* sums = nullptr;       ///< [joints, specialists, joint_blocks(vocab)] scratch
  float* logits = nullptr;        ///< [joints, vocab] out: log-probabilities
  double* values = nullptr;       ///< [joints, joint_values(specialists)] out
  // joint_account alone reads the members below.
  const int32_t* chosen_ids = nullptr;  ///< [joints]
  const int32_t* best_ids = nullptr;    ///< [joints, best_stride] the two best
  int64_t best_stride = 0;
};

/// `joints` rows of log-probabilities, and their values but for logits. Three kernels, five of a
/// product. A row hangs on its own rows and weights alone. The host's bits, where exp and log of
/// doubles are the C library's (CUDA's may differ in a last bit of a double).
Status joint_rows(const Joint& joint, int32_t joints, Stream stream);

/// Each specialist's logit of the tokens that were chosen, 0 where none was (an id below 0), and of
/// the best that were not.
Status joint_account(const Joint& joint, int32_t joints, Stream stream);

// The parts of joint_rows, a file each.
/// `sums` of every specialist's row.
Status joint_sums(const Joint& joint, int32_t joints, Stream stream);
/// Log-sum-exps and weights, of the sums.
Status joint_weights(const Joint& joint, int32_t joints, Stream stream);
/// log Z of the first `sums` of each row, as joint_product_kernel leaves them.
Status joint_normaliser(const Joint& joint, int32_t joints, Stream stream);

}  // namespace vitrine::kernels::cuda
