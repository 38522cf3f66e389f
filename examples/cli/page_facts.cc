// SPDX-License-Identifier: Apache-2.0
#include "page_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "audit.h"
#include "hidden_values.h"

namespace cli {

namespace {

using vitrine::TokenRecord;
using Details = std::vector<std::pair<std::string, std::string>>;
using Seal = vitrine::VtrReport::Seal;

constexpr uint64_t kSecond = 1'000'000'000;  // in nanoseconds

bool is_broken(const Run& run) {
  return run.report ? run.report->seal == Seal::kBroken : !run.problem.empty();
}

std::string date_text(uint64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / kSecond);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  const size_t length = std::strftime(text.data(), text.size(), "%-d %B %Y, %H:%M:%S UTC", &parts);
  return {text.data(), length};
}

std::string duration_text(uint64_t ns) {
  const uint64_t seconds = ns / kSecond;
  if (seconds == 0) return fmt::format("{} milliseconds", ns / 1'000'000);
  if (seconds < 60) return fmt::format("{:.1f} seconds", static_cast<double>(ns) / 1e9);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

Details plain_pairs(const Details& pairs) {
  Details all;
  for (const auto& [name, value] : pairs) all.emplace_back(plain(name), plain(value));
  return all;
}

/// "top_k" as "top-k".
std::string option_name(const std::string& name) {
  std::string text = plain(name);
  std::ranges::replace(text, '_', '-');
  return text;
}

bool is_weights(const std::string& file) {
  return file.ends_with(".safetensors") || file.ends_with(".gguf");
}

PageFact weights_fact(const Run& run) {
  PageFact fact{"Its weights", "", {}};
  const auto& hashes = run.header.hashes;
  for (const auto& [file, hash] : hashes) {
    fact.details.emplace_back("SHA-256 of " + plain(file), plain(hash));
  }
  const auto count =
      std::ranges::count_if(hashes, [](const auto& one) { return is_weights(one.first); });
  const auto first =
      std::ranges::find_if(hashes, [](const auto& one) { return is_weights(one.first); });
  fact.text = hashes.empty() ? "not told: which model it was cannot be checked"
              : count == 1
                  ? fmt::format("{}, SHA-256 {}", plain(first->first), plain(first->second))
                  : fmt::format("files that are told by their SHA-256: {}", hashes.size());
  return fact;
}

PageFact engine_fact(const Run& run) {
  if (run.engine_build.empty()) return {"Engine", "not told: the log does not name its build"};
  const std::string build = plain(run.engine_build);
  const size_t hash = build.find(" blake2b-256 ");
  return {"Engine", build.substr(0, hash), {{"its build", build}}};
}

std::string stop_words(const std::string& reason) {
  constexpr std::array<std::pair<const char*, const char*>, 9> kWords{{
      {"length", "the set number of tokens was reached"},
      {"end of text", "the model ended its text"},
      {"context full", "there was no room for more"},
      {"cancelled", "it was cancelled"},
      {"complete", "the constraint was met and nothing could follow"},
      {"length_constrained", "the limit of tokens squeezed the answer into this form"},
      {"deadlock", "no token could follow under the constraint"},
      {"rejected", "no answer was accepted"},
      {"stop string", "a text came that was to end it"},
  }};
  for (const auto& [name, words] : kWords) {
    if (reason == name) return fmt::format("{} (“{}”)", words, reason);
  }
  return fmt::format("“{}”", plain(reason));
}

PageFact start_fact(const Run& run) {
  const uint64_t started = run.started_unix_ns;
  if (started == 0) return {"Began", "not told: the log has no clock times"};
  PageFact fact{"Began",
                date_text(started) + ", by the clock of the machine that ran it",
                {{"nanoseconds since 1970", std::to_string(started)}}};
  if (run.started_monotonic_ns > 0) {
    fact.details.emplace_back("nanoseconds of its monotonic clock",
                              std::to_string(run.started_monotonic_ns));
  }
  return fact;
}

PageFact end_fact(const Run& run) {
  const std::string why =
      run.stop_reason.empty() || run.stop_reason == "open" ? "" : stop_words(run.stop_reason);
  if (!run.report) return {"Ended", why.empty() ? "not told" : "when is not told; " + why};
  const uint64_t closed = run.report->closed_unix_ns;
  if (run.report->seal != Seal::kComplete) {
    return {"Ended", "not told: the record has no closing entry that holds"};
  }
  const uint64_t started = run.report->header.started_unix_ns;
  const std::string after = closed < started ? "before it began: the clock was set back"
                                             : duration_text(closed - started) + " later";
  return {"Ended",
          fmt::format("{}, {}; {}", date_text(closed), after, why),
          {{"nanoseconds since 1970", std::to_string(closed)}}};
}

PageFact choice_fact(const Run& run) {
  std::string how = "How each token was chosen is not told";
  std::string rest;
  for (const auto& [name, value] : run.header.sampler) {
    if (name == "temperature") {
      how = value == "0" ? "The most probable token was taken each time (temperature 0)"
                         : fmt::format(
                               "Each token was drawn by chance among the probable ones: "
                               "temperature {}",
                               plain(value));
    } else if (name != "samplers") {
      rest += fmt::format(", {} {}", option_name(name), plain(value));
    }
  }
  PageFact fact{"Options", fmt::format("{}{}; seed {}", how, rest, run.header.seed),
                plain_pairs(run.header.sampler)};
  fact.details.emplace_back("seed", std::to_string(run.header.seed));
  return fact;
}

PageFact machine_fact(const Run& run) {
  const vitrine::LogHeader& header = run.header;
  PageFact fact{"Ran on",
                fmt::format("{} with {} kernels ({}), {} thread{}", plain(header.device),
                            plain(header.kernels), plain(header.isa), header.threads,
                            header.threads == 1 ? "" : "s"),
                plain_pairs(header.engine)};
  fact.details.emplace_back("recorder",
                            fmt::format("{}, level {}", plain(run.mode), plain(run.level)));
  return fact;
}

PageFact seal_fact(const Run& run) {
  if (!run.report) {
    return {"Seal", "none: a JSON log is not sealed, and anyone could have changed it"};
  }
  const vitrine::VtrHeader& head = run.report->header;
  const std::string key = vitrine::public_key_text(head.public_key);
  PageFact fact{"Seal",
                is_broken(run) ? "BROKEN: what was sealed is not what is there"
                : head.is_key_ephemeral
                    ? "sealed, by a key that was made for this record alone and thrown away: that "
                      "tells of damage, not of who made the record, and whoever changes it can "
                      "seal it anew"
                    : fmt::format("sealed by the holder of the key {}…; whose key that is this "
                                  "page cannot know: compare it with the one that the maker gives "
                                  "out",
                                  key.substr(0, 16)),
                {}};
  if (is_broken(run)) {
    fact.details.emplace_back("what is wrong", plain(run.report->problem));
    fact.details.emplace_back(
        "where", fmt::format("record {}, byte {}", run.report->page, run.report->offset));
  }
  fact.details.emplace_back("public key (Ed25519)", key);
  std::string id;
  for (const uint8_t byte : head.log_id) id += fmt::format("{:02x}", byte);
  fact.details.emplace_back("the record's number", id);
  fact.details.emplace_back(
      "to check it", fmt::format("vitrine audit verify {} --key KEY.pub",
                                 plain(std::filesystem::path(run.path).filename().string())));
  return fact;
}

/// What some records lack, in words.
std::vector<std::string> hidden_words(const Run& run) {
  const bool has_hidden_predictions = hides_predictions(run);
  std::vector<std::string> words;
  const auto add = [&](const char* name, auto lacks) {
    for (size_t i = 0; i < run.records.size(); ++i) {
      if (!is_redacted(run, i) || !lacks(run.records[i], i)) continue;
      words.emplace_back(name);
      return;
    }
  };
  add("which tokens were read", [](const TokenRecord& one, size_t) { return one.token < 0; });
  if (run.report && run.report->header.has_text) {
    add("their text", [&run](const TokenRecord&, size_t i) {
      return i >= run.text.size() || run.text[i].empty();
    });
  }
  add("what was predicted and how probably", [&](const TokenRecord& one, size_t) {
    return has_hidden_predictions && !one.has_prediction;
  });
  add("which experts worked", [](const TokenRecord& one, size_t) {
    return std::ranges::any_of(one.layers, [](const auto& layer) {
      return std::ranges::any_of(layer.routes, [](const auto& route) { return route.expert < 0; });
    });
  });
  // What enters the first layer is the token's own, and goes with it.
  const auto is_of_token = [&run](size_t layer) {
    return run.report && run.report->header.layers[layer].reads_embedding;
  };
  add("the strength of the signal between layers", [&](const TokenRecord& one, size_t) {
    for (size_t i = 0; i < one.layers.size(); ++i) {
      if (std::isnan(one.layers[i].residual_norm) && !is_of_token(i)) return true;
    }
    return false;
  });
  if (!run.header.constraint.empty()) {
    add("what the constraint did", [](const TokenRecord& one, size_t) {
      return one.has_prediction && one.prediction.generated &&
             !one.prediction.constraint.is_given();
    });
  }
  if (!run.header.sampler.empty()) {
    add("what the sampler left to choose from", [](const TokenRecord& one, size_t) {
      return one.has_prediction && one.prediction.generated &&
             one.prediction.sampled.candidates == 0;
    });
  }
  if (!run.federation.specialists.empty()) {
    add("what each specialist said", [](const TokenRecord& one, size_t) {
      return one.has_prediction && one.prediction.federation.specialists.empty();
    });
  }
  if (run.report && !run.report->header.terms.empty()) {
    add("what each part added to a token's logit", [](const TokenRecord& one, size_t) {
      return one.has_prediction && attributions_of(one.prediction).empty();
    });
  }
  if (!run.hidden_state_layers.empty()) {
    add("the values between layers",
        [](const TokenRecord& one, size_t) { return one.hidden_states.empty(); });
  }
  return words;
}

bool has_hidden(const Run& run) {
  if (run.report && run.report->redacted_groups + run.report->closed_groups > 0) return true;
  return std::ranges::find(run.is_redacted, true) != run.is_redacted.end();
}

/// "12 of 83 records do not tell which experts worked, their text".
std::string hidden_sentence(const Run& run) {
  const std::vector<std::string> words = hidden_words(run);
  const auto count = std::ranges::count(run.is_redacted, true);
  if (count == 0) return "values that belong to no single token, such as where a constraint failed";
  return fmt::format("{} of {} records do not tell {}", count, run.records.size(),
                     words.empty() ? "values that this page does not show"
                                   : fmt::format("{}", fmt::join(words, ", ")));
}

/// How it is that something is not there.
std::string hidden_how(const Run& run) {
  if (!run.report || run.report->closed_groups == 0) return "left out";
  return run.report->redacted_groups == 0 ? "encrypted" : "left out or encrypted";
}

PageFact hidden_fact(const Run& run) {
  PageFact fact{"Left out", "nothing", {}};
  if (is_broken(run)) fact.text = "cannot be told of a broken record";
  if (has_hidden(run)) {
    const std::string how = hidden_how(run);
    fact.text = (how == "left out" ? "" : how + ": ") + hidden_sentence(run);
  }
  if (!run.report) return fact;
  if (has_hidden(run)) {
    fact.details.emplace_back("column groups of pages left out",
                              std::to_string(run.report->redacted_groups));
    fact.details.emplace_back("column groups of pages encrypted, not opened",
                              std::to_string(run.report->closed_groups));
  }
  for (const vitrine::VtrSealedKeys& one : run.report->header.sealed_keys) {
    fact.details.emplace_back("can be read with the key", vitrine::public_key_text(one.recipient));
  }
  return fact;
}

PageFact complete_fact(const Run& run) {
  const auto [generated, scored] = counted_predictions(run);
  return {"Complete",
          fmt::format("{}; {} records, {} tokens chosen", is_complete(run) ? "yes" : "NO",
                      run.records.size(), generated),
          {{"the account", account_line(run)}}};
}

}  // namespace

std::vector<PageFact> page_facts(const Run& run) {
  const vitrine::LogHeader& header = run.header;
  std::vector<PageFact> facts;
  facts.push_back({"Model",
                   plain(header.model_path),
                   {{"architecture", plain(header.architecture)},
                    {"layers", std::to_string(header.num_layers)},
                    {"tokens that it knows", std::to_string(header.vocab_size)}}});
  facts.push_back(weights_fact(run));
  facts.push_back(engine_fact(run));
  facts.push_back(start_fact(run));
  facts.push_back(end_fact(run));
  facts.push_back(choice_fact(run));
  if (!header.constraint.empty()) {
    facts.push_back({"Constraint", "the answer had to be of a form that was asked for",
                     plain_pairs(header.constraint)});
  }
  if (!run.federation.specialists.empty()) {
    facts.push_back(
        {"Specialists", plain(fmt::format("{} of {}", run.federation.combiner,
                                          fmt::join(run.federation.specialists, ", ")))});
  }
  facts.push_back(machine_fact(run));
  if (!run.header.host_name.empty()) facts.push_back({"Machine", plain(run.header.host_name)});
  facts.push_back(seal_fact(run));
  facts.push_back(complete_fact(run));
  facts.push_back(hidden_fact(run));
  if (run.report && !run.report->header.trace_id.empty()) {
    facts.push_back({"Trace", "OpenTelemetry " + plain(run.report->header.trace_id)});
  }
  return facts;
}

PageVerdict page_verdict(const Run& run) {
  const std::string unsealed =
      run.report ? "" : " It is not sealed either: nothing proves that it is as it was written.";
  if (is_broken(run)) {
    return {"broken",
            "BROKEN: this record was changed or damaged, or contradicts itself. Do not "
            "rely on what follows. What is wrong: " +
                plain(run.report ? run.report->problem : run.problem) + "." + unsealed};
  }
  const std::string also =
      has_hidden(run) ? fmt::format(" Also {}: {}.", hidden_how(run), hidden_sentence(run)) : "";
  if (!is_complete(run)) {
    const uint64_t lost = run.report ? run.report->counts.positions.num_lost() : run.lost;
    const bool is_open = run.report ? run.report->seal == Seal::kOpen : run.stop_reason == "open";
    std::string what;
    if (is_open) what += " it ends without its closing entry, by a crash or a cut.";
    if (lost > 0)
      what += fmt::format(" {} positions that the model worked on are not in it.", lost);
    return {"broken",
            "NOT COMPLETE: this record lacks a part of the run:" + what + also + unsealed};
  }
  if (!run.report) {
    return {"partly", "Not sealed: nothing proves that this record is as it was written." + also};
  }
  if (!also.empty()) {
    return {"partly", fmt::format("Complete, but {}: {}. The seal holds.",
                                  run.report->redacted_groups > 0 ? "redacted" : "encrypted",
                                  hidden_sentence(run))};
  }
  return {"whole", fmt::format("Complete: all {} positions that the model worked on are accounted "
                               "for, and the record is as it was when it was sealed.",
                               run.report->counts.positions.total())};
}

}  // namespace cli
