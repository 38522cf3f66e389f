// SPDX-License-Identifier: Apache-2.0
// The room `gates`: where the sealed logs of two runs of one item part, and how far apart noise
// alone would be there.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "vitrine/audit_log.h"

namespace vitrine {

/// What a log tells of a layer, or of a prediction.
enum class PartingProbe : uint8_t {
  kResidual,  ///< norm of the residual stream that enters a layer, relative
  kRouting,   ///< half the sum of differences of the gate weights: the share that went elsewhere
  kExpertOutput,  ///< norm of what an expert gave, relative
  kLogprob,       ///< log-probability of the token that follows, nats
};

/// Returns "residual norm", "routing", "expert output" or "log-probability".
VITRINE_API std::string_view parting_probe_name(PartingProbe probe);

/// How far two models are apart at one place, over many tokens that both read alike.
struct DeviationCell {
  int32_t layer = -1;                            ///< -1 of kLogprob
  PartingProbe probe = PartingProbe::kResidual;  ///< what was compared
  int32_t expert = -1;                           ///< of kExpertOutput: whose
  size_t count = 0;                              ///< tokens
  double mean = 0;                               ///< difference
  double noise = 0;  ///< mean difference of noise there, or what rounding in a log makes
  double ratio = 0;  ///< mean over noise
};

/// Differences of two models' logs, by layer, probe and expert. Means over thousands of tokens see
/// what no single token shows. Not thread-safe.
class VITRINE_API DeviationProfile {
 public:
  /// Takes in the logs of one item, as far as both read the same tokens. Throws what VtrReader
  /// does.
  void add(const std::string& baseline_log, const std::string& other_log,
           const std::optional<SealKey>& reader = {});
  /// Returns how many tokens were compared.
  size_t num_tokens() const { return num_tokens_; }
  /// Returns the largest difference that was seen of a layer's probe, of whichever expert, or what
  /// rounding in a log makes where that is more. `layer` is -1 of kLogprob.
  double largest(int32_t layer, PartingProbe probe) const;
  /// Returns all places in the order of computation, each beside the noise's. Places with fewer
  /// than 20 tokens are left out.
  std::vector<DeviationCell> cells(const DeviationProfile& noise) const;

 private:
  struct Sum {
    double total = 0;
    size_t count = 0;
  };
  std::map<std::tuple<int32_t, PartingProbe, int32_t>, Sum> sums_;  // by layer, probe and expert
  std::map<std::pair<int32_t, PartingProbe>, double> largest_;      // by layer and probe
  size_t num_tokens_ = 0;
};

/// A place that is so many times further from the baseline than noise is stands out.
inline constexpr double kDeviationFactor = 3;
/// Returns the first place in the order of computation whose ratio is above `factor`, and of those
/// that one pass reaches together (the experts of a layer) the one with the largest; nothing: none.
VITRINE_API std::optional<DeviationCell> first_deviation(const DeviationProfile& candidate,
                                                         const DeviationProfile& noise,
                                                         double factor = kDeviationFactor);
/// Returns one line for people: "layer 2, expert 5: expert output differs by 0.21 in the mean of
/// 312 tokens, noise by 0.011".
VITRINE_API std::string deviation_text(const DeviationCell& cell);

/// Where a candidate's run of an item first left the baseline's by more than noise.
struct LogParting {
  /// What it is.
  enum class Kind : uint8_t {
    kNowhere,  ///< both are the same as far as noise goes
    kInput,    ///< the prompts have other tokens: the tokenizer or the template
    kValue,    ///< a probe
    kToken,    ///< another token was chosen, with nothing above noise before it: a near tie
    kLength,   ///< one of them ends there
  };
  Kind kind = Kind::kNowhere;                    ///< what it is
  int64_t position = 0;                          ///< of the input token there
  bool is_prompt = false;                        ///< the position is one of the prompt's
  int32_t layer = -1;                            ///< of a layer's probe
  int32_t expert = -1;                           ///< where the probe tells of one
  PartingProbe probe = PartingProbe::kResidual;  ///< of kValue
  double difference = 0;                         ///< of kValue
  double noise = 0;                              ///< of kValue: the level that it exceeds
  int32_t baseline_token = -1;                   ///< of kInput and kToken
  int32_t candidate_token = -1;                  ///< likewise
};

/// Compares two logs of one item, position by position and layer by layer. `noise`: runs of the
/// baseline's model perturbed at the size of an ulp beside its own; empty: rounding in the logs is
/// the measure. Throws what VtrReader does (kIo, kBadFile, kInvalidArgument for a `reader` that is
/// no recipient).
VITRINE_API LogParting find_log_parting(const std::string& baseline_log,
                                        const std::string& candidate_log,
                                        const DeviationProfile& noise,
                                        const std::optional<SealKey>& reader = {});

/// Returns one line for people: "position 17 (prompt), layer 2, expert 5: expert output differs by
/// 0.31, noise 0.008".
VITRINE_API std::string parting_text(const LogParting& parting);

}  // namespace vitrine
