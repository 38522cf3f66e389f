// SPDX-License-Identifier: Apache-2.0
#include "draft_heads/eagle_network.h"

#include <cmath>

#include "draft_heads/head_folder.h"
#include "model/rope.h"
#include "ops/feed_forward.h"

namespace vitrine::draft_heads {

namespace {

constexpr int32_t kBlock = EagleCache::kBlock;

/// "midlayer" (SafeAILab, SpecForge), or "layers.0".
std::string layer_name(const Checkpoint& heads, size_t index) {
  const bool is_mid = heads.find("midlayer.hidden_norm.weight") != nullptr;
  return index == 0 && is_mid ? "midlayer" : "layers." + std::to_string(index);
}

}  // namespace

EagleNetwork::EagleNetwork(const EagleConfig& config, const HeadSources& sources)
    : config_(config),
      checkpoint_(sources.heads),
      kernel_(ops::select_cpu_kernels()),
      epsilon_(static_cast<float>(config.layer.rms_norm_eps)),
      scratch_(memory_, no_graph_, {.max_tokens = kMaxRows, .max_rows = kMaxRows}),
      products_(kernel_),
      work_(kernel_),
      weights_(kernel_, sources.heads, true),
      part_width_(sources.target.config.hidden_size),
      features_(rows_of("features", std::ssize(config.layers) * part_width_)),
      fused_(rows_of("fused", config.layer.hidden_size)),
      joined_(rows_of("joined", 2 * config.layer.hidden_size)),
      normed_(rows_of("normed", config.layer.hidden_size)),
      query_(rows_of("query", config.layer.num_heads * config.layer.head_dim)),
      key_(rows_of("key", config.layer.num_kv_heads * config.layer.head_dim)),
      value_(rows_of("value", config.layer.num_kv_heads * config.layer.head_dim)),
      attended_(rows_of("attended", config.layer.num_heads * config.layer.head_dim)),
      stream_(rows_of("stream", config.layer.hidden_size)),
      hidden_(rows_of("hidden", config.layer.intermediate_size)),
      head_input_(rows_of("head_input", config.layer.hidden_size)),
      states_(rows_of("states", config.layer.hidden_size)) {
  const ModelConfig& layer = config_.layer;
  plan_fc(sources.target);
  layers_.resize(static_cast<size_t>(layer.num_layers));
  for (size_t i = 0; i < layers_.size(); ++i) plan_layer(i);
  final_norm_ = weights_.vector("norm.weight", layer.hidden_size);
  head_ = &weights_.matrix("lm_head", config_.draft_vocabulary, layer.hidden_size);
  scratch_.need(head_input_, *head_);
  const bool is_whole = config_.draft_vocabulary == layer.vocab_size;
  if (!is_whole || sources.heads.find("d2t") != nullptr) {
    tokens_of_drafts_ = read_tokens(sources.heads, "d2t", config_.draft_vocabulary,
                                    layer.vocab_size, /*offsets=*/true);
  }
  weights_.load(1, 0);
  if (model_weights_ != nullptr) {
    products_.allocate(memory_, 1, model_weights_->strip_bytes());
    model_weights_->load(1, 0);
  }
  logits_ = scratch_.array<float>(kMaxRows * config_.draft_vocabulary);
  blocks_.resize(static_cast<size_t>(
      kMaxRows * ops::divide_up(config_.draft_vocabulary, kernels::kHeadBlock)));
  best_.resize(kMaxRows);
  active_.reserve(kMaxRows);
  fused_rows_.reserve(kMaxRows);
  frequencies_ = model::rope_frequencies(layer, model::RopeKind::kOwn);
}

ops::RowBuffer& EagleNetwork::rows_of(const std::string& name, int64_t width) {
  return scratch_.shared_rows(name, kMaxRows, width);
}

void EagleNetwork::plan_fc(const TargetModel& target) {
  const int64_t hidden = config_.layer.hidden_size;
  fc_ = &weights_.matrix("fc", hidden, features_.width);
  scratch_.need(features_, *fc_);
  if (config_.norm_before_fc) whole_norm_ = weights_.vector("input_norm.weight", features_.width);
  if (config_.fc_norm) {
    const bool is_short = checkpoint_.find("fcs.0.weight") != nullptr;
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      const std::string name = (is_short ? "fcs." : "fc_norm.") + std::to_string(i) + ".weight";
      part_norms_.push_back(weights_.vector(name, part_width_));
    }
  }
  const int64_t vocabulary = config_.layer.vocab_size;
  if (has_matrix(checkpoint_, "embed_tokens")) {
    embedding_ = &weights_.matrix("embed_tokens", vocabulary, hidden);
    return;
  }
  if (hidden != part_width_) {
    throw Error(ErrorKind::kBadFile,
                checkpoint_.path() +
                    ": has no tensor 'embed_tokens.weight', and a hidden size of " +
                    std::to_string(hidden) + "; expected the tensor, or the hidden size of " +
                    target.checkpoint.path() + ", " + std::to_string(part_width_) +
                    ", to share its embedding");
  }
  model_weights_ = std::make_unique<model::CheckpointWeights>(kernel_, target.checkpoint, true, 0,
                                                              /*mapped=*/true);
  embedding_ = &model_weights_->matrix(target.embedding, vocabulary, hidden);
}

void EagleNetwork::plan_layer(size_t index) {
  const ModelConfig& config = config_.layer;
  const std::string name = layer_name(checkpoint_, index) + ".";
  const int64_t hidden = config.hidden_size;
  Layer& layer = layers_[index];
  layer.input = index == 0 ? &joined_ : &normed_;
  layer.input_norm = weights_.vector(name + "input_layernorm.weight", hidden);
  if (index == 0) layer.hidden_norm = weights_.vector(name + "hidden_norm.weight", hidden);
  layer.post_norm = weights_.vector(name + "post_attention_layernorm.weight", hidden);
  const auto attention = [&](const char* part, ops::RowBuffer& in, ops::RowBuffer& out,
                             const float** bias) {
    const std::string module = name + "self_attn." + part;
    const kernels::Weight& weight = weights_.matrix(module, out.width, in.width);
    scratch_.need(in, weight);
    if (config.attention_bias) *bias = weights_.vector(module + ".bias", out.width);
    return &weight;
  };
  layer.query = attention("q_proj", *layer.input, query_, &layer.query_bias);
  layer.key = attention("k_proj", *layer.input, key_, &layer.key_bias);
  layer.value = attention("v_proj", *layer.input, value_, &layer.value_bias);
  layer.output = attention("o_proj", attended_, stream_, &layer.output_bias);
  if (config_.query_key_norm) {
    layer.query_norm = weights_.vector(name + "self_attn.q_norm.weight", config.head_dim);
    layer.key_norm = weights_.vector(name + "self_attn.k_norm.weight", config.head_dim);
  }
  layer.gate = &weights_.matrix(name + "mlp.gate_proj", hidden_.width, hidden);
  layer.up = &weights_.matrix(name + "mlp.up_proj", hidden_.width, hidden);
  layer.down = &weights_.matrix(name + "mlp.down_proj", hidden, hidden_.width);
  ops::require_pair(*layer.gate, name + "mlp.gate_proj", *layer.up, name + "mlp.up_proj");
  scratch_.need(normed_, *layer.gate);
  scratch_.need(normed_, *layer.up);
  scratch_.need(hidden_, *layer.down);
  if (!config.windows.empty()) layer.window = static_cast<int32_t>(config.windows[index]);
}

void EagleNetwork::reserve(int64_t positions) {
  for (auto block = std::ssize(block_table_); block <= positions / kBlock; ++block) {
    block_table_.push_back(static_cast<int32_t>(block));
  }
  for (size_t i = 0; i < branch_tables_.size(); ++i) {
    branch_tables_[i] = block_table_;
    branch_begins_[i] = 0;
  }
  const double factor = static_cast<double>(model::rope_attention_factor(config_.layer));
  const auto half = std::ssize(frequencies_);
  for (int64_t position = std::ssize(cos_) / half; position < positions; ++position) {
    for (const float frequency : frequencies_) {
      const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
      cos_.push_back(static_cast<float>(std::cos(angle) * factor));
      sin_.push_back(static_cast<float>(std::sin(angle) * factor));
    }
  }
}

const int32_t* EagleNetwork::branch(EagleCache& cache, int32_t branch, int32_t from, int32_t first,
                                    int32_t slot) {
  std::vector<int32_t>& table = branch_tables_[static_cast<size_t>(branch)];
  int32_t& begin = branch_begins_[static_cast<size_t>(branch)];
  for (int32_t i = 0; i < EagleCache::kBranchBlocks; ++i) table[begin + i] = begin + i;
  begin = first / kBlock;
  for (int32_t i = 0; i < EagleCache::kBranchBlocks; ++i) {
    table[begin + i] = cache.branch_block(branch, i);
    if (slot / kBlock < begin + i) continue;
    cache.copy_block(from < 0 ? begin + i : cache.branch_block(from, i), table[begin + i]);
  }
  return table.data();
}

}  // namespace vitrine::draft_heads
