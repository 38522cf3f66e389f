// SPDX-License-Identifier: Apache-2.0
#include "quantize_adapters.h"

#include <fmt/format.h>

#include <filesystem>

#include "option_section.h"
#include "vitrine/quality.h"

namespace cli {

namespace {

std::unique_ptr<vitrine::Engine> load_with(const std::string& model, const AdapterText& text,
                                           const LoraParts& parts) {
  vitrine::EngineOptions options = text.options;
  options.lora = parts;
  return vitrine::Engine::load(model, options);
}

vitrine::ModelComparison compare_on(const AdapterText& text, vitrine::Engine& first,
                                    vitrine::Engine& second) {
  vitrine::WindowOptions options;
  options.window = text.window;
  options.before_step = [] { stop_if_interrupted("evaluation: cancelled before the end"); };
  return vitrine::compare_models(first, second, text.ids, options);
}

}  // namespace

void QuantizeAdapters::add_to(CLI::App& command) {
  const OptionSection section(command, "Evidence");
  command
      .add_option("--adapter", given_,
                  "FILE[:SCALE]: a low-rank adapter of MODEL; the manifest tells what it does to "
                  "the text of --eval before and after. May be given several times")
      ->allow_extra_args(false)
      ->check(not_empty());
}

void QuantizeAdapters::prepare(const AdapterText& text) {
  parts_ = lora_parts(given_);
  for (const auto& part : parts_) load_with(text.model, text, {part});
}

void QuantizeAdapters::compare(const AdapterText& text, const std::string& result_folder) {
  record_ = nlohmann::ordered_json::array();
  const auto source = vitrine::Engine::load(text.model, text.options);
  const auto result = vitrine::Engine::load(result_folder, text.options);
  for (const auto& part : parts_) {
    const auto adapted_source = load_with(text.model, text, {part});
    const auto adapted_result = load_with(result_folder, text, {part});
    const vitrine::ModelComparison before = compare_on(text, *adapted_source, *source);
    const vitrine::ModelComparison after = compare_on(text, *adapted_result, *result);
    const vitrine::ModelComparison kept = compare_on(text, *adapted_source, *adapted_result);
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const auto& [name, sha256] : lora_hashes({part})) files.push_back(sha256);
    std::filesystem::path path = part.first;
    if (!path.has_filename()) path = path.parent_path();
    record_.push_back({{"name", path.filename().string()},
                       {"scale", part.second},
                       {"sha256", files},
                       {"effect_before", before.mean_kl},
                       {"effect_after", after.mean_kl},
                       {"mean_kl", kept.mean_kl},
                       {"source_perplexity", kept.first_perplexity},
                       {"result_perplexity", kept.second_perplexity}});
  }
}

std::string QuantizeAdapters::describe() const {
  std::string text;
  for (const auto& one : record_) {
    text += fmt::format(
        "adapter {}: mean KL {:.5f} nats to what it made of the source; it moves the model by "
        "{:.5f} before and {:.5f} after\n",
        one["name"].get<std::string>(), one["mean_kl"].get<double>(),
        one["effect_before"].get<double>(), one["effect_after"].get<double>());
  }
  return text;
}

}  // namespace cli
