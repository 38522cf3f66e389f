// SPDX-License-Identifier: Apache-2.0
// Options of the sampler as text: what command lines read and logs keep.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "stage_kind.h"

namespace vitrine {

void refuse_option(const std::string& option, const std::string& found,
                   const std::string& expected) {
  throw Error(ErrorKind::kInvalidArgument,
              "sampler option " + option + " is " + found + "; expected " + expected);
}

std::string shortest(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

void check_ids(const std::string& option, std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id < 0) refuse_option(option, "for id " + std::to_string(id), "ids from 0 on");
  }
}

namespace {

using IdList = std::vector<int32_t>;
using IdSequences = std::vector<std::vector<int32_t>>;
using BiasList = std::vector<std::pair<int32_t, float>>;

constexpr size_t kMaxQuoted = 40;  // bytes of a wrong text that an error repeats

template <class Number>
Number parse_number(std::string_view name, std::string_view text, const char* expected) {
  Number number{};
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (status != std::errc() || end != digits.data() + digits.size() || digits.empty() ||
      (text.starts_with('+') && digits.starts_with('-'))) {
    refuse_option(std::string(name), "'" + std::string(text.substr(0, kMaxQuoted)) + "'", expected);
  }
  return number;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin != text.npos;) {
    const size_t end = text.find_first_of(separators, begin);
    parts.push_back(text.substr(begin, end == text.npos ? end : end - begin));
    begin = end == text.npos ? end : end + 1;
  }
  return parts;
}

IdList parse_ids(std::string_view name, std::string_view text) {
  IdList ids;
  for (const std::string_view part : split(text, ",")) {
    ids.push_back(parse_number<int32_t>(name, part, "token ids with commas between them"));
  }
  return ids;
}

BiasList parse_biases(std::string_view name, std::string_view text) {
  BiasList biases;
  for (const std::string_view part : split(text, ";")) {
    const size_t equals = part.find('=');
    if (equals == part.npos) {
      refuse_option(std::string(name), "'" + std::string(part.substr(0, kMaxQuoted)) + "'",
                    "ID=V, as in 5=-1.5");
    }
    biases.emplace_back(parse_number<int32_t>(name, part.substr(0, equals), "ID=V with a token id"),
                        parse_number<float>(name, part.substr(equals + 1), "ID=V with a number"));
  }
  return biases;
}

void read_field(float& field, std::string_view name, std::string_view text) {
  field = parse_number<float>(name, text, "a number");
}
void read_field(int32_t& field, std::string_view name, std::string_view text) {
  field = parse_number<int32_t>(name, text, "a whole number");
}
void read_field(IdList& field, std::string_view name, std::string_view text) {
  const IdList ids = parse_ids(name, text);
  field.insert(field.end(), ids.begin(), ids.end());
}
void read_field(IdSequences& field, std::string_view name, std::string_view text) {
  for (const std::string_view part : split(text, ";")) field.push_back(parse_ids(name, part));
}
void read_field(BiasList& field, std::string_view name, std::string_view text) {
  const BiasList biases = parse_biases(name, text);
  field.insert(field.end(), biases.begin(), biases.end());
}

std::string field_text(float field) { return shortest(field); }
std::string field_text(int32_t field) { return std::to_string(field); }
std::string field_text(const IdList& field) {
  std::string text;
  for (const int32_t id : field) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}
std::string field_text(const IdSequences& field) {
  std::string text;
  for (const IdList& ids : field) text += (text.empty() ? "" : ";") + field_text(ids);
  return text;
}
std::string field_text(const BiasList& field) {
  std::string text;
  for (const auto& [id, bias] : field) {
    text += (text.empty() ? "" : ";") + std::to_string(id) + "=" + shortest(bias);
  }
  return text;
}

int32_t largest_id(float) { return -1; }
int32_t largest_id(int32_t) { return -1; }
int32_t largest_id(const IdList& ids) { return ids.empty() ? -1 : *std::ranges::max_element(ids); }
int32_t largest_id(const IdSequences& sequences) {
  int32_t largest = -1;
  for (const IdList& ids : sequences) largest = std::max(largest, largest_id(ids));
  return largest;
}
int32_t largest_id(const BiasList& biases) {
  int32_t largest = -1;
  for (const auto& [id, bias] : biases) largest = std::max(largest, id);
  return largest;
}

template <class Visit>
void for_each_option(const Visit& visit) {
  for (const auto& kinds : {stage_kinds(), selection_kinds()}) {
    for (const StageKind* kind : kinds) {
      for (const StageOption& option : kind->options) visit(*kind, option);
    }
  }
}

std::string option_text(const SamplerOptions& options, const StageOption& option) {
  return std::visit([&options](auto field) { return field_text(options.*field); }, option.field);
}

std::string order_text(const SamplerOptions& options) {
  std::string text;
  for (const std::string& name :
       options.samplers.empty() ? default_sampler_order(options) : options.samplers) {
    text += (text.empty() ? "" : ";") + name;
  }
  return text;
}

[[noreturn]] void refuse_name(std::string_view name) {
  refuse_option(std::string(name), "unknown", "one of sampler_option_list()");
}

/// What logs had before there were more stages: always there, so that readers find them.
bool is_always_logged(std::string_view name) {
  return name == "temperature" || name == "top_k" || name == "top_p" || name == "min_p";
}

/// The temperature's stage: a log without its further options is one with their defaults.
bool is_always_on(const StageKind& kind) { return kind.make(SamplerOptions{}) != nullptr; }

}  // namespace

const std::vector<SamplerOptionInfo>& sampler_option_list() {
  static const std::vector<SamplerOptionInfo> kList = [] {
    std::vector<SamplerOptionInfo> list;
    for_each_option([&list](const StageKind& kind, const StageOption& option) {
      const bool is_list = option.field.index() > 1;
      list.push_back({option.name, kind.name, option.help, is_list});
    });
    return list;
  }();
  return kList;
}

void set_sampler_option(SamplerOptions& options, std::string_view name, std::string_view value) {
  if (name == "seed") {
    options.seed = parse_number<uint64_t>(name, value, "a whole number from 0 to 2^64 - 1");
    return;
  }
  if (name == "samplers") {
    options.samplers.clear();
    for (const std::string_view part : split(value, ";,")) {
      std::string stage(part);
      std::ranges::replace(stage, '-', '_');
      options.samplers.push_back(stage);
    }
    return;
  }
  bool is_known = false;
  for_each_option([&](const StageKind&, const StageOption& option) {
    if (option.name != name) return;
    is_known = true;
    std::visit([&](auto field) { read_field(options.*field, name, value); }, option.field);
  });
  if (!is_known) refuse_name(name);
}

std::string sampler_option_text(const SamplerOptions& options, std::string_view name) {
  if (name == "seed") return std::to_string(options.seed);
  if (name == "samplers") return order_text(options);
  std::optional<std::string> text;
  for_each_option([&](const StageKind&, const StageOption& option) {
    if (option.name == name) text = option_text(options, option);
  });
  if (!text) refuse_name(name);
  return *text;
}

std::vector<std::pair<std::string, std::string>> sampler_option_values(
    const SamplerOptions& options) {
  std::vector<std::pair<std::string, std::string>> values;
  for_each_option([&](const StageKind& kind, const StageOption& option) {
    const bool is_off = is_always_on(kind) || kind.make(options) == nullptr;
    const bool is_default = option_text(options, option) == option_text(SamplerOptions{}, option);
    if (is_off && is_default && !is_always_logged(option.name)) return;
    std::string text = option_text(options, option);
    if (!text.empty()) values.emplace_back(option.name, std::move(text));
  });
  values.emplace_back("samplers", order_text(options));
  return values;
}

std::vector<int32_t> banned_ids(const SamplerOptions& options) {
  std::vector<int32_t> ids;
  for (const std::vector<int32_t>& sequence : options.ban) {
    if (sequence.size() == 1) ids.push_back(sequence[0]);
  }
  for (const auto& [id, bias] : options.logit_bias) {
    if (std::isinf(bias) && bias < 0) ids.push_back(id);
  }
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return ids;
}

void check_sampler_options(const SamplerOptions& options, int64_t vocab_size) {
  SamplerPipeline::from_options(options);
  for_each_option([&](const StageKind&, const StageOption& option) {
    const int32_t largest =
        std::visit([&](auto field) { return largest_id(options.*field); }, option.field);
    if (largest < vocab_size) return;
    refuse_option(std::string(option.name), "for id " + std::to_string(largest),
                  "ids below " + std::to_string(vocab_size) + ", the model's vocabulary");
  });
}

}  // namespace vitrine
