// SPDX-License-Identifier: Apache-2.0
// A run of the heads' layers.
#include <algorithm>
#include <cmath>

#include "draft_heads/eagle_network.h"
#include "ops/feed_forward.h"

namespace vitrine::draft_heads {

namespace {

kernels::RowMap first_rows(int64_t count) {
  kernels::RowMap rows;
  rows.count = static_cast<int32_t>(count);
  return rows;
}

}  // namespace

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
  work_.multiply({.weight = fc_, .in = &features_, .rows = first_rows(1), .out = fused_.data});
  return {fused_.row(0), fused_.row(1)};
}

void EagleNetwork::fuse_rows(std::span<const EagleRow> rows) {
  fused_rows_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    if (rows[i].features == nullptr) {
      std::copy_n(rows[i].state, fused_.width, fused_.row(row));
    } else {
      fused_rows_.push_back(static_cast<int32_t>(i));
    }
  }
  if (fused_rows_.empty()) return;
  each_row(std::ssize(fused_rows_), features_.width, [&](int64_t i) {
    const int32_t row = fused_rows_[static_cast<size_t>(i)];
    std::copy_n(rows[static_cast<size_t>(row)].features, features_.width, features_.row(row));
    norm_features(features_.row(row));
    features_.quantize(kernel_, row);
  });
  kernels::RowMap map = first_rows(std::ssize(fused_rows_));
  map.in_rows = map.out_rows = fused_rows_.data();
  work_.multiply({.weight = fc_, .in = &features_, .rows = map, .out = fused_.data});
}

void EagleNetwork::enter_first_layer(std::span<const EagleRow> rows) {
  const int64_t hidden = config_.layer.hidden_size;
  for (size_t i = 0; i < rows.size(); ++i) {  // by one thread: the file's rows have one strip
    products_.embed_row(*embedding_, rows[i].token, 1.0F, joined_.row(static_cast<int64_t>(i)));
  }
  each_row(std::ssize(rows), joined_.width, [&](int64_t row) {
    float* joined = joined_.row(row);
    kernel_.rms_norm(joined, layers_[0].input_norm, epsilon_, hidden, joined);
    kernel_.rms_norm(fused_.row(row), layers_[0].hidden_norm, epsilon_, hidden, joined + hidden);
    joined_.quantize(kernel_, row);
    if (config_.norm_before_residual) std::copy_n(joined + hidden, hidden, fused_.row(row));
  });
}

void EagleNetwork::norm_stream(const float* norm, int64_t count) const {
  each_row(count, normed_.width, [&](int64_t row) {
    kernel_.rms_norm(stream_.row(row), norm, epsilon_, normed_.width, normed_.row(row));
    normed_.quantize(kernel_, row);
  });
}

void EagleNetwork::rotate(float* heads, int64_t count, int32_t position) const {
  const int64_t dim = config_.layer.head_dim;
  const auto half = std::ssize(frequencies_);
  for (int64_t head = 0; head < count; ++head) {
    kernel_.rope(heads + head * dim, cos_.data() + position * half, sin_.data() + position * half,
                 static_cast<int32_t>(2 * half));
  }
}

void EagleNetwork::project(const Layer& layer, int64_t count) {
  kernels::RowMap active = first_rows(std::ssize(active_));
  active.in_rows = active_.data();
  const SharedWork::Product products[] = {
      {layer.query, layer.input, active, layer.query_bias, query_.data},
      {layer.key, layer.input, first_rows(count), layer.key_bias, key_.data},
      {layer.value, layer.input, first_rows(count), layer.value_bias, value_.data}};
  const auto all = std::span(products);
  work_.multiply(active_.empty() ? all.subspan(1) : all);
}

void EagleNetwork::write_keys(size_t index, std::span<const EagleRow> rows) {
  const Layer& layer = layers_[index];
  const ModelConfig& config = config_.layer;
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
    const int32_t block = rows[i].slot / EagleCache::kBlock;
    const int32_t offset = rows[i].slot % EagleCache::kBlock;
    const int32_t* table = rows[i].blocks != nullptr ? rows[i].blocks : block_table_.data();
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      kv.write(view, table[block], offset, head, keys + head * config.head_dim,
               values + head * config.head_dim);
    }
  }
}

void EagleNetwork::attend(size_t index, std::span<const EagleRow> rows) {
  const ModelConfig& config = config_.layer;
  int64_t positions = 0;
  for (const int32_t row : active_) positions += rows[static_cast<size_t>(row)].slot + 1;
  const int64_t heads = config.num_kv_heads;
  work_.run(std::ssize(active_) * heads, 2 * positions * query_.width, [&](int64_t piece) {
    const int64_t place = piece / heads;
    attend_head(index, rows[static_cast<size_t>(active_[static_cast<size_t>(place)])], place,
                static_cast<int32_t>(piece % heads));
  });
  each_row(std::ssize(active_), attended_.width,
           [&](int64_t place) { attended_.quantize(kernel_, place); });
}

void EagleNetwork::attend_head(size_t index, const EagleRow& row, int64_t place,
                               int32_t kv_head) const {
  const Layer& layer = layers_[index];
  const ModelConfig& config = config_.layer;
  const int64_t group = config.num_heads / config.num_kv_heads;
  const int64_t first = kv_head * group * config.head_dim;
  float* const queries = query_.row(place) + first;
  for (int64_t head = 0; layer.query_norm != nullptr && head < group; ++head) {
    float* query = queries + head * config.head_dim;
    kernel_.rms_norm(query, layer.query_norm, epsilon_, config.head_dim, query);
  }
  rotate(queries, group, row.position);
  kernels::AttentionSpan span;
  span.block_table = row.blocks != nullptr ? row.blocks : block_table_.data();
  span.kv_head = kv_head;
  span.position = row.slot;
  span.heads = static_cast<int32_t>(group);
  span.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  span.window = layer.window;
  span.query_stride = span.out_stride = config.head_dim;
  span.query = queries;
  span.out = attended_.row(place) + first;
  kernels::find_kv_kernels(kernel_, "f32")->attend(row.cache->view(index), span);
}

void EagleNetwork::feed_forward(const Layer& layer, int64_t count) {
  norm_stream(layer.post_norm, count);
  const ops::FeedForwardWeights weights = {.gate = layer.gate, .up = layer.up, .down = layer.down};
  const kernels::RowMap all = first_rows(count);
  const int64_t multiple = std::max<int64_t>(hidden_.largest_group(), kernels::kTileRows);
  const int64_t operations = 2 * hidden_.width * normed_.width * count;
  work_.run_rows(hidden_.width, multiple, operations, [&](int64_t begin, int64_t end) {
    ops::run_hidden(kernel_, products_, weights, ops::activations(normed_, *weights.gate), hidden_,
                    all, begin, end);
  });
  work_.multiply(
      {.weight = layer.down, .in = &hidden_, .rows = all, .out = stream_.data, .adds = true});
}

void EagleNetwork::run_layer(size_t index, std::span<const EagleRow> rows) {
  const Layer& layer = layers_[index];
  const bool is_last = index + 1 == layers_.size();
  const ops::RowBuffer& added_to = index == 0 ? fused_ : stream_;
  if (index > 0) norm_stream(layer.input_norm, std::ssize(rows));
  active_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!is_last || rows[i].guesses) active_.push_back(static_cast<int32_t>(i));
  }
  project(layer, std::ssize(rows));
  write_keys(index, rows);
  if (active_.empty()) return;
  attend(index, rows);
  for (size_t i = 0; i < active_.size(); ++i) {  // ascending, so that none is overwritten
    std::copy_n(added_to.row(active_[i]), stream_.width, stream_.row(static_cast<int64_t>(i)));
  }
  work_.multiply({.weight = layer.output,
                  .in = &attended_,
                  .rows = first_rows(std::ssize(active_)),
                  .bias = layer.output_bias,
                  .out = stream_.data,
                  .adds = true});
  feed_forward(layer, std::ssize(active_));
}

void EagleNetwork::guess(int64_t count, bool scores) {
  const int64_t vocabulary = config_.draft_vocabulary;
  each_row(count, head_input_.width, [&](int64_t row) {
    kernel_.rms_norm(stream_.row(row), final_norm_, epsilon_, head_input_.width,
                     head_input_.row(row));
    const float* state = config_.norm_output ? head_input_.row(row) : stream_.row(row);
    std::copy_n(state, states_.width, states_.row(row));
    head_input_.quantize(kernel_, row);
  });
  work_.multiply({.weight = head_, .in = &head_input_, .rows = first_rows(count), .out = logits_});
  const int64_t blocks = ops::divide_up(vocabulary, kernels::kHeadBlock);
  work_.run(count * blocks, 4 * count * vocabulary, [&](int64_t piece) {
    const int64_t begin = piece % blocks * kernels::kHeadBlock;
    kernel_.head_block(logits_ + piece / blocks * vocabulary, begin,
                       std::min<int64_t>(vocabulary, begin + kernels::kHeadBlock), 1.0F, scores,
                       &blocks_[static_cast<size_t>(piece)], nullptr);
  });
  for (int64_t row = 0; row < count; ++row) {
    kernel_.head_merge(&blocks_[static_cast<size_t>(row * blocks)], static_cast<int32_t>(blocks),
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
  if (count > 0) guess(count, scores);
}

}  // namespace vitrine::draft_heads
