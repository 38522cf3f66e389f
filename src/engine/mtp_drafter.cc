// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/draft_text_table.h"
#include "engine/mtp_text.h"
#include "engine/step_runner.h"
#include "model/draft_layer.h"
#include "model/named_vector.h"
#include "ops/plan.h"
#include "vitrine/mtp.h"

namespace vitrine {

namespace {

using engine::MtpText;

// Pairs that wait for a pass of their own, unless guesses are asked for.
constexpr int64_t kMostWaiting = 64;
constexpr int kStepTokens = 512;

class MtpDrafter final : public Drafter {
 public:
  MtpDrafter(const std::string& path, const EngineOptions& target)
      : kernel_(ops::select_cpu_kernels()) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    const ModelConfig config = parse_model_config(checkpoint);
    hidden_ = config.hidden_size;
    eps_ = static_cast<float>(config.rms_norm_eps);
    feeds_normed_ = model::feeds_normed_rows(config);
    layers_ = {static_cast<int>(config.num_layers)};
    EngineOptions options;
    options.threads = target.threads;
    options.max_context = target.max_context;
    options.max_sequences = target.max_sequences;
    options.max_step_tokens = std::max(kStepTokens, target.max_sequences);
    options.mmap_weights = target.mmap_weights;
    options.keep_hidden_state = feeds_normed_;
    options.audit_mode = AuditMode::kNone;
    engine::LoadRequest request;
    request.is_draft_layer = true;
    engine_ = engine::EngineAccess::load(path, options, request);
    final_norm_ = model::read_named_vector(
        checkpoint, model::find_named_vector(checkpoint, model::final_norm_of(config), hidden_));
    pass_rows_.reserve(static_cast<size_t>(options.max_step_tokens * hidden_));
  }

  std::string_view name() const override { return "mtp"; }
  std::span<const int> feature_layers() const override { return layers_; }

  DraftTextId start(const DraftText& text) override {
    return texts_.add(
        std::make_unique<MtpText>(engine_->create_sequence(), hidden_, text.max_tokens));
  }
  DraftTextId fork(DraftTextId text) override {
    MtpText copy = texts_.get(text);
    copy.sequence = engine_->fork(copy.sequence);
    return texts_.add(std::make_unique<MtpText>(std::move(copy)));
  }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    texts_.get(text).append(tokens);
  }
  void truncate(DraftTextId text, int64_t length) override {
    MtpText& own = texts_.get(text);
    own.truncate(length);
    engine_->truncate(own.sequence, own.num_run());
  }
  void release(DraftTextId text, bool) override {
    engine_->release(texts_.get(text).sequence);
    texts_.erase(text);
  }

  // The layer reads what stands behind the model's last norm.
  void observe(DraftTextId text, int64_t first, std::span<const float> rows) override {
    MtpText& own = texts_.get(text);
    const int64_t count = std::ssize(rows) / hidden_;
    const std::span<float> normed = own.add_rows(first, count);
    for (int64_t row = 0; row < count; ++row) {
      kernel_.rms_norm(rows.data() + row * hidden_, final_norm_.data(), eps_, hidden_,
                       normed.data() + row * hidden_);
    }
    engine_->truncate(own.sequence, own.num_run());
    while (own.num_ready() > kMostWaiting) {  // the last one waits for the pass that guesses
      begin_pass();
      add_ready(own, std::min<int64_t>(own.num_ready() - 1, engine_->options().max_step_tokens),
                StepInput::Rows::kNone);
      run_pass();
    }
  }

  void propose(std::span<DraftProposal> proposals) override {
    active_.clear();
    for (DraftProposal& proposal : proposals) {
      MtpText& text = texts_.get(proposal.text);
      // Guesses behind a text that did not go on stand as they are.
      if (!text.guessed.empty() || text.num_ready() == 0 || !text.is_complete()) continue;
      active_.push_back({&text, core::chain_room(proposal)});
    }
    while (!active_.empty()) step();
    for (DraftProposal& proposal : proposals) {
      MtpText& text = texts_.get(proposal.text);
      engine_->truncate(text.sequence, text.num_run());
      const int64_t count = std::min(core::chain_room(proposal), std::ssize(text.guessed));
      std::copy_n(text.guessed.begin(), count, proposal.tokens.begin());
      proposal.count = static_cast<int32_t>(count);
    }
  }

 private:
  struct Active {
    MtpText* text;
    int64_t wanted;  // guesses
  };

  void begin_pass() {
    inputs_.clear();
    pass_rows_.clear();
    taken_.clear();
  }
  void add_input(MtpText& text, std::span<const int32_t> tokens, std::span<const float> rows,
                 StepInput::Rows choice) {
    StepInput input;
    input.sequence = text.sequence;
    input.tokens = tokens;
    input.rows = choice;
    inputs_.push_back(input);
    pass_rows_.insert(pass_rows_.end(), rows.begin(), rows.end());
  }
  void add_ready(MtpText& text, int64_t count, StepInput::Rows choice) {
    add_input(text, text.ready_tokens(count), text.ready_rows(count), choice);
    taken_.push_back({&text, count});
  }
  std::span<const StepOutput> run_pass() {
    const auto outputs = engine_->step_layers(inputs_, {0, 1}, pass_rows_);
    for (const auto& [text, count] : taken_) text->take(count);
    return outputs;
  }

  // One pass for all texts that want guesses: of the pairs that are ready, or of the guess that was
  // made last and what the layer gave for it.
  void step() {
    int64_t room = engine_->options().max_step_tokens;
    choosers_.clear();
    begin_pass();
    int64_t first = 0;
    for (const Active& one : active_) {
      MtpText& text = *one.text;
      if (room == 0) break;
      int64_t count = 1;
      if (text.guessed.empty()) {
        count = std::min(text.num_ready(), room);
        const bool is_last = count == text.num_ready();
        add_ready(text, count, is_last ? StepInput::Rows::kLast : StepInput::Rows::kNone);
        if (is_last) choosers_.push_back({&text, first + count - 1});
      } else {
        add_input(text, {&text.guessed.back(), 1}, text.output, StepInput::Rows::kLast);
        choosers_.push_back({&text, first});
      }
      first += count;
      room -= count;
    }
    const std::span<const StepOutput> outputs = run_pass();
    const std::span<const float> streams = engine_->residual_rows();
    for (size_t i = 0; i < choosers_.size(); ++i) {
      const auto& [text, token] = choosers_[i];
      const auto stream =
          streams.subspan(static_cast<size_t>(token * hidden_), static_cast<size_t>(hidden_));
      std::ranges::copy(feeds_normed_ ? outputs[i].hidden_state : stream, text->output.begin());
      text->guessed.push_back(outputs[i].token);
    }
    std::erase_if(active_, [&](const Active& one) { return is_done(one); });
  }

  bool is_done(const Active& one) const {
    const std::vector<int32_t>& guessed = one.text->guessed;
    if (guessed.empty()) return false;
    const std::vector<int32_t>& ends = engine_->summary().eos_token_ids;
    return std::ssize(guessed) >= one.wanted ||
           std::ranges::find(ends, guessed.back()) != ends.end() ||
           engine_->length(one.text->sequence) >= engine_->options().max_context;
  }

  const kernels::CpuKernels& kernel_;
  std::unique_ptr<Engine> engine_;  // of the layer
  int64_t hidden_ = 0;
  float eps_ = 0;
  bool feeds_normed_ = false;
  std::vector<int> layers_;
  std::vector<float> final_norm_;  // [hidden] of the model
  core::DraftTextTable<MtpText> texts_;
  // Of the proposals under way:
  std::vector<Active> active_;
  // Of the pass under way:
  std::vector<StepInput> inputs_;
  std::vector<float> pass_rows_;                        // [tokens, hidden]
  std::vector<std::pair<MtpText*, int64_t>> taken_;     // pairs of texts
  std::vector<std::pair<MtpText*, int64_t>> choosers_;  // each at a token of the pass
};

}  // namespace

std::unique_ptr<Drafter> make_mtp_drafter(const std::string& path, const EngineOptions& target) {
  return std::make_unique<MtpDrafter>(path, target);
}

}  // namespace vitrine
