// SPDX-License-Identifier: Apache-2.0
#include "gguf_mixture.h"

#include <algorithm>
#include <cstdlib>

namespace vitrine::compress {
namespace {

using enum MixtureCase;

/// One of the same type for every matrix.
Mixture plain(std::string_view name, uint32_t file_type) {
  return {.name = name, .file_type = file_type, .base = name, .head = name};
}

/// One with what most have in common.
Mixture mixed(std::string_view name, uint32_t file_type, std::string_view base,
              std::string_view outputs_of_eight = "q5_k") {
  return {.name = name,
          .file_type = file_type,
          .base = base,
          .head = "q6_k",
          .keys_of_eight = "q8_0",
          .values_of_eight = "q8_0",
          .outputs_of_eight = outputs_of_eight};
}

/// One of two bits, whose head and values have fewer than the others'.
Mixture two_bits(std::string_view name, uint32_t file_type, std::string_view base,
                 std::string_view more) {
  Mixture made = mixed(name, file_type, base);
  made.head = "q5_k";
  made.embedding = more;
  made.values = {{kSharedOrExperts, "q4_k"}, {kAlways, more}};
  made.downs = {{kFirstEighth, more}};
  made.keys_of_eight = made.values_of_eight = "q4_k";
  if (more == "iq3_s") made.outputs = {{kAlways, more}};
  return made;
}

std::vector<Mixture> make_mixtures() {
  std::vector<Mixture> all = {plain("f32", 0),   plain("f16", 1),   plain("bf16", 32),
                              plain("q4_0", 2),  plain("q4_1", 3),  plain("q8_0", 7),
                              plain("q5_0", 8),  plain("q5_1", 9),  plain("q3_k", 11),
                              plain("q4_k", 14), plain("q5_k", 16), plain("q6_k", 18)};
  const auto add = [&](Mixture mixture, const auto& change) {
    change(mixture);
    all.push_back(std::move(mixture));
  };
  add(mixed("q2_k", 10, "q2_k"), [](Mixture& made) {
    made.values = {{kSharedValues, "q4_k"}, {kAlways, "q3_k"}};
    made.outputs = made.downs = {{kAlways, "q3_k"}};
  });
  add(mixed("q3_k_s", 11, "q3_k"), [](Mixture&) {});
  add(mixed("q3_k_m", 12, "q3_k"), [](Mixture& made) {
    made.values = {{kFirstTwo, "q5_k"}, {kAlways, "q4_k"}};
    made.downs = {{kFirstSixteenth, "q5_k"}, {kAlways, "q4_k"}};
    made.outputs = {{kAlways, "q4_k"}};
  });
  add(mixed("q3_k_l", 13, "q3_k", ""), [](Mixture& made) {
    made.values = made.downs = made.outputs = {{kAlways, "q5_k"}};
    made.outputs_of_eight = "q3_k";
  });
  add(mixed("q4_k_s", 14, "q4_k"), [](Mixture& made) {
    made.values = {{kFirstFour, "q5_k"}};
    made.downs = {{kFirstEighth, "q5_k"}};
  });
  add(mixed("q4_k_m", 15, "q4_k"), [](Mixture& made) {
    made.values = made.downs = {{kMoreBits, "q6_k"}};
  });
  add(mixed("q5_k_s", 16, "q5_k", ""), [](Mixture&) {});
  add(mixed("q5_k_m", 17, "q5_k", ""), [](Mixture& made) {
    made.values = made.downs = {{kMoreBits, "q6_k"}};
  });
  for (const auto& [name, number] : {std::pair{"iq4_nl", 25U}, {"iq4_xs", 30U}}) {
    add(mixed(name, number, name), [](Mixture& made) {
      made.values = {{kSharedValues, "q5_k"}};
      made.downs = {{kUnweightedFirst, "q5_k"}};
    });
  }
  add(mixed("iq3_s", 26, "iq3_s"), [](Mixture& made) { made.values = {{kSharedValues, "q4_k"}}; });
  add(mixed("iq3_m", 27, "iq3_s"), [](Mixture& made) {
    made.values = made.outputs = {{kAlways, "q4_k"}};
    made.downs = {{kFirstEighth, "q4_k"}, {kMoreBitsOfEight, "q4_k"}};
  });
  add(mixed("iq3_xxs", 23, "iq3_xxs"), [](Mixture& made) {
    made.head = "q5_k";
    made.embedding = "iq3_s";
    made.values = {{kSharedValues, "q4_k"}};
    made.queries_and_keys = {{kAlways, "iq2_s"}};
    made.outputs = {{kAlways, "iq3_s"}};
  });
  all.push_back(two_bits("iq2_xxs", 19, "iq2_xxs", "q2_k"));
  all.push_back(two_bits("iq2_xs", 20, "iq2_xs", "q2_k"));
  all.push_back(two_bits("iq2_s", 28, "iq2_xs", "iq3_s"));
  all.push_back(two_bits("iq2_m", 29, "iq2_s", "iq3_s"));
  std::ranges::sort(all, {}, &Mixture::name);
  return all;
}

/// The number of the layer in "blk.12.…".
int64_t layer_of(const std::string& name) {
  return name.starts_with("blk.") ? std::atoll(name.c_str() + 4) : 0;
}

bool holds(MixtureCase when, int64_t layer, const ModelConfig& config, bool has_importances) {
  const int64_t layers = config.num_layers, eighth = layers / 8;
  switch (when) {
    case kAlways: return true;
    case kFirstTwo: return layer < 2;
    case kFirstFour: return layer < 4;
    case kFirstEighth: return layer < eighth;
    case kFirstSixteenth: return layer < layers / 16;
    case kMoreBitsOfEight:
      if (config.num_experts != 8) return false;
      [[fallthrough]];
    case kMoreBits: return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
    case kSharedOrExperts:
      if (config.num_experts >= 4) return true;
      [[fallthrough]];
    case kSharedValues: return config.num_heads >= 4 * config.num_kv_heads;
    case kUnweightedFirst: return !has_importances && layer < eighth;
  }
  return false;
}

}  // namespace

const std::vector<Mixture>& mixtures() {
  static const std::vector<Mixture> all = make_mixtures();
  return all;
}

const Mixture& find_mixture(std::string_view name) {
  const auto found = std::ranges::find(mixtures(), name, &Mixture::name);
  if (found != mixtures().end()) return *found;
  std::string known;
  for (const Mixture& mixture : mixtures()) {
    known += (known.empty() ? "" : ", ") + std::string(mixture.name);
  }
  throw Error(ErrorKind::kInvalidArgument,
              "GGUF type '" + std::string(name) + "' is unknown; expected one of: " + known);
}

std::string_view mixture_type(const Mixture& mixture, const std::string& name,
                              const ModelConfig& config, bool has_importances) {
  const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool is_embedding = name == "token_embd.weight";
  if (name == "output.weight" || (is_embedding && config.tie_word_embeddings)) return mixture.head;
  if (is_embedding) return mixture.embedding.empty() ? mixture.base : mixture.embedding;
  const bool is_key = is("attn_k."), is_value = is("attn_v."), is_output = is("attn_output.");
  if (config.num_experts == 8) {
    const std::string_view other = is_key      ? mixture.keys_of_eight
                                   : is_value  ? mixture.values_of_eight
                                   : is_output ? mixture.outputs_of_eight
                                               : "";
    if (!other.empty()) return other;
  }
  static const std::vector<MixtureRule> none;
  const std::vector<MixtureRule>& rules = is_value                  ? mixture.values
                                          : is_output               ? mixture.outputs
                                          : is("ffn_down")          ? mixture.downs
                                          : is_key || is("attn_q.") ? mixture.queries_and_keys
                                                                    : none;
  for (const MixtureRule& rule : rules) {
    if (holds(rule.when, layer_of(name), config, has_importances)) return rule.type;
  }
  return mixture.base;
}

bool needs_importance(std::string_view type, const std::string& name) {
  if (name == "output.weight" || name == "token_embd.weight") return false;
  return type.starts_with("iq2_") || type == "iq3_xxs";
}

}  // namespace vitrine::compress
