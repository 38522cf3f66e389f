// SPDX-License-Identifier: Apache-2.0
#include "http/account_json.h"

#include <sodium.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/utf8.h"

namespace vitrine::http {

namespace {

constexpr size_t kMostAlternatives = 5;

template <typename Value>
std::string base64(const std::vector<Value>& values) {
  const size_t bytes = values.size() * sizeof(Value);
  std::string text(sodium_base64_ENCODED_LEN(bytes, sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(values.data()),
                    bytes, sodium_base64_VARIANT_ORIGINAL);
  text.resize(std::strlen(text.c_str()));
  return text;
}

double rounded(double value) {
  constexpr double kDigits = 1e5;
  return std::isfinite(value) ? std::round(value * kDigits) / kDigits : -9999;
}

std::string text_of(const Tokenizer& tokenizer, int32_t token) {
  return token >= 0 && token < tokenizer.vocab_size() ? tokenizer.token_bytes(token) : "";
}

bool is_whole(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = read_utf8(text, at);
    if (!character.is_valid) return false;
    at += character.size;
  }
  return true;
}

// A token and its text, and the bytes of one that is a part of a character.
Json named(const Tokenizer& tokenizer, int32_t token) {
  const std::string text = text_of(tokenizer, token);
  Json told = {{"id", token}, {"token", text}};
  if (!is_whole(text)) told["bytes"] = std::vector<unsigned char>(text.begin(), text.end());
  return told;
}

Json token_json(const TokenRecord& record, const Tokenizer& tokenizer) {
  const PredictionRecord& made = record.prediction;
  Json experts = Json::array();
  for (const LayerRecord& layer : record.layers) {
    const auto best = std::ranges::max_element(layer.routes, {}, &RouteRecord::weight);
    if (best == layer.routes.end()) continue;
    experts.push_back({layer.layer, best->expert, rounded(best->weight)});
  }
  Json others = Json::array();
  for (const AlternativeRecord& other : made.alternatives) {
    if (others.size() >= kMostAlternatives) break;
    others.push_back(named(tokenizer, other.token));
    others.back()["logprob"] = rounded(other.logprob);
  }
  Json told = {{"position", record.position + 1}};
  told.update(named(tokenizer, made.token));
  told["logprob"] = rounded(made.logprob);
  told["entropy"] = rounded(made.entropy);
  told["experts"] = experts;
  told["alternatives"] = others;
  if (made.token >= 0 && made.token < tokenizer.vocab_size() && tokenizer.is_special(made.token)) {
    told["special"] = true;
  }
  if (made.constraint.is_given()) {
    told["constraint"] = {{"allowed", made.constraint.allowed},
                          {"removed", rounded(made.constraint.removed)},
                          {"first_ruled_out", made.constraint.first_ruled_out}};
  }
  return told;
}

}  // namespace

Json routed_experts_json(const std::vector<TokenRecord>& records,
                         const std::vector<AuditLayout::Layer>& sparse) {
  size_t top_k = 0;
  for (const AuditLayout::Layer& layer : sparse) {
    top_k = std::max(top_k, static_cast<size_t>(layer.top_k));
  }
  // What was taken back and computed again counts as it was computed last.
  std::map<int64_t, const TokenRecord*> by_position;
  for (const TokenRecord& record : records) by_position[record.position] = &record;
  std::vector<int32_t> experts;
  std::vector<float> weights;
  for (const auto& [position, record] : by_position) {
    for (const AuditLayout::Layer& layer : sparse) {
      const auto found = std::ranges::find(record->layers, layer.layer, &LayerRecord::layer);
      for (size_t slot = 0; slot < top_k; ++slot) {
        const bool is_there = found != record->layers.end() && slot < found->routes.size();
        experts.push_back(is_there ? found->routes[slot].expert : -1);
        weights.push_back(is_there ? found->routes[slot].weight : 0);
      }
    }
  }
  return {{"routed_experts", base64(experts)},
          {"routed_weights", base64(weights)},
          {"shape", {by_position.size(), sparse.size(), top_k}}};
}

Json account_json(const std::vector<TokenRecord>& records, const Tokenizer& tokenizer) {
  Json tokens = Json::array();
  for (const TokenRecord& record : records) {
    if (record.has_prediction && record.prediction.generated) {
      tokens.push_back(token_json(record, tokenizer));
    }
  }
  return tokens;
}

}  // namespace vitrine::http
