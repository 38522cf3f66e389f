// SPDX-License-Identifier: Apache-2.0
#include <sodium.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/sha256.h"
#include "corpus_report.h"
#include "cover.h"
#include "scrubber.h"
#include "separation.h"
#include "vitrine/calibration.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLeastTokens = compress::kLeastWindow;

/// A document's ids, in windows.
struct Document {
  std::string text;
  std::vector<std::vector<int32_t>> windows;
  int64_t tokens = 0;
};

struct Source {
  const CalibrationSource* told = nullptr;
  std::vector<Document> documents;
  std::vector<std::pair<size_t, size_t>> order;  // document and window, in which they are taken
  size_t next = 0;                               // of order
  int64_t taken_tokens = 0, tokens = 0;
  std::vector<bool> used;  // by document
};

/// [0, count) so that any beginning of it is spread over all of it (van der Corput's order).
std::vector<size_t> spread(size_t count) {
  std::vector<size_t> order;
  size_t width = 1;
  while (width < count) width *= 2;
  for (size_t i = 0; i < width; ++i) {
    size_t reversed = 0;
    for (size_t bit = 1, mirror = width / 2; bit < width; bit *= 2, mirror /= 2) {
      if ((i & bit) != 0) reversed += mirror;
    }
    if (reversed < count) order.push_back(reversed);
  }
  return order;
}

class CalibrationMaker {
 public:
  CalibrationMaker(const Tokenizer& tokenizer, const CalibrationRequest& request)
      : tokenizer_(tokenizer),
        request_(request),
        report_(tokenizer.vocab_size(), request.context) {}

  CalibrationTexts make(const std::string& tokenizer_sha256) {
    check();
    for (const CalibrationSource& source : request_.sources) read(source);
    CalibrationTexts calibration;
    calibration.tokenizer_sha256 = tokenizer_sha256;
    take(calibration);
    const Json separation = separate(calibration);
    Json manifest = {{"tokens", tokens_},
                     {"window", request_.window},
                     {"texts", calibration.texts.size()},
                     {"licence", request_.licence},
                     {"purpose", request_.purpose},
                     {"retention", request_.retention},
                     {"version", request_.version},
                     {"expires", request_.expires.empty() ? Json() : Json(request_.expires)},
                     {"sources", sources_json()},
                     {"corpus", corpus_json()},
                     {"choice", choice_},
                     {"scrubbed", scrubbed_json()},
                     {"scrubber_report", report_of_another()},
                     {"coverage", report_.json()},
                     {"separation", separation}};
    calibration.manifest = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
    return calibration;
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(ErrorKind::kInvalidArgument, what);
  }

  void check() const {
    if (request_.tokens < 1 || request_.window < static_cast<int64_t>(kLeastTokens)) {
      refuse("a calibration of " + std::to_string(request_.tokens) + " tokens in windows of " +
             std::to_string(request_.window) + "; expected at least 1 and " +
             std::to_string(kLeastTokens));
    }
    if (request_.sources.empty()) refuse("a calibration without sources; expected a text");
  }

  void read(const CalibrationSource& told) {
    if (request_.progress) request_.progress(told.name);
    Source source;
    source.told = &told;
    for (const std::string& text : told.documents) {
      if (text.find('\0') != std::string::npos) {
        refuse(told.name + ": a document has a zero byte; expected text");
      }
      Document document;
      document.text = request_.scrubs ? scrubber_.scrub(text) : text;
      const std::vector<int32_t> ids = tokenizer_.encode(document.text);
      document.tokens = std::ssize(ids);
      source.tokens += document.tokens;
      const auto width = static_cast<size_t>(request_.window);
      for (size_t begin = 0; begin < ids.size(); begin += width) {
        const size_t count = std::min(width, ids.size() - begin);
        if (count < kLeastTokens) break;
        const auto first = ids.begin() + static_cast<ptrdiff_t>(begin);
        document.windows.emplace_back(first, first + static_cast<ptrdiff_t>(count));
      }
      source.documents.push_back(std::move(document));
    }
    std::vector<std::pair<size_t, size_t>> all;
    for (size_t d = 0; d < source.documents.size(); ++d) {
      for (size_t w = 0; w < source.documents[d].windows.size(); ++w) all.emplace_back(d, w);
    }
    for (const size_t i : spread(all.size())) source.order.push_back(all[i]);
    source.used.resize(source.documents.size());
    sources_.push_back(std::move(source));
  }

  /// A window of a document of a source.
  struct Window {
    size_t source, document, window;
  };

  std::vector<int32_t>& ids_of(const Window& window) {
    return sources_[window.source].documents[window.document].windows[window.window];
  }

  /// Windows for so many tokens, each from the source that has given the fewest tokens so far.
  std::vector<Window> in_turn(int64_t tokens) {
    std::vector<Window> taken;
    std::vector<int64_t> given(sources_.size());
    for (int64_t total = 0; total < tokens;) {
      size_t least = sources_.size();
      for (size_t i = 0; i < sources_.size(); ++i) {
        if (sources_[i].next == sources_[i].order.size()) continue;
        if (least == sources_.size() || given[i] < given[least]) least = i;
      }
      if (least == sources_.size()) break;
      const auto [document, window] = sources_[least].order[sources_[least].next++];
      taken.push_back({least, document, window});
      const int64_t count = std::ssize(ids_of(taken.back()));
      given[least] += count;
      total += count;
    }
    return taken;
  }

  /// Windows of the pool as request_.choose has them.
  std::vector<Window> chosen() {
    const std::vector<Window> pool =
        in_turn(std::max(request_.tokens, request_.pool > 0 ? request_.pool : 4 * request_.tokens));
    std::vector<std::vector<int32_t>> windows;
    for (const Window& window : pool) windows.push_back(ids_of(window));
    const WindowChoice choice = request_.choose(windows);
    choice_ = Json::parse(choice.record, nullptr, false);
    if (!choice_.is_object()) refuse("the record of a choice is no JSON; expected an object");
    std::vector<Window> order;
    std::vector<bool> is_taken(pool.size());
    for (const size_t i : choice.order) {
      if (i >= pool.size() || is_taken[i]) {
        refuse("a choice names window " + std::to_string(i) + " of " + std::to_string(pool.size()) +
               (i < pool.size() ? " twice" : "") + "; expected each once at most");
      }
      is_taken[i] = true;
      order.push_back(pool[i]);
    }
    return order;
  }

  void take(CalibrationTexts& calibration) {
    for (const Window& window : request_.choose ? chosen() : in_turn(request_.tokens)) {
      if (tokens_ >= request_.tokens) break;
      Source& source = sources_[window.source];
      std::vector<int32_t>& ids = ids_of(window);
      const auto left = static_cast<size_t>(request_.tokens - tokens_);
      if (ids.size() > left) ids.resize(std::max(left, kLeastTokens));
      source.taken_tokens += std::ssize(ids);
      tokens_ += std::ssize(ids);
      source.used[window.document] = true;
      report_.add_window(ids);
      calibration.texts.push_back(ids);
    }
    if (calibration.texts.empty()) {
      refuse("the corpus has no text of " + std::to_string(kLeastTokens) +
             " tokens; expected more text");
    }
    for (const Source& source : sources_) {
      for (size_t d = 0; d < source.documents.size(); ++d) {
        if (!source.used[d]) continue;
        report_.add_document(source.documents[d].text, source.documents[d].tokens);
      }
    }
  }

  Json report_of_another() const {
    if (request_.scrubber_report.empty()) return nullptr;
    Json report = Json::parse(request_.scrubber_report, nullptr, false);
    if (!report.is_object()) refuse("a scrubber's report is no JSON; expected an object");
    return report;
  }

  Json separate(const CalibrationTexts& calibration) const {
    if (request_.evaluations.empty()) return nullptr;
    compress::Separation separation;
    compress::Scrubber scrubber;  // evaluations lose what the calibration lost, to be comparable
    Json names = Json::array();
    for (const CalibrationSource& source : request_.evaluations) {
      for (const std::string& text : source.documents) {
        separation.add_evaluation(tokenizer_.encode(request_.scrubs ? scrubber.scrub(text) : text));
      }
      names.push_back({{"name", source.name}, {"sha256", source.sha256}});
    }
    int64_t shared = 0;
    double likeness = 0;
    for (const std::vector<int32_t>& ids : calibration.texts) {
      shared += separation.shared_tokens(ids);
      likeness = std::max(likeness, separation.largest_likeness(ids));
    }
    const double share = static_cast<double>(shared) / static_cast<double>(tokens_);
    if (share > request_.most_shared) {
      refuse("the evaluations share " + std::to_string(shared) + " of " + std::to_string(tokens_) +
             " tokens with the calibration, in runs of " +
             std::to_string(compress::Separation::kRun) + "; expected at most a share of " +
             std::to_string(request_.most_shared) + ", of other texts");
    }
    return {{"evaluations", names},
            {"run", compress::Separation::kRun},
            {"shared_tokens", shared},
            {"share", share},
            {"largest_likeness", likeness}};
  }

  Json sources_json() const {
    Json all = Json::array();
    for (const Source& source : sources_) {
      all.push_back({{"name", source.told->name},
                     {"sha256", source.told->sha256},
                     {"documents", source.documents.size()},
                     {"documents_used", std::ranges::count(source.used, true)},
                     {"tokens", source.tokens},
                     {"tokens_used", source.taken_tokens}});
    }
    return all;
  }

  Json scrubbed_json() const {
    if (!request_.scrubs) return nullptr;
    Json counts = Json::object();
    for (const compress::ScrubCount& count : scrubber_.counts()) {
      counts[std::string(count.kind)] = count.found;
    }
    return counts;
  }

  /// The root over the digests of the used documents, each behind a salt of its own, which is told
  /// to whoever may know that the document is among them.
  Json corpus_json() const {
    std::vector<std::string> level;
    Json salts = Json::array();
    for (const Source& source : sources_) {
      for (size_t d = 0; d < source.documents.size(); ++d) {
        if (!source.used[d]) continue;
        const std::string salt = random_salt();
        salts.push_back(salt);
        level.push_back(sha256_of_text(salt + sha256_of_text(source.told->documents[d])));
      }
    }
    while (level.size() > 1) {
      std::vector<std::string> next;
      for (size_t i = 0; i < level.size(); i += 2) {
        next.push_back(i + 1 < level.size() ? sha256_of_text(level[i] + level[i + 1]) : level[i]);
      }
      level = std::move(next);
    }
    return {{"merkle_root", level.front()}, {"salts", salts}};
  }

  static std::string random_salt() {
    std::array<uint8_t, 16> bytes{};
    randombytes_buf(bytes.data(), bytes.size());
    return hex(bytes);
  }

  const Tokenizer& tokenizer_;
  const CalibrationRequest& request_;
  compress::Scrubber scrubber_;
  compress::CorpusReport report_;
  std::vector<Source> sources_;
  Json choice_;
  int64_t tokens_ = 0;
};

}  // namespace

CalibrationTexts make_calibration(const Tokenizer& tokenizer, const std::string& tokenizer_sha256,
                                  const CalibrationRequest& request) {
  return CalibrationMaker(tokenizer, request).make(tokenizer_sha256);
}

}  // namespace vitrine
