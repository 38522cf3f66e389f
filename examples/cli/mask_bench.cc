// SPDX-License-Identifier: Apache-2.0
#include "mask_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

double microseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

void dump(const ordered_json& value, std::string& out) {
  if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ", ";
      dump(value[i], out);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!first) out += ", ";
      first = false;
      out += ordered_json(key).dump(-1, ' ', true) + ": ";
      dump(member, out);
    }
    out += '}';
  } else {
    out += value.dump(-1, ' ', true);
  }
}

/// Percentiles as numpy.percentile's: by linear interpolation.
ordered_json statistics(std::vector<double> values) {
  ordered_json out;
  out["n"] = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (double value : values) sum += value;
  out["avg"] = sum / static_cast<double>(values.size());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(place);
    const size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (values[high] - values[low]) * (place - static_cast<double>(low));
  };
  out["p50"] = at(0.5);
  out["p99"] = at(0.99);
  out["p99.9"] = at(0.999);
  out["p100"] = at(1);
  return out;
}

/// {name: microseconds} of the slowest.
ordered_json slowest_of(std::vector<std::pair<double, std::string>> schemas) {
  constexpr size_t kListed = 10;
  std::sort(schemas.rbegin(), schemas.rend());
  ordered_json out = ordered_json::object();
  for (size_t i = 0; i < std::min(kListed, schemas.size()); ++i) {
    out[schemas[i].second] = schemas[i].first;
  }
  return out;
}

}  // namespace

vitrine::TokenTable token_table(const vitrine::Tokenizer& tokenizer) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  std::vector<int32_t> end_ids;
  int32_t first_special = -1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) {
      bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
    } else if (first_special < 0) {
      first_special = id;
    }
  }
  for (const char* name :
       {"<|im_end|>", "<|endoftext|>", "</s>", "<|end_of_text|>", "<|eot_id|>"}) {
    const int32_t id = tokenizer.token_id(name);
    if (id >= 0) end_ids.push_back(id);
  }
  if (end_ids.empty() && first_special >= 0) end_ids.push_back(first_special);
  return vitrine::TokenTable::from_bytes(std::move(bytes), std::move(end_ids));
}

std::string dump_like_python(const ordered_json& value) {
  std::string out;
  dump(value, out);
  return out;
}

MaskBench::MaskBench(const vitrine::Tokenizer& tokenizer, const MaskBenchOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      table_(token_table(tokenizer)),
      mask_(table_.mask_words()) {
  if (!options.shares_masks) table_.limit_shared(0);
}

void MaskBench::add_to_hash() {
  for (const uint32_t word : mask_) {
    masks_hash_ = (masks_hash_ ^ word) * 0x9e3779b97f4a7c15ULL;
    masks_hash_ ^= masks_hash_ >> 29;
  }
}

MaskBenchResult MaskBench::run(const std::string& name, const std::string& text) {
  const size_t masks_before = mask_us_.size(), firsts_before = first_us_.size();
  const MaskBenchResult result = measure(name, text);
  if (mask_us_.size() > masks_before) {
    const auto begin = mask_us_.begin() + static_cast<std::ptrdiff_t>(masks_before);
    slowest_.emplace_back(*std::max_element(begin, mask_us_.end()), name);
  }
  if (first_us_.size() > firsts_before) slowest_first_.emplace_back(first_us_.back(), name);
  ++num_schemas_;
  ++counts_[result.outcome];
  if (result.outcome != MaskBenchResult::kPassing) failures_[name] = result;
  return result;
}

MaskBenchResult MaskBench::measure(const std::string& name, const std::string& text) {
  const ordered_json file = ordered_json::parse(text);
  const std::string schema = file.at("schema").dump();
  const Clock::time_point start = Clock::now();
  try {
    const auto grammar = vitrine::Grammar::json_schema(table_, schema, options_.schema);
    grammar.start()->allowed_tokens(mask_);
    first_us_.push_back(microseconds(start));
    for (const vitrine::Weakening& one : grammar.weakened()) {
      weakened_[name].push_back(one.pointer);
    }
    add_to_hash();
    for (size_t i = 0; i < file.at("tests").size(); ++i) {
      const ordered_json& test = file["tests"][i];
      const bool valid = test.at("valid");
      std::string wrong;
      try {
        wrong = run_instance(grammar, dump_like_python(test.at("data")), valid);
      } catch (const vitrine::Error& error) {
        wrong = std::string("while matching: ") + error.what();
      }
      if (microseconds(start) > options_.time_limit * 1e6) {
        return {MaskBenchResult::kTimeout, "took too long"};
      }
      if (wrong.empty()) continue;
      return {valid ? MaskBenchResult::kValidationError : MaskBenchResult::kInvalidationError,
              "test " + std::to_string(i) + ": " + wrong};
    }
  } catch (const vitrine::Error& error) {
    return {MaskBenchResult::kCompileError, error.what()};
  }
  return {};
}

/// The next mask; with a limit, then also what that leaves of it, counted by itself. The instances
/// are followed whatever the limit rules out.
void MaskBench::make_mask(vitrine::Constraint& constraint, size_t used) {
  const Clock::time_point start = Clock::now();
  constraint.allowed_tokens(mask_);
  mask_us_.push_back(microseconds(start));
  add_to_hash();
  if (options_.token_limit < 0) return;
  const std::vector<uint32_t> whole = mask_;
  const auto left = static_cast<uint32_t>(
      std::max<int64_t>(options_.token_limit - static_cast<int64_t>(used), 0));
  const Clock::time_point limited = Clock::now();
  constraint.keep_within(mask_, left);
  limit_us_.push_back(microseconds(limited));
  add_to_hash();
  mask_ = whole;
}

/// What went wrong, empty where it went right.
std::string MaskBench::run_instance(const vitrine::Grammar& grammar, const std::string& text,
                                    bool valid) {
  const std::vector<int32_t> ids = tokenizer_.encode(text, false);
  const auto constraint = grammar.start();
  size_t place = 0, used = 0;
  for (int32_t id : ids) {
    make_mask(*constraint, used++);
    const bool allowed = mask_[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
    const bool accepted = constraint->accept(id);
    if (allowed != accepted)
      return "the mask and accept() disagree at byte " + std::to_string(place);
    if (!accepted) {
      if (!valid) return "";
      return "refused at byte " + std::to_string(place) + ": " +
             text.substr(place > 40 ? place - 40 : 0, std::min<size_t>(place, 40)) + " >>> " +
             text.substr(place, 20);
    }
    place += table_.bytes(id).size();
  }
  make_mask(*constraint, used);
  if (constraint->is_complete() == valid) return "";
  return valid ? "not complete at the end" : "accepted: " + text.substr(0, 200);
}

nlohmann::ordered_json MaskBench::report() const {
  ordered_json out;
  ordered_json& summary = out["summary"];
  summary["schemas"] = num_schemas_;
  summary["passing"] = counts_[MaskBenchResult::kPassing];
  summary["compile_error"] = counts_[MaskBenchResult::kCompileError];
  summary["validation_error"] = counts_[MaskBenchResult::kValidationError];
  summary["invalidation_error"] = counts_[MaskBenchResult::kInvalidationError];
  summary["timeout"] = counts_[MaskBenchResult::kTimeout];
  if (options_.schema.lenient) summary["weakened"] = weakened_.size();
  summary["tbm_us"] = statistics(mask_us_);
  summary["ttfm_us"] = statistics(first_us_);
  if (options_.token_limit >= 0) summary["limit_us"] = statistics(limit_us_);
  char hash[17];
  std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(masks_hash_));
  summary["masks_hash"] = hash;
  const vitrine::TokenTable::SharedStatistics shared = table_.shared_statistics();
  summary["shared_masks"] = {{"hits", shared.hits},
                             {"misses", shared.misses},
                             {"evictions", shared.evictions},
                             {"masks", shared.masks},
                             {"bytes", shared.bytes}};
  static constexpr const char* kNames[] = {"", "compile error", "validation error",
                                           "invalidation error", "timeout"};
  ordered_json& failures = out["failures"];
  failures = ordered_json::object();
  for (const auto& [name, result] : failures_) {
    failures[name] = std::string(kNames[result.outcome]) + ": " + result.reason;
  }
  out["slowest"] = {{"tbm_us", slowest_of(slowest_)}, {"ttfm_us", slowest_of(slowest_first_)}};
  if (options_.schema.lenient) out["weakened"] = weakened_;
  return out;
}

}  // namespace cli
