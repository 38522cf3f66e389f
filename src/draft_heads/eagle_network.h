// SPDX-License-Identifier: Apache-2.0
// The decoder layers of EAGLE-3 and P-EAGLE heads, computed for rows of several texts together.
//
// A row is a token and what the model, or an earlier row, made of the position before it. Its input
// is both, each with a norm of its own, side by side; the second is what the layers add to.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "draft_heads/eagle_config.h"
#include "draft_heads/head_memory.h"
#include "model/weights.h"

namespace vitrine::draft_heads {

/// One text's keys and values in the heads' layers, float32: [layer, key or value].
class EagleCache {
 public:
  /// `slots`: positions, up to a whole block.
  EagleCache(const ModelConfig& layer, int64_t slots);

  int64_t slots() const { return slots_; }
  kernels::KvView view(size_t layer);

 private:
  int32_t kv_heads_, head_dim_;
  int64_t slots_, part_;  // floats of a layer's keys
  AlignedFloats floats_;
};

struct EagleRow {
  int32_t token = 0;
  const float* features = nullptr;  // [layers * hidden of the model]; null: state
  const float* state = nullptr;     // [hidden] that an earlier row gave, or fuse()
  EagleCache* cache = nullptr;
  int32_t slot = 0;      // in the cache
  int32_t position = 0;  // by which it is rotated
  bool guesses = false;  // logits are made of it
};

class EagleNetwork {
 public:
  /// Rows of one run.
  static constexpr int32_t kMaxRows = 64;

  /// Reads the weights. Throws as make_head_drafter().
  EagleNetwork(const EagleConfig& config, const HeadSources& sources);

  /// Makes room for texts of so many positions. The only function that allocates.
  void reserve(int64_t positions);
  /// [hidden] what fc makes of one row of features. Not in a step.
  std::vector<float> fuse(std::span<const float> features);
  /// Computes up to kMaxRows rows; those of a cache in the order of their slots. Throws kIo where
  /// the model's file has changed, whose embedding is read there.
  void run(std::span<const EagleRow> rows);

  // Of the rows of the last run that guess, in their order:
  /// [hidden] what the next row of the chain is made of. Valid until the next run has copied it.
  const float* state(size_t guess) const { return states_.row(static_cast<int64_t>(guess)); }
  std::span<const float> logits(size_t guess) const {
    return {logits_ + static_cast<int64_t>(guess) * config_.draft_vocabulary,
            static_cast<size_t>(config_.draft_vocabulary)};
  }
  /// The model's token with the largest logit, of equals the heads' lowest; -1 where all are NaN.
  int32_t best_token(size_t guess) const { return best_[guess]; }

 private:
  struct Layer {
    const float *input_norm = nullptr, *hidden_norm = nullptr, *post_norm = nullptr;
    const float *query_norm = nullptr, *key_norm = nullptr;
    const float *query_bias = nullptr, *key_bias = nullptr, *value_bias = nullptr,
                *output_bias = nullptr;
    const kernels::Weight *query = nullptr, *key = nullptr, *value = nullptr, *output = nullptr;
    const kernels::Weight *gate = nullptr, *up = nullptr, *down = nullptr;
    int32_t window = 0;
    ops::RowBuffer* input = nullptr;  // of query, key and value
  };

  void plan_layer(size_t index);
  void plan_fc(const TargetModel& target);
  void norm_features(float* features) const;
  void fuse_rows(std::span<const EagleRow> rows);
  void enter_first_layer(std::span<const EagleRow> rows);
  void enter_layer(const Layer& layer, int32_t count);
  void run_layer(size_t index, std::span<const EagleRow> rows);
  void write_keys(size_t index, std::span<const EagleRow> rows);
  void attend(size_t index, std::span<const EagleRow> rows);
  void feed_forward(const Layer& layer, int32_t count);
  void guess(int32_t count);
  void rotate(float* heads, int64_t count, int32_t position) const;
  void multiply(const kernels::Weight& weight, const ops::RowBuffer& in,
                const kernels::RowMap& rows, const float* bias, ops::RowBuffer& out,
                bool adds) const;
  ops::RowBuffer& rows_of(const std::string& name, int64_t width);

  const EagleConfig config_;
  const Checkpoint checkpoint_;  // of the heads
  const kernels::CpuKernels& kernel_;
  const float epsilon_;
  ops::Graph no_graph_;
  HeadMemory memory_;
  ops::PlanScratch scratch_;
  ops::Products products_;
  model::CheckpointWeights weights_;
  std::unique_ptr<model::CheckpointWeights> model_weights_;  // where the embedding is the model's
  const kernels::Weight* embedding_ = nullptr;
  const kernels::Weight* fc_ = nullptr;
  const kernels::Weight* head_ = nullptr;
  const float* whole_norm_ = nullptr;     // of all features
  std::vector<const float*> part_norms_;  // of each layer's
  int64_t part_width_ = 0;                // of the model's stream
  const float* final_norm_ = nullptr;
  std::vector<Layer> layers_;
  std::vector<int32_t> tokens_of_drafts_;  // [draft vocabulary]; empty: they are the model's
  ops::RowBuffer &features_, &fused_, &joined_, &normed_, &query_, &key_, &value_, &attended_,
      &stream_, &hidden_, &head_input_, &states_;
  float* logits_ = nullptr;  // [kMaxRows, draft vocabulary]
  std::vector<kernels::HeadBlockStats> blocks_;
  std::vector<int32_t> best_;
  std::vector<int32_t> active_;  // rows of the run that go on behind keys and values
  std::vector<int32_t> fused_rows_;
  std::vector<int32_t> block_table_;
  std::vector<float> frequencies_, cos_, sin_;
};

}  // namespace vitrine::draft_heads
