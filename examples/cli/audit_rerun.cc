// SPDX-License-Identifier: Apache-2.0
#include "audit_rerun.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace cli {

namespace {

using vitrine::SequenceId;
using vitrine::StepInput;
using vitrine::TokenRecord;
using vitrine::VtrEvent;

constexpr size_t kNone = static_cast<size_t>(-1);

/// For each record the one at the next position of its sequence, or kNone.
std::vector<size_t> next_records(const Run& run) {
  std::vector<size_t> next(run.records.size(), kNone);
  std::map<uint64_t, size_t> last;
  for (size_t i = 0; i < run.records.size(); ++i) {
    const auto [found, is_new] = last.try_emplace(run.records[i].sequence, i);
    const TokenRecord& before = run.records[found->second];
    if (!is_new && before.position + 1 == run.records[i].position) next[found->second] = i;
    found->second = i;
  }
  return next;
}

class Rerun {
 public:
  Rerun(const Run& run, vitrine::Stepper& engine, bool force_routes, Choices* choices)
      : run_(run),
        engine_(engine),
        force_routes_(force_routes),
        choices_(choices),
        next_(next_records(run)),
        results_(run.records.size()),
        ring_(size_t{16} << 20, vitrine::SlabRing::WhenFull::kOverwrite) {
    if (choices_ != nullptr) sampler_ = logged_sampler(run);
    engine_.set_audit_sink(&ring_);
  }
  ~Rerun() {
    engine_.set_audit_sink(nullptr);
    for (const auto& [name, sequence] : sequences_) engine_.release(sequence.id);
  }
  Rerun(const Rerun&) = delete;
  Rerun& operator=(const Rerun&) = delete;

  std::vector<std::optional<TokenRecord>> take() {
    size_t event = 0;
    for (size_t i = 0; i < run_.records.size(); ++i) {
      for (; event < run_.events.size() && run_.events[event].first <= i; ++event) {
        apply(run_.events[event].second);
      }
      add(i);
    }
    for (auto& [name, sequence] : sequences_) flush(sequence);
    return std::move(results_);
  }

 private:
  struct Sequence {
    SequenceId id = 0;
    std::vector<size_t> pending;                      // records that the next step brings
    bool is_lost = false;                             // its past is not in the log
    bool has_scored = false;                          // among the pending
    std::vector<int32_t> tokens;                      // all that the engine has
    std::optional<vitrine::SamplerPipeline> sampler;  // of the answer that is being made
    int32_t chosen = -1;                              // by the log, behind the last token
    uint32_t branch = 0;
  };

  Sequence& open(uint64_t name, SequenceId id) {
    close(name);
    Sequence& sequence = sequences_[name];
    sequence.id = id;
    return sequence;
  }
  void close(uint64_t name) {
    const auto found = sequences_.find(name);
    if (found == sequences_.end()) return;
    flush(found->second);
    engine_.release(found->second.id);
    sequences_.erase(found);
  }

  void apply(const VtrEvent& event) {
    if (event.kind == VtrEvent::Kind::kCreated) {
      open(event.sequence, engine_.create_sequence());
    } else if (event.kind == VtrEvent::Kind::kForked) {
      const auto source = sequences_.find(event.source);
      const bool is_there = source != sequences_.end();
      if (is_there) flush(source->second);
      const bool is_lost = !is_there || source->second.is_lost;
      std::vector<int32_t> tokens = is_there ? source->second.tokens : std::vector<int32_t>();
      Sequence& fork = open(event.sequence,
                            is_there ? engine_.fork(source->second.id) : engine_.create_sequence());
      fork.is_lost = is_lost;
      fork.tokens = std::move(tokens);
      fork.branch = forks_++;
    } else if (event.kind == VtrEvent::Kind::kReleased) {
      close(event.sequence);
    } else if (event.kind == VtrEvent::Kind::kTruncated) {
      const auto found = sequences_.find(event.sequence);
      if (found == sequences_.end()) return;
      flush(found->second);
      if (!found->second.is_lost) truncate(found->second, event.first);
    } else {  // positions whose tokens are not in the log
      const auto found = sequences_.find(event.sequence);
      Sequence& sequence = found != sequences_.end()
                               ? found->second
                               : open(event.sequence, engine_.create_sequence());
      flush(sequence);
      sequence.is_lost = true;
    }
  }

  void truncate(Sequence& sequence, int64_t length) {
    engine_.truncate(sequence.id, length);
    sequence.tokens.resize(static_cast<size_t>(engine_.length(sequence.id)));
    sequence.chosen = -1;
  }

  void add(size_t index) {
    const TokenRecord& record = run_.records[index];
    const auto found = sequences_.find(record.sequence);
    Sequence& sequence = found != sequences_.end()
                             ? found->second
                             : open(record.sequence, engine_.create_sequence());
    if (sequence.is_lost) return;
    const int64_t length =
        engine_.length(sequence.id) + static_cast<int64_t>(sequence.pending.size());
    if (record.position < length && record.position >= 0) {  // a JSON log tells of no truncation
      flush(sequence);
      truncate(sequence, record.position);
    } else if (record.position != length) {
      flush(sequence);
      sequence.is_lost = true;
      return;
    }
    const bool scores = record.has_prediction && !record.prediction.generated;
    sequence.has_scored = sequence.has_scored || scores;
    sequence.pending.push_back(index);
    const size_t next = next_[index];
    const bool ends =
        record.has_prediction && (record.prediction.generated || next == kNone ||
                                  run_.records[next].token != record.prediction.token);
    const int limit = sequence.has_scored ? kRerunRows : kRerunStepTokens;
    if (ends || sequence.pending.size() >= static_cast<size_t>(limit)) flush(sequence);
  }

  /// True where the rerun needs what the model says after this record; also where the log may have
  /// left it out.
  bool wants_row(size_t index) const {
    return run_.records[index].has_prediction || is_redacted(run_, index);
  }

  void flush(Sequence& sequence) {
    const std::vector<size_t>& pending = sequence.pending;
    if (pending.empty()) return;
    std::vector<int32_t> tokens;
    tokens.reserve(pending.size());
    for (const size_t index : pending) tokens.push_back(run_.records[index].token);
    bool wants_all = false;
    for (size_t i = 0; i + 1 < pending.size(); ++i) wants_all = wants_all || wants_row(pending[i]);
    // Redacted predictions may ask for more rows than a step has.
    const size_t most = wants_all ? static_cast<size_t>(kRerunRows) : tokens.size();
    for (size_t first = 0; first < tokens.size(); first += most) {
      step(sequence, std::span(tokens).subspan(first, std::min(most, tokens.size() - first)), first,
           wants_all);
    }
    sequence.pending.clear();
    sequence.has_scored = false;
  }

  void step(Sequence& sequence, std::span<const int32_t> tokens, size_t first, bool wants_all) {
    const size_t last = sequence.pending[first + tokens.size() - 1];
    const TokenRecord& record = run_.records[last];
    StepInput input;
    input.sequence = sequence.id;
    input.tokens = tokens;
    input.rows = wants_all         ? StepInput::Rows::kAll
                 : wants_row(last) ? StepInput::Rows::kLast
                                   : StepInput::Rows::kNone;
    if (record.has_prediction) {
      input.next_token = record.prediction.token;
    } else if (next_[last] != kNone) {
      input.next_token = run_.records[next_[last]].token;
    }
    std::vector<vitrine::ForcedRoute> routes;
    for (size_t i = 0; force_routes_ && i < tokens.size(); ++i) {
      for (const auto& layer : run_.records[sequence.pending[first + i]].layers) {
        for (const vitrine::RouteRecord& route : layer.routes) {
          routes.push_back({static_cast<int32_t>(i), layer.layer, route.expert});
        }
      }
    }
    input.routes = routes;
    const std::span<const vitrine::StepOutput> outputs = engine_.step({&input, 1});
    // An answer begins where more comes in than the token that was chosen.
    const bool goes_on = tokens.size() == 1 && tokens[0] == sequence.chosen;
    if (!goes_on) sequence.sampler.reset();
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
    const bool is_chosen = record.has_prediction && record.prediction.generated;
    sequence.chosen = is_chosen ? record.prediction.token : -1;
    const bool is_asked = is_chosen && sampler_;
    const bool is_same = is_asked && choose(sequence, last, outputs.back());
    std::vector<TokenRecord> records = ring_.drain_records();
    if (is_same && !records.empty()) {
      records.back().prediction.sampled = sequence.sampler->decision();
    }
    for (size_t i = 0; i < records.size(); ++i) {
      results_[sequence.pending[first + i]] = std::move(records[i]);
    }
  }

  /// What the log's sampler says to the logits behind a record; false where the log has another.
  bool choose(Sequence& sequence, size_t index, const vitrine::StepOutput& output) {
    if (!sequence.sampler) {
      sequence.sampler = vitrine::SamplerPipeline::from_options(*sampler_);
    }
    const int32_t token = sequence.sampler->sample(output.scores, {.seed = sampler_->seed,
                                                                   .position = output.position + 1,
                                                                   .branch = sequence.branch,
                                                                   .history = sequence.tokens});
    if (token == run_.records[index].prediction.token) {
      ++choices_->equal;
      return true;
    }
    if (choices_->different == 0) {
      choices_->first = index;
      choices_->first_token = token;
    }
    ++choices_->different;
    return false;
  }

  const Run& run_;
  vitrine::Stepper& engine_;
  bool force_routes_;
  Choices* choices_;
  std::optional<vitrine::SamplerOptions> sampler_;
  uint32_t forks_ = 0;
  std::vector<size_t> next_;
  std::vector<std::optional<TokenRecord>> results_;
  vitrine::SlabRing ring_;
  std::map<uint64_t, Sequence> sequences_;
};

}  // namespace

RerunSizes rerun_sizes(const Run& run) {
  RerunSizes sizes;
  std::map<uint64_t, bool> live;
  size_t event = 0;
  for (size_t i = 0; i < run.records.size(); ++i) {
    for (; event < run.events.size() && run.events[event].first <= i; ++event) {
      const VtrEvent& at = run.events[event].second;
      if (at.kind == VtrEvent::Kind::kReleased) {
        live.erase(at.sequence);
      } else {
        live[at.sequence] = true;
      }
      sizes.sequences = std::max<int64_t>(sizes.sequences, static_cast<int64_t>(live.size()));
    }
    live[run.records[i].sequence] = true;
    sizes.sequences = std::max<int64_t>(sizes.sequences, static_cast<int64_t>(live.size()));
    sizes.context = std::max(sizes.context, run.records[i].position + 1);
  }
  return sizes;
}

std::optional<vitrine::SamplerOptions> logged_sampler(const Run& run) {
  if (run.header.sampler.empty() || !run.header.constraint.empty()) return {};
  const std::pair<std::string, std::string> by_guesses = {"draft_acceptance", "rejection"};
  if (std::ranges::find(run.header.speculation, by_guesses) != run.header.speculation.end()) {
    return {};  // what was guessed decided, too
  }
  vitrine::SamplerOptions options;
  options.seed = run.header.seed;
  for (const auto& [name, value] : run.header.sampler) {
    const bool is_known =
        name == "samplers" || std::ranges::find(vitrine::sampler_option_list(), name,
                                                &vitrine::SamplerOptionInfo::name) !=
                                  vitrine::sampler_option_list().end();
    if (!is_known) return {};  // something else decided too: a constraint, a newer version's stage
    try {
      vitrine::set_sampler_option(options, name, value);
    } catch (const vitrine::Error& error) {
      refuse(plain(run.path) + ": " + plain(error.what()));
    }
  }
  vitrine::check_sampler_options(options, run.header.vocab_size);
  return options;
}

std::vector<std::optional<TokenRecord>> rerun(const Run& run, vitrine::Stepper& engine,
                                              bool force_routes, Choices* choices) {
  return Rerun(run, engine, force_routes, choices).take();
}

}  // namespace cli
