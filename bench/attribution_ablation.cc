// SPDX-License-Identifier: Apache-2.0
// Does a term of the attribution say what happens without its part? For each of a model's generated
// tokens, every routed expert's weight is forced to zero in a rerun of the step, one expert at a
// time; the effect is how far the chosen token's logit falls. Prints the rank correlation between
// terms and effects, whatever it is.
//
//     build/bench/attribution_ablation MODEL [--tokens N] [--threads T] [--prompt TEXT]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "vitrine/audit.h"
#include "vitrine/engine.h"
#include "vitrine/tokenizer.h"

namespace {

using vitrine::ForcedRoute;
using vitrine::StepInput;
using vitrine::TokenRecord;

std::string option(int argc, char** argv, const std::string& name, const std::string& fallback) {
  for (int i = 2; i + 1 < argc; ++i) {
    if (name == argv[i]) return argv[i + 1];
  }
  return fallback;
}

int number(int argc, char** argv, const std::string& name, int fallback) {
  return std::atoi(option(argc, argv, name, std::to_string(fallback)).c_str());
}

/// Ranks from 1; equal values share the mean of theirs.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  std::vector<double> result(values.size());
  for (size_t first = 0; first < order.size();) {
    size_t end = first + 1;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    const double rank = static_cast<double>(first + end + 1) / 2;
    for (; first < end; ++first) result[order[first]] = rank;
  }
  return result;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto count = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / count;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / count;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

/// Terms of experts, and the fall of the logit without each.
struct Pairs {
  std::vector<double> terms, effects;
  void add(double term, double effect) {
    terms.push_back(term);
    effects.push_back(effect);
  }
  double spearman() const { return correlation(ranks(terms), ranks(effects)); }
  /// The middle 95 % of 1,000 draws of as many tokens, each with all its experts.
  std::pair<double, double> interval(size_t tokens) const {
    const size_t each = terms.size() / tokens;
    std::mt19937 random(1);
    std::vector<double> found;
    for (int draw = 0; draw < 1000; ++draw) {
      Pairs drawn;
      for (size_t i = 0; i < tokens; ++i) {
        const size_t first = random() % tokens * each;
        for (size_t j = first; j < first + each; ++j) drawn.add(terms[j], effects[j]);
      }
      found.push_back(drawn.spearman());
    }
    std::ranges::sort(found);
    return {found[25], found[974]};
  }
};

class Ablation {
 public:
  Ablation(const std::string& path, int threads) {
    vitrine::EngineOptions options;
    options.threads = threads;
    options.attribution = true;
    options.keep_logits = true;
    engine_ = vitrine::Engine::load(path, options);
    engine_->set_audit_sink(&ring_);
  }
  ~Ablation() { engine_->set_audit_sink(nullptr); }
  Ablation(const Ablation&) = delete;
  Ablation& operator=(const Ablation&) = delete;

  /// Generates greedily behind a prompt, and takes each token's step apart.
  void run(std::vector<int32_t> prompt, int tokens) {
    if (prompt.empty()) prompt.push_back(0);
    const vitrine::SequenceId sequence = engine_->create_sequence();
    for (size_t i = 0; i + 1 < prompt.size(); ++i) step(sequence, prompt[i], {});
    int32_t token = prompt.back();
    for (int i = 0; i < tokens; ++i) {
      const TokenRecord record = step(sequence, token, {});
      take_apart(sequence, record);
      token = record.prediction.token;
    }
    engine_->release(sequence);
  }

  void print() const {
    std::printf("%d tokens, %zu experts forced to weight 0, one at a time\n\n", tokens_,
                free_.terms.size());
    std::printf(
        "Spearman rank correlation of an expert's term and the fall of the logit without it\n"
        "(in brackets the middle 95 %% of 1,000 draws of the tokens)\n");
    print_line("later layers route as they like", free_);
    print_line("later layers keep their routes and weights", frozen_);
    for (size_t layer = 0; layer < by_layer_.size(); ++layer) {
      if (by_layer_[layer].terms.empty()) continue;
      print_line("  experts of layer " + std::to_string(layer) + " alone", by_layer_[layer]);
    }
    std::printf("\nmean over tokens of the correlation within a token  %6.3f\n",
                within_ / std::max(1, tokens_));
    std::printf("other tokens chosen without one expert              %zu of %zu\n", flips_,
                free_.terms.size());
  }

 private:
  TokenRecord step(vitrine::SequenceId sequence, int32_t token,
                   const std::vector<ForcedRoute>& routes, int32_t target = -1) {
    StepInput input;
    input.sequence = sequence;
    input.tokens = {&token, 1};
    input.routes = routes;
    const auto outputs = engine_->step({&input, 1});
    if (target >= 0) logit_ = static_cast<double>(outputs[0].scores[static_cast<size_t>(target)]);
    return ring_.drain_records().back();
  }

  void print_line(const std::string& name, const Pairs& pairs) const {
    const auto [low, high] = pairs.interval(static_cast<size_t>(tokens_));
    std::printf("  %-46s %6.3f  [%.3f, %.3f]\n", name.c_str(), pairs.spearman(), low, high);
  }

  void take_apart(vitrine::SequenceId sequence, const TokenRecord& record) {
    const auto& attribution = record.prediction.attribution;
    const int64_t before = engine_->length(sequence) - 1;
    Pairs own;
    size_t term = 0;
    by_layer_.resize(record.layers.size());
    for (const vitrine::LayerRecord& layer : record.layers) {
      for (size_t slot = 0; slot < layer.routes.size(); ++slot) {
        while (attribution.terms.at(term).kind != vitrine::AuditLayout::Term::Kind::kExpert) ++term;
        const double value = static_cast<double>(attribution.terms.at(term++).value);
        for (const bool is_frozen : {false, true}) {
          std::vector<ForcedRoute> routes;
          for (const vitrine::LayerRecord& other : record.layers) {
            const bool is_forced = other.layer == layer.layer || is_frozen;
            for (size_t i = 0; is_forced && i < other.routes.size(); ++i) {
              const bool is_out = other.layer == layer.layer && i == slot;
              routes.push_back(
                  {0, other.layer, other.routes[i].expert, is_out ? 0.0F : other.routes[i].weight});
            }
          }
          engine_->truncate(sequence, before);
          const TokenRecord without = step(sequence, record.token, routes, record.prediction.token);
          const double effect = static_cast<double>(attribution.logit) - logit_;
          (is_frozen ? frozen_ : free_).add(value, effect);
          if (is_frozen) continue;
          own.add(value, effect);
          by_layer_[static_cast<size_t>(layer.layer)].add(value, effect);
          flips_ += without.prediction.token != record.prediction.token ? 1 : 0;
        }
      }
    }
    engine_->truncate(sequence, before);  // as it was: the next token follows the whole model
    step(sequence, record.token, {});
    within_ += own.spearman();
    ++tokens_;
  }

  std::unique_ptr<vitrine::Engine> engine_;
  vitrine::SlabRing ring_{size_t{1} << 20, vitrine::SlabRing::WhenFull::kOverwrite};
  double logit_ = 0;  // of the token asked for, in the last step
  Pairs free_, frozen_;
  std::vector<Pairs> by_layer_;
  double within_ = 0;
  size_t flips_ = 0;
  int tokens_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: attribution_ablation MODEL [--tokens N] [--threads T] [--prompt "
                 "TEXT]\n");
    return 2;
  }
  const auto tokenizer = vitrine::Tokenizer::from_file(std::string(argv[1]) + "/tokenizer.json");
  Ablation ablation(argv[1], number(argc, argv, "--threads", 0));
  ablation.run(tokenizer.encode(option(argc, argv, "--prompt", "Once upon a time there was")),
               std::max(1, number(argc, argv, "--tokens", 200)));
  ablation.print();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "attribution_ablation: %s\n", error.what());
  return 1;
}
