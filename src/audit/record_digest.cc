// SPDX-License-Identifier: Apache-2.0
// What a rerun is compared with: a record's digest, its layers' marks, its rounding, and the build
// that made it.
#include <dlfcn.h>
#include <sodium.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "core/half_float.h"
#include "vitrine/audit_log.h"
#include "vitrine/version.h"
#include "vtr_rows.h"

namespace vitrine {
namespace audit {

uint64_t record_digest(const TokenRecord& record, std::vector<uint32_t>& scratch) {
  scratch.clear();
  const auto add = [&scratch](float value) { scratch.push_back(std::bit_cast<uint32_t>(value)); };
  scratch.push_back(static_cast<uint32_t>(record.token));
  for (const LayerRecord& layer : record.layers) {
    add(layer.residual_norm);
    for (const RouteRecord& route : layer.routes) {
      scratch.push_back(static_cast<uint32_t>(route.expert));
      add(route.weight);
    }
  }
  if (record.has_prediction) {
    scratch.push_back(static_cast<uint32_t>(record.prediction.token));
    add(record.prediction.logprob);
    add(record.prediction.entropy);
    scratch.push_back(static_cast<uint32_t>(record.prediction.logits_digest));
    scratch.push_back(static_cast<uint32_t>(record.prediction.logits_digest >> 32));
    for (const AlternativeRecord& other : record.prediction.alternatives) {
      scratch.push_back(static_cast<uint32_t>(other.token));
      add(other.logprob);
    }
  }
  static constexpr uint8_t kKey[crypto_shorthash_KEYBYTES] = {};
  uint8_t digest[8];
  crypto_shorthash(digest, reinterpret_cast<const uint8_t*>(scratch.data()), 4 * scratch.size(),
                   kKey);
  uint64_t value;
  std::memcpy(&value, digest, sizeof value);
  return value;
}

LayerMark layer_mark(const LayerRecord& layer) {
  const auto mixed = [](uint64_t mark, uint32_t word) {
    return (mark ^ word) * 0x9E3779B97F4A7C15;
  };
  const auto word = [](float value) {  // one NaN, as at level full
    return std::bit_cast<uint32_t>(std::isnan(value) ? std::numeric_limits<float>::quiet_NaN()
                                                     : value);
  };
  const auto top_byte = [](uint64_t mark) { return static_cast<uint8_t>(mark >> 56); };
  uint64_t routes = 0;
  for (const RouteRecord& route : layer.routes) {
    routes = mixed(routes, static_cast<uint32_t>(route.expert));
    routes = mixed(routes, word(route.weight));
  }
  return {top_byte(mixed(0, word(layer.residual_norm))), top_byte(routes)};
}

}  // namespace audit

uint64_t record_digest(const TokenRecord& record) {
  std::vector<uint32_t> scratch;
  return audit::record_digest(record, scratch);
}

std::vector<LayerMark> layer_marks(const TokenRecord& record) {
  std::vector<LayerMark> marks;
  for (const LayerRecord& layer : record.layers) marks.push_back(audit::layer_mark(layer));
  return marks;
}

TokenRecord round_record(TokenRecord record, LogDetail detail) {
  const auto round = [detail](float& value) {
    if (detail == LogDetail::kFull) {
      if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
    } else {
      value = from_half(to_half(value));
    }
  };
  for (LayerRecord& layer : record.layers) {
    if (detail == LogDetail::kFull) {
      round(layer.residual_norm);
    } else {
      layer.residual_norm = from_bfloat16(to_bfloat16(layer.residual_norm));
      layer.router_probs.clear();
    }
    for (RouteRecord& route : layer.routes) round(route.weight);
    for (float& norm : layer.expert_norms) {
      if (detail == LogDetail::kFull) {
        round(norm);
      } else {
        norm = from_bfloat16(to_bfloat16(norm));
      }
    }
    for (SelectionRecord& of : layer.selection) {
      round(of.score);
      round(of.key);
    }
  }
  if (detail != LogDetail::kFull) record.hidden_states.clear();
  for (HiddenStateRecord& state : record.hidden_states) {
    for (float& component : state.values) round(component);
  }
  round(record.prediction.logprob);
  round(record.prediction.entropy);
  round(record.prediction.sampled.probability);
  round(record.prediction.constraint.removed);
  if (detail != LogDetail::kFull) {
    float& time = record.prediction.constraint.mask_microseconds;
    time = from_bfloat16(to_bfloat16(time));
  }
  for (AlternativeRecord& other : record.prediction.alternatives) round(other.logprob);
  const auto round_terms = [&round](AttributionRecord& attribution) {
    for (TermRecord& term : attribution.terms) {
      round(term.value);
      round(term.runner_up);
    }
  };
  round_terms(record.prediction.attribution);
  for (AttributionRecord& of : record.prediction.federation.attributions) round_terms(of);
  if (detail != LogDetail::kFull) record.prediction.logits_digest = 0;
  return record;
}

const std::string& engine_build() {
  static const std::string build = [] {
    std::string text = std::string("vitrine ") + VITRINE_VERSION;
    Dl_info info;
    if (::dladdr(reinterpret_cast<const void*>(&engine_build), &info) == 0) return text;
    std::FILE* file = std::fopen(info.dli_fname, "rb");
    if (file == nullptr) return text;
    crypto_generichash_state state;
    crypto_generichash_init(&state, nullptr, 0, 32);
    std::vector<uint8_t> buffer(1 << 16);
    for (size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), file)) > 0;) {
      crypto_generichash_update(&state, buffer.data(), count);
    }
    std::fclose(file);
    PublicKey digest;
    crypto_generichash_final(&state, digest.data(), digest.size());
    return text + " blake2b-256 " + public_key_text(digest);
  }();
  return build;
}

}  // namespace vitrine
