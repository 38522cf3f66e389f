// SPDX-License-Identifier: Apache-2.0
#include "vitrine/drafters.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/draft_text_table.h"
#include "engine/engine_access.h"
#include "engine/occupant.h"
#include "engine/run/partial_steps.h"
#include "engine/run/step_checks.h"
#include "engine/run/step_runner.h"

namespace vitrine {

namespace {

constexpr int64_t kCheckedRun = 4;  // guesses between two checks by more layers

void check_exit_layers(const ModelSummary& model, int layers, int least, const char* what) {
  if (layers >= least && layers < model.num_layers) return;
  const std::string most = std::to_string(model.num_layers - 1);
  throw Error(ErrorKind::kInvalidArgument,
              model.path + ": the first " + std::to_string(layers) + " layers were to " + what +
                  "; expected " + std::to_string(least) + " to " + most + " of the model's " +
                  std::to_string(model.num_layers));
}

class EarlyExit final : public Drafter {
 public:
  EarlyExit(Engine& engine, const EarlyExitOptions& options)
      : engine_(engine),
        runner_(engine::EngineAccess::runner(engine)),
        steps_(engine::EngineAccess::partial_steps(engine)),
        model_(runner_.model()),
        options_(options),
        exit_(std::max(options.layers, options.checking_layers)) {
    const engine::Occupied occupied(engine::EngineAccess::occupant(engine));
    engine::require_layers(model_);
    check_exit_layers(model_.summary, options.layers, 1, "guess");
    if (options.checking_layers != 0) {
      check_exit_layers(model_.summary, options.checking_layers, options.layers + 1,
                        "check guesses");
    }
    steps_.prepare_guesses(static_cast<size_t>(kCheckedRun));
    exit_words_ = steps_.words_of({0, exit_});
    if (options.checking_layers > 0) {
      checked_words_ = steps_.words_of({options.layers, options.checking_layers});
    }
    const auto most = static_cast<size_t>(model_.options.max_step_tokens) + 1;
    const auto hidden = static_cast<size_t>(model_.summary.hidden_size);
    record_bytes_ = model_.layout.pass_words(0, 1) * sizeof(int32_t);
    chain_.reserve(most);
    below_.reserve(static_cast<size_t>(kCheckedRun) * hidden);
    rows_.residual.reserve(most * hidden);
    rows_.words.reserve(most * record_bytes_);
  }

  std::string_view name() const override {
    return options_.checking_layers > 0 ? "hispec" : "exit";
  }

  DraftTextId start(const DraftText& text) override {
    if (text.sequence == 0) {
      throw Error(ErrorKind::kInvalidArgument,
                  "early exit guesses in the sequence of a text; expected DraftText::sequence");
    }
    auto added = std::make_unique<ExitText>();
    added->sequence = text.sequence;
    added->cancelled = text.cancelled;
    added->tokens.reserve(static_cast<size_t>(text.max_tokens));
    return texts_.add(std::move(added));
  }
  DraftTextId fork(DraftTextId) override {
    throw Error(ErrorKind::kUnsupported,
                "early exit follows a text in its own sequence and forks none; start another text");
  }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    std::vector<int32_t>& all = texts_.get(text).tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  void truncate(DraftTextId text, int64_t length) override {
    texts_.get(text).tokens.resize(static_cast<size_t>(length));
  }
  void release(DraftTextId text, bool) override { texts_.erase(text); }

  void propose(std::span<DraftProposal> proposals) override {
    const engine::Occupied occupied(engine::EngineAccess::occupant(engine_));
    runner_.leads().begin(exit_, exit_words_);
    for (DraftProposal& proposal : proposals) {
      replaced_ = 0;
      guess(texts_.get(proposal.text), core::chain_room(proposal));
      proposal.replaced = replaced_;
      proposal.count = std::max(0, static_cast<int32_t>(chain_.size()) - 1);
      std::copy_n(chain_.begin() + (proposal.count > 0 ? 1 : 0), proposal.count,
                  proposal.tokens.begin());
    }
  }

 private:
  struct ExitText {
    SequenceId sequence = 0;
    std::vector<int32_t> tokens;  // the sequence holds all but the last
    const std::atomic<bool>* cancelled = nullptr;
  };

  // chain_: the last token of the text, and up to `most` guesses behind it.
  void guess(const ExitText& text, int64_t most) {
    kv::BlockPool& pool = model_.pool;
    chain_.clear();
    rows_.clear();
    sequence_ = text.sequence;
    cancelled_ = text.cancelled;
    past_ = pool.get(sequence_).length;
    const bool is_whole = pool.first_lagging_layer(sequence_) < 0;
    if (!is_whole || past_ + 1 != std::ssize(text.tokens)) return;
    // Positions of the blocks that the sequence holds, whatever its layers see.
    const int64_t held = (past_ + pool.block_size() - 1) / pool.block_size() * pool.block_size();
    struct Restored {
      engine::StepRunner& runner;
      SequenceId sequence;
      int64_t length;
      ~Restored() { runner.truncate(sequence, length); }
    };
    {
      const Restored restored{runner_, sequence_, past_};
      chain_.push_back(text.tokens.back());
      while (guesses() < most && has_room()) {
        if (options_.checking_layers > 0) {
          guess_checked(std::min(most - guesses(), kCheckedRun));
        } else {
          guess_next(rows_.residual);
        }
      }
      const bool leads = past_ + std::ssize(chain_) <= held && runner_.takes_leads();
      if (!leads || guesses() == 0 || !has_room()) return;
      StepInput last = input_of(std::span(chain_).last(1));
      last.rows = StepInput::Rows::kNone;
      steps_.guess({&last, 1}, {0, exit_}, {});
      append_residual(rows_.residual);
      append_words();
    }
    runner_.leads().add(sequence_, past_, chain_, rows_);
  }

  int64_t guesses() const { return std::ssize(chain_) - 1; }

  StepInput input_of(std::span<const int32_t> tokens) const {
    StepInput input{sequence_, tokens};
    input.cancelled = cancelled_;
    return input;
  }

  // Whether the last token of the chain can be computed.
  bool has_room() const {
    const StepInput input = input_of(std::span(chain_).last(1));
    return engine::measure_step({&input, 1}, model_.pool, model_.options).fits();
  }

  void append_residual(std::vector<float>& to) const {
    const std::span<const float> rows = steps_.residual_rows();
    to.insert(to.end(), rows.begin(), rows.end());
  }
  void append_words() {
    const std::span<const std::byte> words = steps_.guessed_words();
    rows_.words.insert(rows_.words.end(), words.begin(), words.end());
  }

  // What the first layers choose behind the chain. `residual`: where that of its last token goes.
  void guess_next(std::vector<float>& residual) {
    const StepInput input = input_of(std::span(chain_).last(1));
    const auto outputs = steps_.guess({&input, 1}, {0, options_.layers}, {});
    append_residual(residual);
    append_words();
    chain_.push_back(outputs[0].token);
  }

  // A run of these, as far as more layers choose the same, and then what those choose.
  void guess_checked(int64_t most) {
    const size_t first = chain_.size() - 1;
    below_.clear();
    do guess_next(below_);
    while (std::ssize(chain_) - 1 - static_cast<int64_t>(first) < most && has_room());
    const size_t count = chain_.size() - 1 - first;
    StepInput input = input_of(std::span(chain_).subspan(first, count));
    input.num_drafts = static_cast<int32_t>(count) - 1;
    const auto outputs =
        steps_.guess({&input, 1}, {options_.layers, options_.checking_layers}, below_);
    append_residual(rows_.residual);
    const std::span<const std::byte> words = steps_.guessed_words();
    if (!words.empty()) {
      checked_words_.copy(words.data(), rows_.words.data() + first * record_bytes_, count);
    }
    for (size_t i = 0; i < count; ++i) {
      int32_t& guess = chain_[first + 1 + i];
      if (guess == outputs[i].token) continue;
      guess = outputs[i].token;
      ++replaced_;
      keep(first + 2 + i);
      return;
    }
  }

  // So many tokens of the chain; the layers have seen all of them but the last.
  void keep(size_t count) {
    chain_.resize(count);
    rows_.residual.resize((count - 1) * static_cast<size_t>(model_.summary.hidden_size));
    if (!rows_.words.empty()) rows_.words.resize((count - 1) * record_bytes_);
    runner_.truncate(sequence_, past_ + static_cast<int64_t>(count) - 1);
  }

  Engine& engine_;
  engine::StepRunner& runner_;
  engine::PartialSteps& steps_;
  engine::LoadedModel& model_;
  const EarlyExitOptions options_;
  const int exit_;                    // layers that have seen what a lead has
  engine::LayerWords exit_words_;     // of these
  engine::LayerWords checked_words_;  // of the layers that check
  size_t record_bytes_ = 0;           // of a token
  core::DraftTextTable<ExitText> texts_{"early exit"};
  // The members below belong to the guess under way.
  SequenceId sequence_ = 0;
  const std::atomic<bool>* cancelled_ = nullptr;
  int64_t past_ = 0;
  int32_t replaced_ = 0;  // guesses, by the layers that check
  std::vector<int32_t> chain_;
  std::vector<float> below_;  // [tokens, hidden_size] of a run that is not checked yet
  engine::ExitRows rows_;     // of the chain
};

}  // namespace

std::unique_ptr<Drafter> make_early_exit(Engine& engine, const EarlyExitOptions& options) {
  return std::make_unique<EarlyExit>(engine, options);
}

}  // namespace vitrine
