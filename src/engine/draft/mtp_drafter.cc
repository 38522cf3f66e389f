// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/draft_text_table.h"
#include "engine/draft/draft_budget.h"
#include "engine/draft/mtp_text.h"
#include "engine/engine_access.h"
#include "engine/engine_options.h"
#include "engine/run/loaded_model.h"
#include "model/draft_layer.h"
#include "model/named_vector.h"
#include "ops/plan.h"
#include "vitrine/drafters.h"

namespace vitrine {

namespace {

using engine::MtpText;

// Pairs that wait for a pass of their own, unless guesses are asked for.
constexpr int64_t kMostWaiting = 64;
constexpr int kStepTokens = 512;
// Each waits for what the one before it gave, so that of the last one so many times kMostWaiting
// pairs come together, in one step.
constexpr int kMostLayers = kStepTokens / static_cast<int>(kMostWaiting) - 1;

EngineOptions layer_options(const EngineOptions& target) {
  EngineOptions options;
  options.threads = target.threads;
  options.shared_threads = target.shared_threads;
  options.max_context = target.max_context;
  options.max_sequences = target.max_sequences;
  options.max_step_tokens = std::max(kStepTokens, target.max_sequences);
  options.mmap_weights = target.mmap_weights;
  options.audit_mode = AuditMode::kNone;
  options.cancelled = target.cancelled;
  return options;
}

int count_layers(const ModelConfig& config) {
  return std::min(model::num_draft_layers(config), kMostLayers);
}

engine::DraftNeed layer_need(const Checkpoint& checkpoint, const EngineOptions& target) {
  const ModelConfig config = parse_model_config(checkpoint);
  engine::DraftNeed need;
  for (int index = 0; index < count_layers(config); ++index) {
    model::DraftLayer layer = model::build_draft_layer(checkpoint, config, index);
    const EngineOptions options =
        engine::resolve_options(layer_options(target), checkpoint, layer.config, layer.graph);
    need.add(options, layer.graph);
  }
  return need;
}

class MtpDrafter final : public Drafter {
 public:
  MtpDrafter(const std::string& path, const EngineOptions& target)
      : kernel_(ops::select_cpu_kernels()) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    const ModelConfig config = parse_model_config(checkpoint);
    hidden_ = config.hidden_size;
    eps_ = static_cast<float>(config.rms_norm_eps);
    feeds_normed_ = model::feeds_normed_rows(config);
    feature_layers_ = {static_cast<int>(config.num_layers)};
    const int num_layers = count_layers(config);
    EngineOptions options = layer_options(target);
    options.keep_hidden_state = feeds_normed_;
    options.kv_bytes =
        engine::draft_budget(path + ": mtp", layer_need(checkpoint, target), target) /
        static_cast<uint64_t>(num_layers);
    engine::LoadRequest request;
    for (int layer = 0; layer < num_layers; ++layer) {
      request.draft_layer = layer;
      engines_.push_back(engine::EngineAccess::load(path, options, request));
      options.shared_threads = engines_[0]->threads();  // they run by turns
    }
    room_ = options.max_step_tokens;
    final_norm_ = model::read_named_vector(
        checkpoint, model::find_named_vector(checkpoint, model::final_norm_of(config), hidden_));
    tokens_.reserve(static_cast<size_t>(room_));
    pass_rows_.reserve(static_cast<size_t>(room_ * hidden_));
  }

  std::string_view name() const override { return "mtp"; }
  std::span<const int> feature_layers() const override { return feature_layers_; }

  DraftMemory memory() const override {
    DraftMemory memory;
    for (const auto& engine : engines_) {
      const ModelSummary& layer = engine->summary();
      memory.weight_bytes += layer.weight_bytes + layer.mapped_bytes;
      memory.kv_bytes += layer.kv_bytes;
    }
    for (const auto& [id, text] : texts_.all()) memory.index_bytes += text->bytes();
    return memory;
  }

  DraftTextId start(const DraftText& text) override {
    std::vector<SequenceId> sequences;
    for (const auto& engine : engines_) sequences.push_back(engine->create_sequence());
    auto added = std::make_unique<MtpText>(std::move(sequences), hidden_, text.max_tokens);
    added->cancelled = text.cancelled;
    return texts_.add(std::move(added));
  }
  DraftTextId fork(DraftTextId text) override {
    MtpText copy = texts_.get(text);
    for (size_t layer = 0; layer < engines_.size(); ++layer) {
      copy.set_sequence(layer, engines_[layer]->fork(copy.sequence(layer)));
    }
    return texts_.add(std::make_unique<MtpText>(std::move(copy)));
  }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    texts_.get(text).append(tokens);
  }
  void truncate(DraftTextId text, int64_t length) override {
    MtpText& own = texts_.get(text);
    own.truncate(length);
    forget_beyond(own);
  }
  void release(DraftTextId text, bool) override {
    MtpText& own = texts_.get(text);
    for (size_t layer = 0; layer < engines_.size(); ++layer) {
      engines_[layer]->release(own.sequence(layer));
    }
    texts_.erase(text);
  }

  // The first layer reads what stands behind the model's last norm.
  void observe(DraftTextId text, int64_t first, std::span<const float> rows) override {
    MtpText& own = texts_.get(text);
    const int64_t count = std::ssize(rows) / hidden_;
    own.forget_outputs(first);
    const std::span<float> normed = own.add_rows(0, first, count);
    for (int64_t row = 0; row < count; ++row) {
      kernel_.rms_norm(rows.data() + row * hidden_, final_norm_.data(), eps_, hidden_,
                       normed.data() + row * hidden_);
    }
    forget_beyond(own);
    run_waiting(own);
  }

  void propose(std::span<DraftProposal> proposals) override {
    active_.clear();
    for (DraftProposal& proposal : proposals) {
      MtpText& text = texts_.get(proposal.text);
      // Guesses behind a text that did not go on stand as they are.
      if (!text.guessed.empty() || text.num_ready(0) == 0 || !text.is_complete()) continue;
      run_waiting(text);
      text.guessed_rows.clear();
      active_.push_back({&text, core::chain_room(proposal)});
    }
    try {
      for (size_t depth = 0; !active_.empty(); ++depth) guess(depth);
    } catch (...) {  // it may be asked again
      for (const DraftProposal& proposal : proposals) forget_guesses(texts_.get(proposal.text));
      throw;
    }
    for (DraftProposal& proposal : proposals) {
      MtpText& text = texts_.get(proposal.text);
      forget_beyond(text);
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
  // What a text brings to a pass.
  struct Part {
    MtpText* text;
    int64_t first, ready, guessed;  // token of the pass; tokens that are known, and others behind
  };

  // The layers keep what they have computed for pairs of known tokens.
  void forget_beyond(MtpText& text) {
    for (size_t layer = 0; layer < engines_.size(); ++layer) {
      engines_[layer]->truncate(text.sequence(layer), text.num_run(layer));
    }
  }

  void forget_guesses(MtpText& text) {
    text.guessed.clear();
    forget_beyond(text);
  }

  void begin_pass(size_t layer) {
    layer_ = layer;
    inputs_.clear();
    tokens_.clear();
    pass_rows_.clear();
    parts_.clear();
  }
  void add_rows(std::span<const int32_t> tokens, std::span<const float> rows) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    pass_rows_.insert(pass_rows_.end(), rows.begin(), rows.end());
  }
  // Ends the rows of a text: `ready` pairs of known tokens, and what stands behind them.
  void add_input(MtpText& text, int64_t first, int64_t ready, StepInput::Rows choice) {
    StepInput input;
    input.sequence = text.sequence(layer_);
    input.cancelled = text.cancelled;
    input.rows = choice;
    inputs_.push_back(input);
    parts_.push_back({&text, first, ready, std::ssize(tokens_) - first - ready});
  }
  std::span<const float> stream_rows(int64_t first, int64_t count) const {
    return engines_[layer_]->residual_rows().subspan(static_cast<size_t>(first * hidden_),
                                                     static_cast<size_t>(count * hidden_));
  }
  // What a layer gave is what the next one reads.
  std::span<const StepOutput> run_pass() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Part& part = parts_[i];
      inputs_[i].tokens = std::span(tokens_).subspan(
          static_cast<size_t>(part.first), static_cast<size_t>(part.ready + part.guessed));
    }
    const auto outputs = engines_[layer_]->step_layers(inputs_, {0, 1}, pass_rows_);
    for (const Part& part : parts_) {
      const int64_t position = part.text->next(layer_);
      part.text->take(layer_, part.ready);
      if (layer_ + 1 == engines_.size() || part.ready == 0) continue;
      const std::span<float> rows = part.text->add_rows(layer_ + 1, position, part.ready);
      std::ranges::copy(stream_rows(part.first, part.ready), rows.begin());
      engines_[layer_ + 1]->truncate(part.text->sequence(layer_ + 1),
                                     part.text->num_run(layer_ + 1));
    }
    return outputs;
  }

  // Where many pairs wait, all but the last, which waits for the pass that guesses.
  void run_waiting(MtpText& text) {
    for (size_t layer = 0; layer < engines_.size(); ++layer) {
      while (text.num_ready(layer) > kMostWaiting) {
        const int64_t count = std::min(text.num_ready(layer) - 1, room_);
        begin_pass(layer);
        add_rows(text.ready_tokens(layer, count), text.ready_rows(layer, count));
        add_input(text, 0, count, StepInput::Rows::kNone);
        run_pass();
      }
    }
  }

  // One guess more for all texts that want one, by the layer of that depth, or the last.
  void guess(size_t depth) {
    begin_pass(std::min(depth, engines_.size() - 1));
    for (const Active& one : active_) {
      MtpText& text = *one.text;
      const bool goes_on = depth >= engines_.size();
      const int64_t ready = goes_on ? 0 : text.num_ready(layer_);
      const std::span<const float> rows = goes_on       ? text.output
                                          : layer_ == 0 ? text.ready_rows(0, ready)
                                                        : text.rows(layer_);
      const std::span<const float> behind =
          goes_on ? std::span<const float>() : std::span<const float>(text.guessed_rows);
      const int64_t count = (std::ssize(rows) + std::ssize(behind)) / hidden_;
      if (std::ssize(tokens_) + count > room_) {
        choose();
        begin_pass(layer_);
      }
      const int64_t first = std::ssize(tokens_);
      add_rows(text.ready_tokens(layer_, ready), rows);
      add_rows(std::span(text.guessed).last(static_cast<size_t>(count - ready)), behind);
      add_input(text, first, ready, StepInput::Rows::kLast);
    }
    choose();
    std::erase_if(active_, [&](const Active& one) { return is_done(one); });
  }
  void choose() {
    const std::span<const StepOutput> outputs = run_pass();
    for (size_t i = 0; i < parts_.size(); ++i) {
      const auto& [text, first, ready, guessed] = parts_[i];
      const auto behind = stream_rows(first + ready, guessed);
      text->guessed_rows.assign(behind.begin(), behind.end());
      const auto last = stream_rows(first + ready + guessed - 1, 1);
      std::ranges::copy(feeds_normed_ ? outputs[i].hidden_state : last, text->output.begin());
      text->guessed.push_back(outputs[i].token);
    }
  }

  bool is_done(const Active& one) const {
    const std::vector<int32_t>& guessed = one.text->guessed;
    const std::vector<int32_t>& ends = engines_[0]->summary().eos_token_ids;
    const Engine& last = *engines_.back();
    return std::ssize(guessed) >= one.wanted ||
           std::ranges::find(ends, guessed.back()) != ends.end() ||
           last.length(one.text->sequence(engines_.size() - 1)) >= last.options().max_context;
  }

  const kernels::CpuKernels& kernel_;
  std::vector<std::unique_ptr<Engine>> engines_;  // of each layer
  int64_t hidden_ = 0, room_ = 0;                 // tokens of a pass
  float eps_ = 0;
  bool feeds_normed_ = false;
  std::vector<int> feature_layers_;
  std::vector<float> final_norm_;  // [hidden] of the model
  core::DraftTextTable<MtpText> texts_;
  // The members below belong to the proposals under way.
  std::vector<Active> active_;
  // The members below belong to the pass under way.
  size_t layer_ = 0;
  std::vector<StepInput> inputs_;
  std::vector<int32_t> tokens_;
  std::vector<float> pass_rows_;  // [tokens, hidden]
  std::vector<Part> parts_;       // as inputs_
};

}  // namespace

std::unique_ptr<Drafter> make_mtp_drafter(const std::string& path, const EngineOptions& target) {
  return std::make_unique<MtpDrafter>(path, target);
}

uint64_t mtp_kv_bytes(const std::string& path, const EngineOptions& target) {
  return layer_need(Checkpoint::open(path), target).whole;
}

}  // namespace vitrine
