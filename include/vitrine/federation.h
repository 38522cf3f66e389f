// SPDX-License-Identifier: Apache-2.0
// The room `federation`: what a federation of specialists is made of, how their predictions become
// one, and how weights are fitted. The engine steps them (federation_engine.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vitrine/checkpoint.h"
#include "vitrine/combiner.h"
#include "vitrine/core.h"

namespace vitrine {

/// One specialist.
struct SpecialistSpec {
  std::string name;     ///< unique in the file
  std::string model;    ///< folder or GGUF file
  std::string adapter;  ///< folder of a low-rank adapter for `model`; empty: the model as it is
};

/// The numbers of a combiner.
struct CombinerSpec {
  /// How several distributions become one.
  enum class Kind : uint8_t {
    kMixture,  ///< sum of weight * p, with the file's weights
    kGate,     ///< sum of weight * p, where the weights are softmax(gate * hidden state + bias)
    kProduct,  ///< product of p^weight, normalised over the vocabulary
  };
  Kind kind = Kind::kMixture;   ///< how they become one
  std::vector<double> weights;  ///< [specialists]; mixture: positive, they sum to one
  int64_t hidden_size = 0;      ///< numbers in a hidden state, for kGate; else 0
  std::vector<float> gate;      ///< [specialists, hidden_size]
  std::vector<float> bias;      ///< [specialists]
  /// The member_hashes() of the federation that a gate was fitted for; empty: not fitted yet.
  std::vector<std::string> members;
};
/// Returns "mixture", "gate" or "product".
VITRINE_API std::string_view combiner_kind_name(CombinerSpec::Kind kind);

/// A federation file (docs/federation.md).
struct VITRINE_API FederationSpec {
  std::string path;  ///< of the file; names in it are relative to its folder
  std::string base;  ///< of adapters: the model that they share; empty: separate checkpoints
  std::vector<SpecialistSpec> specialists;  ///< at least two, at most 64
  CombinerSpec combiner;                    ///< how their distributions become one
  std::string fit_json;  ///< what a fit wrote about itself (JSON object); empty: not fitted
  /// The SHA-256 of a file, for members; a host that keeps hashes of large files gives its own.
  std::function<std::string(const std::string& path)> hash_file = sha256_of_file;

  /// Reads and checks a file; the models are not opened. Throws kIo, kBadFile.
  static FederationSpec load(const std::string& path);
  /// Returns the file's text, with paths relative to the folder that `path` lies in.
  std::string to_json() const;
  /// Throws kBadFile where a member is missing, or the gate was fitted for other members.
  void check_members() const;
};

/// A file that is part of what makes a specialist itself.
struct MemberFile {
  std::string name;  ///< in its folder
  std::string path;  ///< to open it by
};
/// Returns each specialist's files: its adapter's weights and configuration, or all weight files
/// and the configuration of its model; the first weights first. Throws what Checkpoint::open
/// throws.
VITRINE_API std::vector<std::vector<MemberFile>> member_files(const FederationSpec& spec);

/// Returns a SHA-256 of what makes each specialist itself: it is over the hashes of its files, each
/// a line. With `with_base` an adapter's is over those of the base, too.
VITRINE_API std::vector<std::string> member_hashes(const FederationSpec& spec,
                                                   bool with_base = true);

/// Makes the combiner that a spec describes. Throws kInvalidArgument where its weights are too few,
/// too many or out of range.
VITRINE_API std::unique_ptr<Combiner> make_combiner(const CombinerSpec& spec,
                                                    size_t num_specialists);

/// What a fit works on: each token of a text, as every specialist predicted it.
struct FitData {
  size_t num_specialists = 0;        ///< of each token
  int64_t hidden_size = 0;           ///< 0 where no gate is fitted
  std::vector<float> logprobs;       ///< [tokens, specialists]
  std::vector<float> hidden_states;  ///< [tokens, hidden_size]: the base's, before the token
  /// Returns how many tokens there are.
  size_t num_tokens() const { return num_specialists == 0 ? 0 : logprobs.size() / num_specialists; }
};

/// Returns the mean log-likelihood per token of a mixture's or a gate's weights, nats. This and the
/// fits throw kInvalidArgument where data and weights are of other sizes than they say or there is
/// no token, and for a token whose log-probabilities are NaN, or all -infinity.
VITRINE_API double mean_log_likelihood(const CombinerSpec& spec, const FitData& data);
/// Fits the weights of a mixture by expectation-maximisation (Dempster et al. 1977), until the
/// likelihood gains less than 1e-9 nats a token.
VITRINE_API CombinerSpec fit_mixture(const FitData& data);
/// Fits a gate by L-BFGS (Liu and Nocedal 1989) on the mean negative log-likelihood plus penalty /
/// 2 * |gate|^2, from the given weights.
VITRINE_API CombinerSpec fit_gate(const FitData& data, const CombinerSpec& start, double penalty,
                                  int max_iterations = 100);

/// What the fit of a product works on: whole rows, since its log-partition is over the vocabulary.
struct ProductFitData {
  size_t num_specialists = 0;   ///< of each token
  size_t vocab_size = 0;        ///< of each row
  std::vector<float> logprobs;  ///< [tokens, specialists, vocab_size]
  std::vector<int32_t> tokens;  ///< [tokens] the ids that came
};

/// Returns the mean log-likelihood per token of a product's weights, nats.
VITRINE_API double mean_log_likelihood(const CombinerSpec& spec, const ProductFitData& data);
/// Fits the weights of a product by L-BFGS from the given ones, on the mean log-likelihood, which
/// is concave in them. Weights stay within -100 and 100. Throws kInvalidArgument for data of other
/// sizes or none, and where a specialist's log-probability of a token that came is not finite.
VITRINE_API CombinerSpec fit_product(const ProductFitData& data, const CombinerSpec& start,
                                     int max_iterations = 100);

}  // namespace vitrine
