// SPDX-License-Identifier: Apache-2.0
// Medusa (Cai et al., arXiv 2401.10774): head h guesses the token h + 2 behind the position whose
// normed state it reads; a chain of the likeliest ones, or a tree of the likeliest paths.
#include <algorithm>

#include "checkpoint/fields.h"
#include "core/json_text.h"
#include "draft_heads/draft_tree.h"
#include "draft_heads/head_folder.h"
#include "draft_heads/head_kind.h"
#include "draft_heads/head_memory.h"
#include "draft_heads/head_text.h"
#include "draft_heads/shared_work.h"

namespace vitrine::draft_heads {

namespace {

constexpr int64_t kMedusaRows = 16;  // texts that are computed together
constexpr int64_t kMedusaWindow = 2;
constexpr int64_t kMaxMedusaHeads = 64;
constexpr int64_t kMaxMedusaLayers = 64;

struct MedusaConfig {
  std::string prefix;  // of the tensors' names: empty, or "medusa_heads."
  int64_t heads = 0;
  int64_t layers = 1;
  int64_t draft_vocabulary = 0;
  bool has_bias = false;
};

MedusaConfig read_medusa_config(const HeadSources& sources) {
  const Checkpoint& heads = sources.heads;
  const TargetModel& target = sources.target;
  const nlohmann::json whole = parse_json_object(heads.config_json(), heads.config_name());
  const checkpoint::Fields fields(whole, heads.config_name());
  MedusaConfig config;
  if (has_matrix(heads, "medusa_heads.blocks.0.layers.0")) config.prefix = "medusa_heads.";
  const std::string first = config.prefix + "blocks.0.layers.0";
  if (!has_matrix(heads, first)) {
    throw Error(ErrorKind::kBadFile, heads.path() + ": has no tensor '" + first +
                                         ".weight'; expected Medusa heads as vLLM reads them");
  }
  const auto same = [&](const char* name, int64_t expected, const char* what) {
    const auto found = fields.integer(name, 1, INT64_MAX);
    if (!found || *found == expected) return;
    fields.bad(name, std::to_string(expected) + ", " + what + " of " + target.checkpoint.path());
  };
  same("hidden_size", target.config.hidden_size, "the hidden size");
  same("vocab_size", target.config.vocab_size, "the tokens");
  int64_t present = 0;
  while (has_matrix(heads, config.prefix + "blocks." + std::to_string(present) + ".layers.0")) {
    ++present;
  }
  config.heads =
      fields.integer({"num_heads", "medusa_num_heads"}, 1, kMaxMedusaHeads).value_or(present);
  config.layers =
      fields.integer({"num_hidden_layers", "medusa_num_layers"}, 1, kMaxMedusaLayers).value_or(1);
  config.draft_vocabulary = fields.integer("truncated_vocab_size", 1, target.config.vocab_size)
                                .value_or(target.config.vocab_size);
  config.has_bias =
      fields.boolean("medusa_fc_bias").value_or(heads.find(first + ".bias") != nullptr);
  const std::vector<int>& layers = sources.layers;
  const auto depth = static_cast<int>(target.config.num_layers);
  if (!layers.empty() && layers != std::vector<int>{depth}) {
    throw Error(ErrorKind::kInvalidArgument,
                "option 'layers' of draft heads names others than " + std::to_string(depth) +
                    "; expected that one alone, or none: Medusa reads what leaves the last layer "
                    "of " +
                    target.checkpoint.path());
  }
  return config;
}

class MedusaDrafter final : public HeadDrafter {
 public:
  explicit MedusaDrafter(const HeadSources& sources)
      : config_(read_medusa_config(sources)),
        kernel_(ops::select_cpu_kernels()),
        width_(sources.target.config.hidden_size),
        vocabulary_(sources.target.config.vocab_size),
        blocks_(ops::divide_up(config_.draft_vocabulary, kernels::kHeadBlock)),
        epsilon_(sources.target.norm_epsilon),
        layers_{static_cast<int>(sources.target.config.num_layers)},
        scratch_(memory_, no_graph_, {.max_tokens = kMedusaRows, .max_rows = kMedusaRows}),
        products_(kernel_),
        work_(kernel_),
        weights_(kernel_, sources.heads, true),
        model_weights_(kernel_, sources.target.checkpoint, true, 0, /*mapped=*/true),
        normed_(scratch_.shared_rows("normed", kMedusaRows, width_)),
        state_(scratch_.shared_rows("state", kMedusaRows, width_)),
        branch_(scratch_.shared_rows("branch", kMedusaRows, width_)) {
    plan_blocks(sources.heads);
    plan_logits(sources);
    if (!sources.target.final_norm.empty()) {
      final_norm_ = model_weights_.vector(sources.target.final_norm, width_);
    }
    products_.allocate(memory_, 1, model_weights_.strip_bytes());
    weights_.load(1, 0);
    model_weights_.load(1, 0);
    logits_ = scratch_.array<float>(kMedusaRows * config_.draft_vocabulary);
    statistics_.resize(static_cast<size_t>(kMedusaRows * blocks_));
    best_.resize(static_cast<size_t>(config_.heads * kMedusaRows));
    asked_.reserve(kMedusaRows);
  }

  std::string_view name() const override { return "medusa"; }
  std::span<const int> feature_layers() const override { return layers_; }
  void lend(core::PieceThreads* threads) override { work_.lend(threads); }
  DraftTextId start(const DraftText& about) override {
    return texts_.add(std::make_unique<HeadText>(about, width_, kMedusaWindow));
  }
  DraftTextId fork(DraftTextId text) override { return texts_.fork(text); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    texts_.commit(text, tokens);
  }
  void truncate(DraftTextId text, int64_t length) override { texts_.truncate(text, length); }
  void release(DraftTextId text, bool) override { texts_.release(text); }
  DraftMemory memory() const override {
    DraftMemory memory{.weight_bytes = weights_.num_bytes()};
    for (const auto& [id, text] : texts_.all()) memory.index_bytes += text->bytes();
    return memory;
  }

  void observe(DraftTextId id, int64_t first, std::span<const float> rows) override {
    FeatureWindow& features = texts_.get(id).features;
    const int64_t count = count_rows(rows, width_);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = first + i;
      if (position < features.end()) continue;
      if (position > features.end() || features.is_full()) features.begin_at(position);
      std::copy_n(rows.data() + i * width_, width_, features.append());
      features.keep_prompt_row();
    }
  }

  void propose(std::span<DraftProposal> proposals) override {
    for (DraftProposal& proposal : proposals) {
      proposal.count = 0;
      const HeadText& text = texts_.get(proposal.text);
      const int64_t last = text.last_pair();
      if (last < 0 || limit(proposal) == 0) continue;
      const auto row = std::ssize(asked_);
      kernel_.rms_norm(text.features.row(last), final_norm_, epsilon_, width_, normed_.row(row));
      asked_.push_back(&proposal);
      if (std::ssize(asked_) == kMedusaRows) guess_together();
    }
    guess_together();
  }

 private:
  struct BlockLayer {
    const kernels::Weight* weight = nullptr;
    const float* bias = nullptr;
  };

  void plan_blocks(const Checkpoint& heads) {
    for (int64_t head = 0; head < config_.heads; ++head) {
      for (int64_t layer = 0; layer < config_.layers; ++layer) {
        const std::string module =
            config_.prefix + "blocks." + std::to_string(head) + ".layers." + std::to_string(layer);
        BlockLayer& block = block_layers_.emplace_back();
        block.weight = &weights_.matrix(module, width_, width_);
        if (config_.has_bias) block.bias = weights_.vector(module + ".bias", width_);
        scratch_.need(state_, *block.weight);
      }
    }
    if (config_.draft_vocabulary < vocabulary_) {
      tokens_of_drafts_ = read_tokens(heads, config_.prefix + "token_map", config_.draft_vocabulary,
                                      vocabulary_, /*offsets=*/false);
    }
  }

  /// A head's own rows; else one matrix for all of them; else the model's.
  void plan_logits(const HeadSources& sources) {
    const auto has = [&](const std::string& module) { return has_matrix(sources.heads, module); };
    const std::string own = config_.prefix + "lm_heads.";
    for (int64_t head = 0; head < config_.heads; ++head) {
      std::string module = own + std::to_string(head);
      if (head > 0 && !has(own + "1")) module = own + "0";
      if (!has(own + "0")) module = config_.prefix + "lm_head";
      const bool is_models =
          !has(own + "0") && !has(module) && config_.draft_vocabulary == vocabulary_;
      reads_model_ = reads_model_ || is_models;
      const kernels::Weight& weight =
          is_models ? model_weights_.matrix(sources.target.head, vocabulary_, width_)
                    : weights_.matrix(module, config_.draft_vocabulary, width_);
      scratch_.need(state_, weight);
      heads_.push_back(&weight);
    }
  }

  /// Guesses on a path.
  int64_t limit(const DraftProposal& proposal) const {
    const int64_t most = std::min(std::ssize(proposal.tokens), config_.heads);
    return proposal.parents.empty()
               ? most
               : std::min<int64_t>({most, proposal.max_depth, DraftTree::kMaxDepth});
  }

  void guess_together() {
    const auto count = static_cast<int32_t>(asked_.size());
    if (count == 0) return;
    if (reads_model_) model_weights_.check_files();
    int64_t most = 0;
    bool scores = false;  // of a tree
    for (const DraftProposal* proposal : asked_) {
      most = std::max(most, limit(*proposal));
      scores = scores || !proposal->parents.empty();
    }
    for (int64_t head = 0; head < most; ++head) {
      compute(head, count);
      find_best(head, count, scores);
    }
    for (int32_t row = 0; row < count; ++row) {
      DraftProposal& proposal = *asked_[static_cast<size_t>(row)];
      if (proposal.parents.empty()) {
        write_chain(proposal, row);
      } else {
        write_tree(proposal, row);
      }
    }
    asked_.clear();
  }

  /// Logits of one head for all texts that asked.
  void compute(int64_t head, int32_t count) {
    kernels::RowMap rows;
    rows.count = count;
    std::copy_n(normed_.data, count * width_, state_.data);
    for (int32_t row = 0; row < count; ++row) state_.quantize(kernel_, row);
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      const BlockLayer& block = block_layers_[static_cast<size_t>(head * config_.layers + layer)];
      work_.multiply({.weight = block.weight,
                      .in = &state_,
                      .rows = rows,
                      .bias = block.bias,
                      .out = branch_.data});
      work_.run_rows(width_, kernels::kTileRows, 16 * width_ * count,
                     [&](int64_t begin, int64_t end) { add_branch(count, begin, end); });
      for (int32_t row = 0; row < count; ++row) state_.quantize(kernel_, row);
    }
    const kernels::Weight& weight = *heads_[static_cast<size_t>(head)];
    if (weight.blocks == nullptr) {
      work_.multiply({.weight = &weight, .in = &state_, .rows = rows, .out = logits_});
    } else {  // the model's, in its file: there is scratch for one thread
      products_.linear(weight, 0, weight.rows, ops::activations(state_, weight), rows, nullptr,
                       nullptr, logits_, weight.rows);
    }
  }

  /// Adds silu(branch) to columns [begin, end) of the states.
  void add_branch(int32_t count, int64_t begin, int64_t end) {
    for (int64_t row = 0; row < count; ++row) {
      float* const state = state_.row(row);
      const float* const branch = branch_.row(row);
      for (int64_t i = begin; i < end; ++i) state[i] += branch[i] * kernel_.sigmoid(branch[i]);
    }
  }

  kernels::HeadStats& best_of(int64_t head, int32_t row) {
    return best_[static_cast<size_t>(head * kMedusaRows + row)];
  }

  /// Finds the best tokens of all rows; those of rows that asked for less are not read.
  void find_best(int64_t head, int32_t count, bool scores) {
    const int64_t vocabulary = config_.draft_vocabulary;
    for (int32_t row = 0; on_logits && row < count; ++row) {
      const DraftProposal& proposal = *asked_[static_cast<size_t>(row)];
      if (head >= limit(proposal)) continue;
      on_logits(proposal.text, static_cast<int32_t>(head),
                {logits_ + row * vocabulary, static_cast<size_t>(vocabulary)});
    }
    work_.run(count * blocks_, 4 * vocabulary * count, [&](int64_t piece) {
      const int64_t begin = piece % blocks_ * kernels::kHeadBlock;
      kernel_.head_block(logits_ + piece / blocks_ * vocabulary, begin,
                         std::min(vocabulary, begin + kernels::kHeadBlock), 1.0F, scores,
                         &statistics_[static_cast<size_t>(piece)], nullptr);
    });
    for (int32_t row = 0; row < count; ++row) {
      kernel_.head_merge(&statistics_[static_cast<size_t>(row * blocks_)],
                         static_cast<int32_t>(blocks_), &best_of(head, row));
    }
  }

  void write_chain(DraftProposal& proposal, int32_t row) {
    for (int64_t head = 0; head < limit(proposal); ++head) {
      const kernels::HeadStats& best = best_of(head, row);
      if (best.count == 0) return;  // all are NaN
      const int32_t draft = best.top_ids[0];
      proposal.tokens[static_cast<size_t>(proposal.count++)] =
          tokens_of_drafts_.empty() ? draft : tokens_of_drafts_[static_cast<size_t>(draft)];
    }
  }

  void write_tree(DraftProposal& proposal, int32_t row) {
    tree_.begin(std::ssize(proposal.tokens));
    tree_.add(-1, best_of(0, row), tokens_of_drafts_);
    for (int64_t head = 1; head < limit(proposal); ++head) {
      for (const int32_t parent : tree_.take_frontier()) {
        tree_.add(parent, best_of(head, row), tokens_of_drafts_);
      }
    }
    tree_.write(proposal);
  }

  const MedusaConfig config_;
  const kernels::CpuKernels& kernel_;
  const int64_t width_, vocabulary_;  // of the model
  const int64_t blocks_;              // of the draft vocabulary, by which statistics are made
  const float epsilon_;
  const std::vector<int> layers_;
  ops::Graph no_graph_;
  HeadMemory memory_;
  ops::PlanScratch scratch_;
  ops::Products products_;
  SharedWork work_;
  model::CheckpointWeights weights_, model_weights_;
  ops::RowBuffer &normed_, &state_, &branch_;
  const float* final_norm_ = nullptr;
  std::vector<BlockLayer> block_layers_;             // [heads, layers]
  std::vector<const kernels::Weight*> heads_;        // of their logits
  std::vector<int32_t> tokens_of_drafts_;            // empty: they are the model's
  bool reads_model_ = false;                         // in a step
  float* logits_ = nullptr;                          // [kMedusaRows, draft vocabulary]
  std::vector<kernels::HeadBlockStats> statistics_;  // [kMedusaRows, blocks]
  std::vector<kernels::HeadStats> best_;             // [heads, kMedusaRows]
  DraftTree tree_;
  HeadTexts<HeadText> texts_;
  std::vector<DraftProposal*> asked_;
};

std::unique_ptr<HeadDrafter> make_medusa(const HeadSources& sources) {
  return std::make_unique<MedusaDrafter>(sources);
}

}  // namespace

VITRINE_REGISTER_DRAFT_HEADS("medusa", &make_medusa);

}  // namespace vitrine::draft_heads
