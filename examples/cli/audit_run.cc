// SPDX-License-Identifier: Apache-2.0
#include "audit_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "audit_json.h"
#include "model_hashes.h"
#include "run_memory.h"

namespace cli {

namespace {

using nlohmann::json;

void read_vtr(Run& run, const std::optional<vitrine::SealKey>& key, uint64_t most_bytes) {
  run.report = vitrine::verify_vtr(run.path, {}, key);
  vitrine::VtrReader reader(run.path, key);
  const vitrine::VtrHeader& header = reader.header();
  run.header = header.log;
  run.level = vitrine::log_detail_name(header.detail);
  run.is_rounded = header.detail == vitrine::LogDetail::kStandard;
  run.mode = header.mode == vitrine::AuditMode::kNaive ? "naive" : "deferred";
  run.hidden_state_layers = header.hidden_state_layers;
  run.federation = header.federation;
  run.started_unix_ns = header.started_unix_ns;
  run.started_monotonic_ns = header.started_monotonic_ns;
  run.engine_build = header.engine_build;
  for (const auto& layer : header.layers) {
    run.layer_numbers.push_back(static_cast<uint32_t>(layer.layer));
    run.uses.emplace_back(static_cast<size_t>(layer.num_experts), 0);
  }
  vitrine::VtrPage page;
  RunMemory memory(run.path, most_bytes);
  try {
    while (reader.next(page)) {
      memory.add(page);
      for (const vitrine::VtrEvent& event : page.events) {
        run.events.emplace_back(run.records.size() + event.row, event);
      }
      run.is_redacted.insert(run.is_redacted.end(), page.is_redacted.begin(),
                             page.is_redacted.end());
      run.records.insert(run.records.end(), page.records.begin(), page.records.end());
      run.failures.insert(run.failures.end(), page.failures.begin(), page.failures.end());
      run.drafts.insert(run.drafts.end(), page.drafts.begin(), page.drafts.end());
      run.digests.insert(run.digests.end(), page.digests.begin(), page.digests.end());
      page.layer_marks.resize(page.records.size());
      run.layer_marks.insert(run.layer_marks.end(), page.layer_marks.begin(),
                             page.layer_marks.end());
      if (header.has_text) page.text.resize(page.records.size());  // empty: it was left out
      run.text.insert(run.text.end(), page.text.begin(), page.text.end());
      run.told_tokens += page.expert_use_tokens;
      for (size_t layer = 0; layer < page.expert_uses.size(); ++layer) {
        for (size_t expert = 0; expert < run.uses[layer].size(); ++expert) {
          run.uses[layer][expert] += page.expert_uses[layer][expert];
        }
      }
    }
  } catch (const vitrine::Error& error) {
    // What is readable before the damage is shown; the first line says that there is damage.
    if (error.kind() != vitrine::ErrorKind::kBadFile) throw;
  }
  if (run.text.size() != run.records.size()) run.text.clear();
  if (reader.end()) run.stop_reason = reader.end()->stop_reason;
}

}  // namespace

std::shared_ptr<vitrine::Tokenizer> find_tokenizer(const vitrine::LogHeader& header,
                                                   const std::string& model) {
  const std::filesystem::path folder = model.empty() ? header.model_path : model;
  std::error_code error;
  const bool is_gguf = std::filesystem::is_regular_file(folder, error);
  std::filesystem::path file = is_gguf ? folder : folder / "tokenizer.json";
  for (const char* name : {"tekken.json", "tiktoken.model"}) {  // read where there is no such file
    if (!std::filesystem::is_regular_file(file, error)) file = folder / name;
  }
  if (!std::filesystem::is_regular_file(file, error)) {
    if (!model.empty()) refuse(fmt::format("--model {}: there is no tokenizer.json", model));
    return nullptr;
  }
  const bool is_single = is_gguf && header.hashes.size() == 1;  // whatever its name is now
  for (const auto& [name, hash] : header.hashes) {
    if (!is_single && name != file.filename().string()) continue;
    if (hash == file_hash(file.string())) continue;
    if (!model.empty()) {
      refuse(
          fmt::format("--model {}: its {} is another than the log's (SHA-256 {}); expected the "
                      "model that made the log",
                      model, name, hash));
    }
    return nullptr;
  }
  if (file.filename() != "tokenizer.json") {
    return std::make_shared<vitrine::Tokenizer>(
        open_tokenizer(vitrine::Checkpoint::open(folder.string())));
  }
  return std::make_shared<vitrine::Tokenizer>(vitrine::Tokenizer::from_file(file.string()));
}

std::vector<const vitrine::AttributionRecord*> attributions_of(
    const vitrine::PredictionRecord& prediction) {
  std::vector<const vitrine::AttributionRecord*> all;
  if (!prediction.attribution.terms.empty()) all.push_back(&prediction.attribution);
  for (const vitrine::AttributionRecord& of : prediction.federation.attributions) {
    all.push_back(&of);
  }
  return all;
}

std::optional<vitrine::SealKey> reader_key(const std::string& path) {
  if (path.empty()) return std::nullopt;
  return vitrine::SealKey::load(path);
}

void require_tokens(const Run& run, const char* command) {
  if (run.level != "counters") return;
  refuse(
      fmt::format("{}: level counters keeps nothing of a single token; {} expects a log of level "
                  "standard or full",
                  run.path, command));
}

Run load_run(const std::string& path, const std::string& model, const std::string& decrypt,
             uint64_t most_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    refuse(fmt::format("run '{}' is {}; expected a .vtr or .json log", path,
                       std::filesystem::exists(path, error) ? "not a file" : "not there"));
  }
  Run run;
  run.path = path;
  if (std::filesystem::path(path).extension() == ".json") {
    read_json(run);
  } else {
    read_vtr(run, reader_key(decrypt), most_bytes);
  }
  // Who reads the routes needs no counts, which are of fewer tokens.
  const bool has_routes = std::ranges::any_of(run.records, [](const auto& record) {
    return std::ranges::any_of(record.layers, [](const vitrine::LayerRecord& layer) {
      return !layer.routes.empty() && layer.routes[0].expert >= 0;
    });
  });
  if (has_routes) {
    for (std::vector<uint64_t>& layer : run.uses) std::ranges::fill(layer, 0);
    run.told_tokens = 0;
  }
  for (const vitrine::TokenRecord& record : run.records) {
    for (size_t i = 0; i < record.layers.size() && i < run.uses.size(); ++i) {
      for (const vitrine::RouteRecord& route : record.layers[i].routes) {
        const auto expert = static_cast<size_t>(route.expert);
        if (route.expert >= 0 && expert < run.uses[i].size()) ++run.uses[i][expert];
      }
    }
  }
  run.tokenizer = find_tokenizer(run.header, model);
  for (size_t i = 0; !run.tokenizer && i < run.text.size(); ++i) {
    if (run.text[i].empty()) continue;  // left out
    run.pieces.emplace(run.records[i].token, run.text[i]);
  }
  return run;
}

std::pair<uint64_t, uint64_t> readable_predictions(const Run& run) {
  std::pair<uint64_t, uint64_t> counts{0, 0};
  for (const vitrine::TokenRecord& record : run.records) {
    if (record.has_prediction) ++(record.prediction.generated ? counts.first : counts.second);
  }
  return counts;
}

bool is_redacted(const Run& run, size_t index) {
  return index < run.is_redacted.size() && run.is_redacted[index];
}

std::string hidden_text(const Run& run) {
  const auto hidden = std::count(run.is_redacted.begin(), run.is_redacted.end(), true);
  const bool is_closed = run.report && run.report->closed_groups > 0;
  if (hidden == 0 && !is_closed) return "";
  return fmt::format("{} of {} records lack columns that were left out{}", hidden,
                     run.records.size(),
                     is_closed ? " or are encrypted (--decrypt KEYFILE, of a recipient)" : "");
}

std::string hidden_line(const Run& run) {
  const std::string text = hidden_text(run);
  return text.empty() ? "" : "hidden    " + text + "\n";
}

std::string plain(const std::string& text) {
  // What is no UTF-8 a terminal of 8 bits may take for controls.
  const bool is_ascii =
      std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  const std::string valid =
      is_ascii ? text
               : json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace))
                     .get<std::string>();
  std::string out;
  for (const char character : valid) {
    const auto byte = static_cast<unsigned char>(character);
    out += byte < 0x20 || byte == 0x7F ? '?' : character;
  }
  // C1 controls, as UTF-8: 0xC2 0x80 to 0xC2 0x9F.
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    if (static_cast<unsigned char>(out[i]) == 0xC2 &&
        static_cast<unsigned char>(out[i + 1]) < 0xA0) {
      out[i] = out[i + 1] = '?';
    }
  }
  // What turns the direction of the text behind it: U+202A to U+202E, U+2066 to U+2069.
  for (size_t i = 0; i + 2 < out.size(); ++i) {
    const auto last = static_cast<unsigned char>(out[i + 2]);
    const bool turns = (out.compare(i, 2, "\xE2\x80") == 0 && last >= 0xAA && last <= 0xAE) ||
                       (out.compare(i, 2, "\xE2\x81") == 0 && last >= 0xA6 && last <= 0xA9);
    if (turns) out.replace(i, 3, "?");
  }
  return out;
}

std::string Run::quoted(int32_t token) const {
  if (token < 0) return "-";
  const auto in_quotes = [](const std::string& bytes) {
    return plain(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace));
  };
  if (tokenizer && token < tokenizer->vocab_size()) {
    return in_quotes(tokenizer->token_bytes(token));
  }
  const auto piece = pieces.find(token);
  return piece == pieces.end() ? fmt::format("#{}", token) : in_quotes(piece->second);
}

Colours Colours::of_output() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool is_dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  if (::isatty(STDOUT_FILENO) == 0 || is_dumb || (no_color != nullptr && *no_color != '\0')) {
    return {};
  }
  return {"\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[34m", "\x1b[0m"};
}

const char* Colours::of_surprise(float logprob) const {
  if (logprob > -0.7f) return dim;     // more likely than not
  if (logprob > -2.3f) return "";      // more than one in ten
  if (logprob > -4.6f) return yellow;  // more than one in a hundred
  return red;
}

}  // namespace cli
