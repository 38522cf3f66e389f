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

bool has_matrix(const Checkpoint& checkpoint, const std::string& module) {
  return checkpoint.find(module + ".weight") != nullptr ||
         checkpoint.find_quantized(module) != nullptr;
}

}  // namespace

EagleNetwork::EagleNetwork(const EagleConfig& config, const HeadSources& sources)
    : config_(config),
      checkpoint_(sources.heads),
      kernel_(ops::select_cpu_kernels()),
      epsilon_(static_cast<float>(config.layer.rms_norm_eps)),
      scratch_(memory_, no_graph_, {.max_tokens = kMaxRows, .max_rows = kMaxRows}),
      products_(kernel_),
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
  blocks_.resize(
      static_cast<size_t>(ops::divide_up(config_.draft_vocabulary, kernels::kHeadBlock)));
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

void EagleNetwork::multiply(const kernels::Weight& weight, const ops::RowBuffer& in,
                            const kernels::RowMap& rows, const float* bias, ops::RowBuffer& out,
                            bool adds) const {
  static constexpr float kOne = 1.0F;
  kernel_.linear(weight, 0, weight.rows, ops::activations(in, weight), rows, bias,
                 adds ? &kOne : nullptr, out.data, out.width);
}

void EagleNetwork::norm_features(float* features) const {
  if (whole_norm_ != nullptr) {
    kernel_.rms_norm(features, whole_norm_, epsilon_, features_.width, features);
  }
  for (const float* norm : part_norms_) {
    kernel_.rms_norm(features, norm, epsilon_, part_width_, features);
    features += part_width_;
  }
}

std::vector<float> EagleNetwork::fuse(std::span<const float> features) {
  std::ranges::copy(features, features_.row(0));
  norm_features(features_.row(0));
  features_.quantize(kernel_, 0);
  kernels::RowMap rows;
  rows.count = 1;
  multiply(*fc_, features_, rows, nullptr, fused_, false);
  return {fused_.row(0), fused_.row(1)};
}

void EagleNetwork::fuse_rows(std::span<const EagleRow> rows) {
  fused_rows_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    if (rows[i].features == nullptr) {
      std::copy_n(rows[i].state, fused_.width, fused_.row(row));
      continue;
    }
    std::copy_n(rows[i].features, features_.width, features_.row(row));
    norm_features(features_.row(row));
    features_.quantize(kernel_, row);
    fused_rows_.push_back(static_cast<int32_t>(i));
  }
  if (fused_rows_.empty()) return;
  kernels::RowMap map;
  map.in_rows = map.out_rows = fused_rows_.data();
  map.count = static_cast<int32_t>(fused_rows_.size());
  multiply(*fc_, features_, map, nullptr, fused_, false);
}

void EagleNetwork::enter_first_layer(std::span<const EagleRow> rows) {
  const int64_t hidden = config_.layer.hidden_size;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    float* joined = joined_.row(row);
    products_.embed_row(*embedding_, rows[i].token, 1.0F, joined);
    kernel_.rms_norm(joined, layers_[0].input_norm, epsilon_, hidden, joined);
    kernel_.rms_norm(fused_.row(row), layers_[0].hidden_norm, epsilon_, hidden, joined + hidden);
    joined_.quantize(kernel_, row);
    if (config_.norm_before_residual) std::copy_n(joined + hidden, hidden, fused_.row(row));
  }
}

void EagleNetwork::enter_layer(const Layer& layer, int32_t count) {
  for (int64_t row = 0; row < count; ++row) {
    kernel_.rms_norm(stream_.row(row), layer.input_norm, epsilon_, normed_.width, normed_.row(row));
    normed_.quantize(kernel_, row);
  }
}

void EagleNetwork::rotate(float* heads, int64_t count, int32_t position) const {
  const int64_t dim = config_.layer.head_dim;
  const auto half = std::ssize(frequencies_);
  for (int64_t head = 0; head < count; ++head) {
    kernel_.rope(heads + head * dim, cos_.data() + position * half, sin_.data() + position * half,
                 static_cast<int32_t>(2 * half));
  }
}

void EagleNetwork::write_keys(size_t index, std::span<const EagleRow> rows) {
  const Layer& layer = layers_[index];
  const ModelConfig& config = config_.layer;
  kernels::RowMap all;
  all.count = static_cast<int32_t>(rows.size());
  multiply(*layer.key, *layer.input, all, layer.key_bias, key_, false);
  multiply(*layer.value, *layer.input, all, layer.value_bias, value_, false);
  const kernels::KvKernels& kv = *kernels::find_kv_kernels(kernel_, "f32");
  for (size_t i = 0; i < rows.size(); ++i) {
    float* keys = key_.row(static_cast<int64_t>(i));
    const float* values = value_.row(static_cast<int64_t>(i));
    for (int64_t head = 0; layer.key_norm != nullptr && head < config.num_kv_heads; ++head) {
      float* key = keys + head * config.head_dim;
      kernel_.rms_norm(key, layer.key_norm, epsilon_, config.head_dim, key);
    }
    rotate(keys, config.num_kv_heads, rows[i].position);
    const kernels::KvView view = rows[i].cache->view(index);
    const int32_t slot = rows[i].slot;
    const int32_t* table = rows[i].blocks != nullptr ? rows[i].blocks : block_table_.data();
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      kv.write(view, table[slot / kBlock], slot % kBlock, head, keys + head * config.head_dim,
               values + head * config.head_dim);
    }
  }
}

void EagleNetwork::attend(size_t index, std::span<const EagleRow> rows) {
  const Layer& layer = layers_[index];
  const ModelConfig& config = config_.layer;
  kernels::RowMap map;
  map.in_rows = active_.data();
  map.count = static_cast<int32_t>(active_.size());
  multiply(*layer.query, *layer.input, map, layer.query_bias, query_, false);
  const kernels::KvKernels& kv = *kernels::find_kv_kernels(kernel_, "f32");
  const auto group = static_cast<int32_t>(config.num_heads / config.num_kv_heads);
  kernels::AttentionSpan span;
  span.heads = group;
  span.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  span.window = layer.window;
  span.query_stride = span.out_stride = config.head_dim;
  for (size_t i = 0; i < active_.size(); ++i) {
    const EagleRow& row = rows[static_cast<size_t>(active_[i])];
    float* queries = query_.row(static_cast<int64_t>(i));
    for (int64_t head = 0; layer.query_norm != nullptr && head < config.num_heads; ++head) {
      float* query = queries + head * config.head_dim;
      kernel_.rms_norm(query, layer.query_norm, epsilon_, config.head_dim, query);
    }
    rotate(queries, config.num_heads, row.position);
    span.block_table = row.blocks != nullptr ? row.blocks : block_table_.data();
    span.position = row.slot;
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      const int64_t first = int64_t{head} * group * config.head_dim;
      span.kv_head = head;
      span.query = queries + first;
      span.out = attended_.row(static_cast<int64_t>(i)) + first;
      kv.attend(row.cache->view(index), span);
    }
    attended_.quantize(kernel_, static_cast<int64_t>(i));
  }
}

void EagleNetwork::feed_forward(const Layer& layer, int32_t count) {
  kernels::RowMap all;
  all.count = count;
  for (int64_t row = 0; row < count; ++row) {
    kernel_.rms_norm(stream_.row(row), layer.post_norm, epsilon_, normed_.width, normed_.row(row));
    normed_.quantize(kernel_, row);
  }
  kernel_.gate_up(*layer.gate, *layer.up, 0, hidden_.width, ops::activations(normed_, *layer.gate),
                  all, hidden_.data, hidden_.width);
  for (int64_t row = 0; row < count; ++row) hidden_.quantize(kernel_, row);
  multiply(*layer.down, hidden_, all, nullptr, stream_, true);
}

void EagleNetwork::run_layer(size_t index, std::span<const EagleRow> rows) {
  const Layer& layer = layers_[index];
  const bool is_last = index + 1 == layers_.size();
  const ops::RowBuffer& added_to = index == 0 ? fused_ : stream_;
  if (index > 0) enter_layer(layer, static_cast<int32_t>(rows.size()));
  write_keys(index, rows);
  active_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!is_last || rows[i].guesses) active_.push_back(static_cast<int32_t>(i));
  }
  if (active_.empty()) return;
  attend(index, rows);
  for (size_t i = 0; i < active_.size(); ++i) {  // ascending, so that none is overwritten
    std::copy_n(added_to.row(active_[i]), stream_.width, stream_.row(static_cast<int64_t>(i)));
  }
  kernels::RowMap all;
  all.count = static_cast<int32_t>(active_.size());
  multiply(*layer.output, attended_, all, layer.output_bias, stream_, true);
  feed_forward(layer, all.count);
}

void EagleNetwork::guess(int32_t count, bool scores) {
  const int64_t vocabulary = config_.draft_vocabulary;
  for (int64_t row = 0; row < count; ++row) {
    kernel_.rms_norm(stream_.row(row), final_norm_, epsilon_, head_input_.width,
                     head_input_.row(row));
    const float* state = config_.norm_output ? head_input_.row(row) : stream_.row(row);
    std::copy_n(state, states_.width, states_.row(row));
    head_input_.quantize(kernel_, row);
  }
  kernels::RowMap all;
  all.count = count;
  kernel_.linear(*head_, 0, vocabulary, ops::activations(head_input_, *head_), all, nullptr,
                 nullptr, logits_, vocabulary);
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t block = 0; block < std::ssize(blocks_); ++block) {
      const int64_t begin = block * kernels::kHeadBlock;
      kernel_.head_block(logits_ + row * vocabulary, begin,
                         std::min<int64_t>(vocabulary, begin + kernels::kHeadBlock), 1.0F, scores,
                         &blocks_[static_cast<size_t>(block)], nullptr);
    }
    kernel_.head_merge(blocks_.data(), static_cast<int32_t>(blocks_.size()),
                       &best_[static_cast<size_t>(row)]);
  }
}

int32_t EagleNetwork::best_token(size_t guess) const {
  const kernels::HeadStats& best = best_[guess];
  if (best.count == 0) return -1;
  const int32_t draft = best.top_ids[0];
  return tokens_of_drafts_.empty() ? draft : tokens_of_drafts_[static_cast<size_t>(draft)];
}

void EagleNetwork::run(std::span<const EagleRow> rows, bool scores) {
  if (rows.empty()) return;
  if (model_weights_ != nullptr) model_weights_->check_files();
  fuse_rows(rows);
  enter_first_layer(rows);
  for (size_t i = 0; i < layers_.size(); ++i) run_layer(i, rows);
  const auto count = std::ranges::count(rows, true, &EagleRow::guesses);
  if (count > 0) guess(static_cast<int32_t>(count), scores);
}

}  // namespace vitrine::draft_heads
