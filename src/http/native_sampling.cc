// SPDX-License-Identifier: Apache-2.0
#include "http/native_sampling.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "http/plain_text.h"

namespace vitrine::http {

namespace {

using nlohmann::json;
using serve::Fields;
using serve::refuse_field;

constexpr int64_t kMostWindow = 1 << 30;
constexpr uint32_t kNoSeed = 0xFFFFFFFF;  // llama-server's -1

/// What llama-server calls a stage, by name and by letter, and what it is called here.
struct StageName {
  const char *native, *other;
  char letter;
  const char* stage;
};
constexpr std::array<StageName, 9> kStages = {{
    {"penalties", "penalties", 'e', "penalties"},
    {"dry", "dry", 'd', "dry"},
    {"top_n_sigma", "top-n-sigma", 's', "top_n_sigma"},
    {"top_k", "top-k", 'k', "top_k"},
    {"typ_p", "typical_p", 'y', "typical_p"},
    {"top_p", "top-p", 'p', "top_p"},
    {"min_p", "min-p", 'm', "min_p"},
    {"xtc", "xtc", 'x', "xtc"},
    {"temperature", "temp", 't', "temperature"},
}};

/// Stages that clients name wherever they stand and that do nothing unless they are given a number,
/// which is refused here; "infill" alone prefers ends to continuations that are as likely.
constexpr std::array<std::string_view, 3> kIdleStages = {"infill", "adaptive_p", "tfs_z"};
constexpr std::string_view kIdleLetters = "iaf";

std::vector<std::string> whole_order() {
  std::vector<std::string> order = {"logit_bias", "ban", "constraint"};
  for (const StageName& each : kStages) order.emplace_back(each.stage);
  return order;
}

void read_order(const json& names, SamplerOptions& sampler) {
  std::vector<std::string> order = {"logit_bias", "ban", "constraint"};
  const auto add = [&](const auto& is_named) {
    const auto found = std::ranges::find_if(kStages, is_named);
    if (found == kStages.end()) {
      refuse_field("samplers", names,
                   "names of penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc and "
                   "temperature");
    }
    // What runs twice changes nothing the second time, but for the penalties.
    if (std::ranges::find(order, found->stage) == order.end()) order.emplace_back(found->stage);
  };
  if (names.is_string()) {
    for (const char letter : names.get_ref<const std::string&>()) {
      if (kIdleLetters.find(letter) != std::string_view::npos) continue;
      add([letter](const StageName& each) { return each.letter == letter; });
    }
  } else if (names.is_array()) {
    for (const json& name : names) {
      const auto is_name = [&name](std::string_view each) { return name == each; };
      if (std::ranges::any_of(kIdleStages, is_name)) continue;
      add([&name](const StageName& each) { return name == each.native || name == each.other; });
    }
  } else {
    refuse_field("samplers", names, "a list of names, or their letters");
  }
  sampler.samplers = std::move(order);
}

/// Reads a number that llama-server cuts down to its range.
void read_cut(const Fields& fields, const char* name, float least, float most, float& value) {
  const json* found = fields.find(name);
  if (found == nullptr) return;
  if (!found->is_number()) refuse_field(name, *found, "a number");
  value = static_cast<float>(std::clamp<double>(found->get<double>(), least, most));
}

void read_biases(const json& biases, const Tokenizer& tokenizer, SamplerOptions& sampler) {
  constexpr const char* kForm =
      "an object, or a list of pairs, of an id or a text with a number or false";
  std::map<int32_t, double> all;
  const auto add = [&](const json& token, const json& bias) {
    const bool is_ban = bias.is_boolean() && !bias.get<bool>();
    if (!is_ban && !bias.is_number()) refuse_field("logit_bias", bias, kForm);
    const double added = is_ban ? -std::numeric_limits<double>::infinity() : bias.get<double>();
    if (token.is_number_integer()) {
      if (token < 0 || token >= int64_t{tokenizer.vocab_size()}) {
        refuse_field("logit_bias", token,
                     "ids from 0 to " + std::to_string(tokenizer.vocab_size() - 1));
      }
      all[token.get<int32_t>()] += added;
    } else if (token.is_string()) {
      for (const int32_t id : plain_ids(tokenizer, token.get_ref<const std::string&>())) {
        all[id] += added;
      }
    } else {
      refuse_field("logit_bias", token, kForm);
    }
  };
  if (biases.is_array()) {
    for (const json& pair : biases) {
      if (!pair.is_array() || pair.size() != 2) refuse_field("logit_bias", pair, kForm);
      add(pair[0], pair[1]);
    }
  } else if (biases.is_object()) {
    for (const auto& [key, value] : biases.items()) {
      int64_t id = 0;
      const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
      const bool is_id = problem == std::errc() && end == key.data() + key.size();
      add(is_id ? json(id) : json(key), value);
    }
  } else {
    refuse_field("logit_bias", biases, kForm);
  }
  constexpr double kMost = 1e6;
  for (const auto& [id, bias] : all) {
    const double kept = std::isinf(bias) ? bias : std::clamp(bias, -kMost, kMost);
    sampler.logit_bias.emplace_back(id, static_cast<float>(kept));
  }
}

void ban_ends(const Model& model, SamplerOptions& sampler) {
  std::map<int32_t, float> all(sampler.logit_bias.begin(), sampler.logit_bias.end());
  const auto ban = [&](const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) all[id] = -std::numeric_limits<float>::infinity();
  };
  ban(model.summary().eos_token_ids);
  ban(model.end_of_turn_ids());
  sampler.logit_bias.assign(all.begin(), all.end());
}

void read_penalties(const Fields& fields, SamplerOptions& sampler) {
  fields.read("repeat_penalty", sampler.repetition_penalty, 0.01, 100);
  fields.read("frequency_penalty", sampler.frequency_penalty, -100, 100);
  fields.read("presence_penalty", sampler.presence_penalty, -100, 100);
  int window = sampler.penalty_window;
  fields.read("repeat_last_n", window, -1, kMostWindow);
  if (window == 0) {  // llama-server: off
    sampler.repetition_penalty = 1;
    sampler.frequency_penalty = sampler.presence_penalty = 0;
  }
  sampler.penalty_window = std::max(window, 0);
}

void read_dry(const Fields& fields, const Tokenizer& tokenizer, SamplerOptions& sampler) {
  fields.read("dry_multiplier", sampler.dry_multiplier, 0, 100);
  float base = sampler.dry_base;
  fields.read("dry_base", base, 0, 100);
  if (base >= 1) sampler.dry_base = base;  // llama-server: else the default
  fields.read("dry_allowed_length", sampler.dry_allowed_length, 0, kMostWindow);
  sampler.dry_allowed_length = std::max(sampler.dry_allowed_length, 1);
  fields.read("dry_penalty_last_n", sampler.dry_penalty_last_n, -1, kMostWindow);
  std::vector<std::string> breakers;
  fields.read_texts("dry_sequence_breakers", breakers, 64);
  if (breakers.empty()) breakers = {"\n", ":", "\"", "*"};
  if (sampler.dry_multiplier == 0) return;
  // A token in whose text a breaker stands, or the tokens that it is made of.
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string bytes = tokenizer.token_bytes(id);
    const bool breaks = std::ranges::any_of(
        breakers, [&](const std::string& text) { return bytes.find(text) != std::string::npos; });
    if (breaks) sampler.dry_sequence_breakers.push_back({id});
  }
  for (const std::string& text : breakers) {
    std::vector<int32_t> ids = plain_ids(tokenizer, text);
    if (ids.size() > 1) sampler.dry_sequence_breakers.push_back(std::move(ids));
  }
}

void read_mirostat(const Fields& fields, SamplerOptions& sampler) {
  fields.read("mirostat", sampler.mirostat, 0, 2);
  if (sampler.mirostat == 1) {
    throw Error(ErrorKind::kUnsupported, "'mirostat' is 1; expected 0 or 2");
  }
  fields.read("mirostat_tau", sampler.mirostat_tau, 0.001, 100);
  fields.read("mirostat_eta", sampler.mirostat_eta, 0, 1);
  if (sampler.mirostat == 2) sampler.samplers.clear();  // mirostat has an order of its own
}

void refuse_absent_stages(const Fields& fields) {
  float target = -1, tail = 1;
  fields.read("adaptive_target", target, -1e9, 1);
  fields.read("tfs_z", tail, 0, 100);
  if (target >= 0) {
    throw Error(ErrorKind::kUnsupported, "'adaptive_target' is 0 or more; expected a negative one");
  }
  if (tail < 1) throw Error(ErrorKind::kUnsupported, "'tfs_z' is below 1; expected 1");
}

void read_seed(const Fields& fields, SamplerOptions& sampler) {
  const json* given = fields.find("seed");
  const bool is_drawn = given == nullptr || *given == -1 || *given == kNoSeed;
  if (is_drawn) {
    sampler.seed = std::stoul(random_id().substr(0, 8), nullptr, 16);
  } else {
    fields.read_seed("seed", sampler.seed);
  }
}

}  // namespace

SamplerOptions native_sampler() {
  SamplerOptions sampler;
  sampler.temperature = 0.8F;
  sampler.top_k = 40;
  sampler.top_p = 0.95F;
  sampler.min_p = 0.05F;
  sampler.penalty_window = 64;
  sampler.dry_penalty_last_n = 64;
  sampler.seed = kNoSeed;
  sampler.samplers = whole_order();
  return sampler;
}

SamplerOptions read_native_sampler(const Fields& fields, const Model& model) {
  SamplerOptions sampler = native_sampler();
  read_cut(fields, "temperature", 0, 100, sampler.temperature);
  read_cut(fields, "top_p", 0, 1, sampler.top_p);
  if (sampler.top_p == 0) {  // the best token alone
    sampler.top_p = 1;
    sampler.top_k = 1;
  } else {
    fields.read("top_k", sampler.top_k, -1, std::numeric_limits<int32_t>::max());
    sampler.top_k = std::max(sampler.top_k, 0);
  }
  read_cut(fields, "min_p", 0, 1, sampler.min_p);
  fields.read("typical_p", sampler.typical_p, 0.001, 1);
  read_cut(fields, "top_n_sigma", 0, 100, sampler.top_n_sigma);
  read_cut(fields, "xtc_probability", 0, 1, sampler.xtc_probability);
  read_cut(fields, "xtc_threshold", 0, 1, sampler.xtc_threshold);
  read_cut(fields, "dynatemp_range", 0, 100, sampler.dynamic_temperature);
  fields.read("dynatemp_exponent", sampler.dynamic_temperature_exponent, 0.001, 100);
  read_seed(fields, sampler);
  read_penalties(fields, sampler);
  read_dry(fields, model.tokenizer(), sampler);
  if (const json* names = fields.find("samplers"); names != nullptr && !names->empty()) {
    read_order(*names, sampler);
  }
  read_mirostat(fields, sampler);
  refuse_absent_stages(fields);
  if (const json* biases = fields.find("logit_bias")) {
    read_biases(*biases, model.tokenizer(), sampler);
  }
  bool ignores_ends = false;
  fields.read("ignore_eos", ignores_ends);
  if (ignores_ends) ban_ends(model, sampler);
  return sampler;
}

Json native_settings(const SamplerOptions& sampler, int n_predict) {
  Json biases = Json::array(), order = Json::array();
  for (const auto& [id, bias] : sampler.logit_bias) {
    biases.push_back({{"bias", std::isinf(bias) ? Json(nullptr) : Json(bias)}, {"token", id}});
  }
  for (const std::string& stage : sampler.samplers) {
    const auto found = std::ranges::find(kStages, stage, &StageName::stage);
    if (found != kStages.end()) order.push_back(found->native);
  }
  return {{"seed", sampler.seed},
          {"temperature", sampler.temperature},
          {"dynatemp_range", sampler.dynamic_temperature},
          {"dynatemp_exponent", sampler.dynamic_temperature_exponent},
          {"top_k", sampler.top_k},
          {"top_p", sampler.top_p},
          {"min_p", sampler.min_p},
          {"top_n_sigma", sampler.top_n_sigma > 0 ? sampler.top_n_sigma : -1.0F},
          {"xtc_probability", sampler.xtc_probability},
          {"xtc_threshold", sampler.xtc_threshold},
          {"typical_p", sampler.typical_p},
          {"repeat_last_n", sampler.penalty_window},
          {"repeat_penalty", sampler.repetition_penalty},
          {"presence_penalty", sampler.presence_penalty},
          {"frequency_penalty", sampler.frequency_penalty},
          {"dry_multiplier", sampler.dry_multiplier},
          {"dry_base", sampler.dry_base},
          {"dry_allowed_length", sampler.dry_allowed_length},
          {"dry_penalty_last_n", sampler.dry_penalty_last_n},
          {"mirostat", sampler.mirostat},
          {"mirostat_tau", sampler.mirostat_tau},
          {"mirostat_eta", sampler.mirostat_eta},
          {"adaptive_target", -1.0},  // off: there is no such stage
          {"adaptive_decay", 0.0},
          {"stop", Json::array()},
          {"max_tokens", n_predict},
          {"n_predict", n_predict},
          {"n_keep", 0},
          {"n_discard", 0},
          {"ignore_eos", false},
          {"stream", false},
          {"logit_bias", biases},
          {"n_probs", 0},
          {"min_keep", 0},
          {"grammar", ""},
          {"grammar_lazy", false},
          {"grammar_triggers", Json::array()},
          {"preserved_tokens", Json::array()},
          {"chat_format", "Content-only"},
          {"reasoning_format", "none"},
          {"reasoning_in_content", false},
          {"generation_prompt", ""},
          {"samplers", order},
          {"timings_per_token", false},
          {"post_sampling_probs", false},
          {"lora", Json::array()}};
}

}  // namespace vitrine::http
