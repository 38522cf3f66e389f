// SPDX-License-Identifier: Apache-2.0
// Private to the room: which type each matrix of a GGUF file becomes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"

namespace vitrine::compress {

/// Says when a matrix has another type than most.
enum class MixtureCase : uint8_t {
  kAlways,
  kFirstTwo,         ///< of the layers
  kFirstFour,        ///< of the layers
  kFirstEighth,      ///< of the layers
  kFirstSixteenth,   ///< of the layers
  kMoreBits,         ///< layers of the first and last eighth, and every third between
  kMoreBitsOfEight,  ///< these, of a model of eight experts
  kSharedValues,     ///< where four heads or more share a key
  kSharedOrExperts,  ///< these, and models of four experts or more
  kUnweightedFirst,  ///< without importances the first eighth of the layers
};

/// A type for a case; the first that holds counts.
struct MixtureRule {
  MixtureCase when;
  std::string_view type;
};

/// What llama-quantize makes of a model under one name.
struct Mixture {
  std::string_view name;
  uint32_t file_type = 0;           ///< its number in the file's header
  std::string_view base;            ///< of most matrices
  std::string_view head;            ///< of the output head, or the embedding where it is the head
  std::string_view embedding = {};  ///< of the embedding; empty: base
  std::vector<MixtureRule> values = {}, outputs = {}, downs = {}, queries_and_keys = {};
  /// What keys, values and attention's output become in a model of eight experts, in which
  /// attention is a small part; empty: as other models have it.
  std::string_view keys_of_eight = {}, values_of_eight = {}, outputs_of_eight = {};
};

/// Returns the mixture of that name. Throws kInvalidArgument that names all.
const Mixture& find_mixture(std::string_view name);
/// Returns all, in order of name.
const std::vector<Mixture>& mixtures();

/// Returns the type that a matrix wants, by its name in the file.
std::string_view mixture_type(const Mixture& mixture, const std::string& name,
                              const ModelConfig& config, bool has_importances);

/// Returns whether a type makes nothing of use of this matrix without importances.
bool needs_importance(std::string_view type, const std::string& name);

}  // namespace vitrine::compress
