// SPDX-License-Identifier: Apache-2.0
// The attack that a log which withholds its text has to stand: a dictionary over the vocabulary.
//
//     recover_tokens LOG MODEL TRUTH [KEYFILE]
//
// TRUTH is the same run's log in the clear. For each position of LOG whose token cannot be read
// (with the recipient's key, if one is given), in order, every token of the vocabulary is tried:
//
// - by the model: the token is run behind what was recovered before it, with up to two tokens
// behind
//   it that the log shows, and what the log shows of these positions is compared;
// - without running what stands before: by the norm that enters the first layer, and by the digest
//   where the record shows everything else.
//
// Prints one line of JSON: how many positions are hidden, at how many there was anything to
// compare, how many tokens each way recovered, and how many were right of those that the model
// itself thinks most probable, which needs no log.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <numeric>

#include "vitrine/audit_log.h"
#include "vitrine/engine.h"

namespace {

using namespace vitrine;

constexpr size_t kBatch = 64;     // candidates in one step
constexpr size_t kLookAhead = 2;  // known tokens behind a candidate

struct Log {
  VtrHeader header;
  std::vector<TokenRecord> records;
  std::vector<uint64_t> digests;
};

Log read(const std::string& path, const std::optional<SealKey>& key) {
  VtrReader reader(path, key);
  Log log{reader.header(), {}, {}};
  for (VtrPage page; reader.next(page);) {
    page.digests.resize(page.records.size());
    log.records.insert(log.records.end(), page.records.begin(), page.records.end());
    log.digests.insert(log.digests.end(), page.digests.begin(), page.digests.end());
  }
  return log;
}

struct Score {
  int compared = 0, different = 0;
  void add(bool is_same) {
    ++compared;
    different += is_same ? 0 : 1;
  }
};

/// Compares what `shown` shows with what the model makes of a candidate.
void compare(const TokenRecord& shown, const TokenRecord& made, LogDetail detail, Score& score) {
  const TokenRecord rounded = round_record(made, detail);
  for (size_t i = 0; i < shown.layers.size(); ++i) {
    const LayerRecord &left = shown.layers[i], &right = rounded.layers[i];
    if (!std::isnan(left.residual_norm)) score.add(left.residual_norm == right.residual_norm);
    for (size_t slot = 0; slot < left.routes.size(); ++slot) {
      if (left.routes[slot].expert < 0) continue;
      score.add(left.routes[slot].expert == right.routes[slot].expert);
      score.add(left.routes[slot].weight == right.routes[slot].weight);
    }
  }
  if (!shown.has_prediction) return;
  for (size_t i = 0; i < shown.prediction.alternatives.size(); ++i) {
    if (i >= rounded.prediction.alternatives.size()) break;
    const AlternativeRecord &left = shown.prediction.alternatives[i],
                            &right = rounded.prediction.alternatives[i];
    score.add(left.token == right.token && left.logprob == right.logprob);
  }
}

class Attacker {
 public:
  explicit Attacker(const std::string& model) : ring_(size_t{64} << 20, SlabRing::WhenFull::kWait) {
    EngineOptions options;
    options.max_sequences = static_cast<int>(kBatch) + 1;
    options.max_context = 256;
    options.max_logit_rows = static_cast<int>(kBatch * (kLookAhead + 1));
    options.threads = 2;
    engine_ = Engine::load(model, options);
    engine_->set_audit_sink(&ring_);
    prefix_ = engine_->create_sequence();
  }
  int32_t vocabulary() const { return engine_->summary().vocab_size; }

  /// Returns the next ids of the vocabulary that one step tries.
  std::vector<int32_t> candidates_from(int32_t first) const {
    std::vector<int32_t> ids(std::min(kBatch, static_cast<size_t>(vocabulary() - first)));
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }
  /// The records of each candidate and what stands behind it, behind the prefix.
  std::vector<std::vector<TokenRecord>> run(std::span<const int32_t> candidates,
                                            std::span<const int32_t> behind) {
    std::vector<SequenceId> sequences;
    std::vector<std::vector<int32_t>> tokens;
    std::vector<StepInput> inputs;
    for (const int32_t candidate : candidates) {
      const bool is_first = engine_->length(prefix_) == 0;
      sequences.push_back(is_first ? engine_->create_sequence() : engine_->fork(prefix_));
      tokens.push_back({candidate});
      tokens.back().insert(tokens.back().end(), behind.begin(), behind.end());
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      StepInput input{.sequence = sequences[i], .tokens = tokens[i]};
      input.rows = StepInput::Rows::kAll;
      inputs.push_back(input);
    }
    engine_->step(inputs);
    std::map<uint64_t, std::vector<TokenRecord>> by_sequence;
    for (TokenRecord& record : ring_.drain_records()) {
      by_sequence[record.sequence].push_back(std::move(record));
    }
    std::vector<std::vector<TokenRecord>> made;
    for (const SequenceId sequence : sequences) {
      made.push_back(std::move(by_sequence[sequence]));
      engine_->release(sequence);
    }
    return made;
  }

  /// Puts a token behind the prefix; returns the one that the model thinks follows.
  int32_t advance(int32_t token) {
    StepInput input{.sequence = prefix_, .tokens = {&token, 1}};
    const int32_t next = engine_->step({&input, 1})[0].token;
    ring_.drain_records();
    return next;
  }

 private:
  SlabRing ring_;
  std::unique_ptr<Engine> engine_;
  SequenceId prefix_ = 0;
};

struct Best {
  int32_t token = -1;
  int different = 0, compared = 0;
};

Best search(Attacker& attacker, const Log& log, size_t at) {
  std::vector<int32_t> behind;
  for (size_t i = at + 1; i < log.records.size() && behind.size() < kLookAhead; ++i) {
    if (log.records[i].token < 0) break;
    behind.push_back(log.records[i].token);
  }
  Best best;
  for (int32_t first = 0; first < attacker.vocabulary(); first += kBatch) {
    const std::vector<int32_t> candidates = attacker.candidates_from(first);
    const auto made = attacker.run(candidates, behind);
    for (size_t i = 0; i < candidates.size(); ++i) {
      Score score;
      for (size_t j = 0; j < made[i].size(); ++j) {
        compare(log.records[at + j], made[i][j], log.header.detail, score);
      }
      if (score.compared == 0) return best;  // nothing is shown
      if (best.token < 0 || score.different < best.different) {
        best = {candidates[i], score.different, score.compared};
      }
    }
  }
  return best;
}

/// A token's norm is its embedding's, whatever stands before it.
std::vector<float> norms_of(Attacker& attacker) {
  std::vector<float> norms;
  for (int32_t first = 0; first < attacker.vocabulary(); first += kBatch) {
    const std::vector<int32_t> candidates = attacker.candidates_from(first);
    for (const auto& made : attacker.run(candidates, {})) {
      norms.push_back(made.at(0).layers.at(0).residual_norm);
    }
  }
  return norms;
}

int32_t by_norm(const std::vector<float>& norms, const TokenRecord& shown, LogDetail detail) {
  int32_t found = -1;
  for (size_t id = 0; id < norms.size(); ++id) {
    TokenRecord made;
    made.layers.resize(1);
    made.layers[0].residual_norm = norms[id];
    if (round_record(made, detail).layers[0].residual_norm != shown.layers[0].residual_norm) {
      continue;
    }
    if (found >= 0) return -1;  // two have it
    found = static_cast<int32_t>(id);
  }
  return found;
}

int32_t by_digest(TokenRecord record, uint64_t digest, int32_t vocabulary,
                  const std::vector<float>& norms) {
  for (int32_t id = 0; digest != 0 && id < vocabulary; ++id) {
    record.token = id;
    record.layers[0].residual_norm = norms[static_cast<size_t>(id)];
    if (record_digest(record) == digest) return id;
  }
  return -1;
}

int run(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: recover_tokens LOG MODEL TRUTH [KEYFILE]\n";
    return 2;
  }
  std::optional<SealKey> key;
  if (argc > 4) key = SealKey::load(argv[4]);
  const Log log = read(argv[1], key), truth = read(argv[3], {});
  if (log.records.size() != truth.records.size()) {
    std::cerr << "the logs are of two runs\n";
    return 1;
  }
  Attacker attacker(argv[2]);
  const std::vector<float> norms = norms_of(attacker);
  int hidden = 0, shown = 0, by_model = 0, without_model = 0, most_probable = 0;
  int32_t guess = 0;
  for (size_t i = 0; i < log.records.size(); ++i) {
    const int32_t real = truth.records[i].token;
    int32_t token = log.records[i].token;
    if (token < 0) {
      ++hidden;
      const Best best = search(attacker, log, i);
      shown += best.compared > 0;
      by_model += best.token == real;
      without_model +=
          by_norm(norms, log.records[i], log.header.detail) == real ||
          by_digest(log.records[i], log.digests[i], attacker.vocabulary(), norms) == real;
      most_probable += guess == real;
      token = best.token >= 0 ? best.token : guess;
    }
    guess = attacker.advance(token);
  }
  std::printf(
      "{\"hidden\":%d,\"with_something_shown\":%d,\"recovered_by_the_model\":%d,"
      "\"recovered_without_it\":%d,\"most_probable_is_right\":%d}\n",
      hidden, shown, by_model, without_model, most_probable);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
