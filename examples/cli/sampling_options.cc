// SPDX-License-Identifier: Apache-2.0
#include "sampling_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <random>
#include <set>

#include "closing_note.h"
#include "lora_options.h"
#include "model_hashes.h"
#include "option_section.h"
#include "vitrine/model.h"

namespace cli {

namespace {

/// CLI11 itself would wrap -1 and cut off what is too large.
CLI::Validator check_seed() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t seed = 0;
        const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seed);
        const bool whole = status == std::errc() && end == text.data() + text.size();
        return whole ? std::string()
                     : "'" + text + "' is no seed; expected a whole number from 0 to 2^64 - 1";
      },
      "");
}

constexpr const char* kBreakers[] = {"\n", ":", "\"", "*"};  // llama.cpp's
constexpr size_t kMaxBreakerTail = 20;  // tokens behind the first of a breaker, as in llama.cpp

std::string flag_of(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

/// llama.cpp's "15043+1" and "15043-1" as "15043=1" and "15043=-1"; another text as it is.
std::string bias_with_equals(std::string text) {
  const size_t sign = text.find_first_not_of("0123456789");
  if (sign == 0 || sign == text.npos || (text[sign] != '+' && text[sign] != '-')) return text;
  if (text[sign] == '+') {
    text[sign] = '=';
  } else {
    text.insert(sign, "=");
  }
  return text;
}

/// The sequences of ids in whose text a breaker stands: a token that has it, and a token that ends
/// with its beginning, with the tokens of the rest behind (llama.cpp's reading).
void add_breaker(const vitrine::Tokenizer& tokenizer, const std::string& text,
                 std::set<std::vector<int32_t>>& breakers) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string bytes = tokenizer.token_bytes(id);
    if (bytes.find(text) != std::string::npos) {
      breakers.insert({id});
      continue;
    }
    for (size_t size = std::min(text.size() - 1, bytes.size()); size > 0; --size) {
      if (!bytes.ends_with(std::string_view(text).substr(0, size))) continue;
      std::vector<int32_t> tail = tokenizer.encode(text.substr(size), false);
      tail.resize(std::min(tail.size(), kMaxBreakerTail));
      tail.insert(tail.begin(), id);
      breakers.insert(tail);
    }
  }
}

/// Says of options whose stage another one switches on that they do nothing.
void note_idle_options(const std::vector<std::string>& given,
                       const vitrine::SamplerOptions& sampler) {
  struct Dependents {
    bool is_off;
    std::string_view needed;
    std::vector<std::string_view> options;
  };
  const bool has_penalty = sampler.repetition_penalty != 1.0f ||
                           sampler.frequency_penalty != 0.0f || sampler.presence_penalty != 0.0f;
  const Dependents all[] = {
      {sampler.dry_multiplier == 0.0f,
       "--dry-multiplier",
       {"dry_base", "dry_allowed_length", "dry_penalty_last_n"}},
      {sampler.xtc_probability == 0.0f, "--xtc-probability", {"xtc_threshold"}},
      {sampler.mirostat == 0, "--mirostat 2", {"mirostat_tau", "mirostat_eta"}},
      {sampler.dynamic_temperature == 0.0f,
       "--dynamic-temperature",
       {"dynamic_temperature_exponent"}},
      {!has_penalty,
       "--repetition-penalty, --frequency-penalty or --presence-penalty",
       {"penalty_window"}}};
  for (const auto& [is_off, needed, options] : all) {
    for (const std::string_view option : options) {
      if (!is_off || std::ranges::find(given, option) == given.end()) continue;
      write_note(fmt::format("warning: {} does nothing without {}", flag_of(option), needed));
    }
  }
}

/// The softmax and the renormalisation are part of the stages behind; here they are shown.
bool takes_softmax(std::string_view stage) {
  constexpr std::string_view kStages[] = {"top_k", "typical_p", "top_p", "min_p",
                                          "xtc",   "mirostat",  "draw"};
  return std::ranges::find(kStages, stage) != std::end(kStages);
}

/// Whether the stage does something with these options, where it has its place.
bool runs(const std::string& stage, vitrine::SamplerOptions options) {
  options.mirostat = 0;
  options.samplers = {stage};
  const vitrine::SamplerPipeline pipeline = vitrine::SamplerPipeline::from_options(options);
  return std::ranges::any_of(pipeline.stages(),
                             [&](const auto& one) { return one->name() == stage; });
}

}  // namespace

void SamplingOptions::add_to(CLI::App& command, const char* seed_help) {
  const OptionSection section(command, "Sampling");
  for (const vitrine::SamplerOptionInfo& info : vitrine::sampler_option_list()) {
    if (info.name == "dry_sequence_breakers") continue;  // texts, on a command line
    const std::string name(info.name);
    const auto set = [this, name](const std::vector<std::string>& values) {
      for (const std::string& value : values) {
        vitrine::set_sampler_option(sampler, name,
                                    name == "logit_bias" ? bias_with_equals(value) : value);
      }
      given_options.push_back(name);
    };
    CLI::Option* option = command.add_option_function<std::vector<std::string>>(
        flag_of(name), set, std::string(info.help));
    option->allow_extra_args(false)->type_size(1);
    option->expected(info.is_list ? -1 : 1);
    if (!info.is_list) {
      const bool is_models = name == "temperature" || name == "top_k" || name == "top_p";
      option->default_str(vitrine::sampler_option_text(sampler, name) +
                          (is_models ? ", or the model's own" : ""));
    }
    if (!info.is_list) option->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  }
  command
      .add_option("--dry-sequence-breaker", dry_breakers,
                  "DRY: a text that no repetition runs across; repeatable; none: there is none "
                  "(default: line end, colon, quotation mark, asterisk)")
      ->allow_extra_args(false);
  const auto set_order = [this](const std::string& order) {
    vitrine::set_sampler_option(sampler, "samplers", order);
  };
  command.add_option_function<std::string>(
      "--samplers", set_order,
      "the stages in their order, with ; or , between them; those left out do not run (default: " +
          fmt::format("{}", fmt::join(vitrine::default_sampler_order({}), ";")) + ")");
  command.add_option("--stop", stop, "a text that ends the answer and is left out; repeatable")
      ->allow_extra_args(false);
  command.add_flag("--explain", explain, "say which stages run, in which order, with which values");
  command.add_option("-s,--seed", seed, seed_help)->check(check_seed());
}

void SamplingOptions::resolve() {
  // 53 bits: whole in every reader of JSON.
  const uint64_t drawn = uint64_t{std::random_device()()} << 32 | std::random_device()();
  sampler.seed = seed.value_or(drawn & (kMostWholeNumber - 1));
  vitrine::SamplerPipeline::from_options(sampler);
  vitrine::StopStrings{stop};
  const bool is_given = !sampler.samplers.empty();
  const std::vector<std::string> order =
      is_given ? sampler.samplers : vitrine::default_sampler_order(sampler);
  note_idle_options(given_options, sampler);
  for (const std::string& name : given_options) {
    const auto info =
        std::ranges::find(vitrine::sampler_option_list(), name, &vitrine::SamplerOptionInfo::name);
    const std::string stage(info->stage);
    if (stage == "mirostat" || std::ranges::find(order, stage) != order.end()) continue;
    if (!runs(stage, sampler)) continue;  // it is off by its own value
    refuse(fmt::format(
        "{} does nothing: {}; expected {} in --samplers", flag_of(name),
        is_given ? "--samplers leaves its stage out" : "with --mirostat 2 its stage is off",
        stage));
  }
}

void SamplingOptions::take_defaults(const vitrine::Checkpoint& checkpoint) {
  const vitrine::GenerationDefaults defaults = vitrine::generation_defaults(checkpoint);
  std::string changes;
  const auto take = [&](const char* name, const auto& value) {
    if (!value || std::ranges::find(given_options, name) != given_options.end()) return;
    const std::string before = vitrine::sampler_option_text(sampler, name);
    vitrine::set_sampler_option(sampler, name, fmt::format("{}", *value));
    const std::string now = vitrine::sampler_option_text(sampler, name);
    if (now != before) {
      changes += fmt::format("{}{} {}", changes.empty() ? "" : ", ", flag_of(name), now);
    }
  };
  take("temperature", defaults.temperature);
  take("top_k", defaults.top_k);
  take("top_p", defaults.top_p);
  if (changes.empty()) return;
  write_remark(fmt::format(
      "sampling as the model's {} says: {}",
      checkpoint.is_gguf() ? "metadata (general.sampling)" : "generation_config.json", changes));
}

void SamplingOptions::resolve_tokens(const vitrine::Tokenizer& tokenizer, int64_t vocab_size) {
  if (sampler.dry_multiplier != 0.0f && !(dry_breakers.size() == 1 && dry_breakers[0] == "none")) {
    std::set<std::vector<int32_t>> breakers;
    const std::vector<std::string> texts =
        dry_breakers.empty() ? std::vector<std::string>(std::begin(kBreakers), std::end(kBreakers))
                             : dry_breakers;
    for (const std::string& text : texts) {
      if (text.empty()) refuse("--dry-sequence-breaker is empty; expected a text, or none");
      add_breaker(tokenizer, text, breakers);
    }
    sampler.dry_sequence_breakers.assign(breakers.begin(), breakers.end());
  }
  vitrine::check_sampler_options(sampler, vocab_size);
}

std::string SamplingOptions::explanation() const {
  const auto pipeline = vitrine::SamplerPipeline::from_options(sampler);
  std::vector<std::string> parts;
  bool has_softmax = false, has_filter = false;
  for (const auto& stage : pipeline.stages()) {
    const std::string name(stage->name());
    const bool needs_softmax = takes_softmax(name);
    if (needs_softmax && !has_softmax) parts.emplace_back("softmax");
    has_softmax = has_softmax || needs_softmax;
    if (name == "draw" && has_filter) parts.emplace_back("renormalisation");
    has_filter = has_filter || needs_softmax;
    const std::string parameters = stage->parameters();
    parts.push_back(parameters.empty() ? name : name + " (" + parameters + ")");
  }
  return fmt::format("{}", fmt::join(parts, " > "));
}

void SamplingOptions::note_explanation() const {
  if (explain) write_note("sampler: " + explanation());
}

vitrine::LogHeader log_header(const std::string& model_path, const SamplingOptions& sampling,
                              const DeviceOptions& device, const vitrine::ModelSummary& model,
                              const vitrine::Checkpoint& checkpoint) {
  const vitrine::SamplerOptions& sampler = sampling.sampler;
  vitrine::LogHeader header;
  header.model_path = model_path;
  header.architecture = model.architecture;
  header.device = model.device;
  header.kernels = model.kernels;
  header.isa = model.isa;
  header.threads = model.threads;
  header.num_layers = model.num_layers;
  header.vocab_size = model.vocab_size;
  header.seed = sampler.seed;
  header.sampler = vitrine::sampler_option_values(sampler);
  header.engine = {{"rope_frequencies", device.rope_frequencies},
                   {"kv_type", model.kv_codec},
                   {"activation_type", device.activation_type}};
  header.hashes = file_hashes(checkpoint);
  add_lora_to(device.lora, header);
  return header;
}

}  // namespace cli
