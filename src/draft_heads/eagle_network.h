// SPDX-License-Identifier: Apache-2.0
// The decoder layers of EAGLE-3 and P-EAGLE heads, computed for rows of several texts together.
//
// A row is a token and what the model, or an earlier row, made of the position before it. Its input
// is both, each with a norm of its own, side by side; the second is what the layers add to.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "draft_heads/eagle_cache.h"
#include "draft_heads/eagle_config.h"
#include "draft_heads/head_memory.h"
#include "draft_heads/shared_work.h"
#include "model/weights.h"

namespace vitrine::draft_heads {

struct EagleRow {
  int32_t token = 0;
  const float* features = nullptr;  // [layers * hidden of the model]; null: state
  const float* state = nullptr;     // [hidden] that an earlier row gave, or fuse()
  EagleCache* cache = nullptr;
  int32_t slot = 0;                 // in the cache
  const int32_t* blocks = nullptr;  // of the cache, by a slot's block; null: those of the text
  int32_t position = 0;             // by which it is rotated
  bool guesses = false;             // logits are made of it
};

class EagleNetwork {
 public:
  /// Rows of one run.
  static constexpr int32_t kMaxRows = 64;

  /// Reads the weights. Throws as make_head_drafter().
  EagleNetwork(const EagleConfig& config, const HeadSources& sources);

  /// Threads that share the runs from now on; null: none.
  void lend(core::PieceThreads* threads) { work_.lend(threads); }
  uint64_t weight_bytes() const { return weights_.num_bytes(); }
  /// Makes room for texts of so many positions. The only function that allocates.
  void reserve(int64_t positions);
  /// [hidden] what fc makes of one row of features. Not in a step.
  std::vector<float> fuse(std::span<const float> features);
  /// The blocks that a row sees at `slot` of a branch, of which the first stands at `first`: a copy
  /// of what branch `from` has before it; -1: of what the text has. Until the branch is asked for
  /// again.
  const int32_t* branch(EagleCache& cache, int32_t branch, int32_t from, int32_t first,
                        int32_t slot);
  /// Computes up to kMaxRows rows; those of a cache in the order of their slots. `scores`: how
  /// likely the best ones are is wanted too. Throws kIo where the model's file has changed, whose
  /// embedding is read there.
  void run(std::span<const EagleRow> rows, bool scores = false);

  // Results of the last run; `guess` counts its rows that guess, in their order.
  /// [hidden] what the next row of the chain is made of. Valid until the next run has copied it.
  const float* state(size_t guess) const { return states_.row(static_cast<int64_t>(guess)); }
  std::span<const float> logits(size_t guess) const {
    return {logits_ + static_cast<int64_t>(guess) * config_.draft_vocabulary,
            static_cast<size_t>(config_.draft_vocabulary)};
  }
  /// The model's token with the largest logit, of equals the heads' lowest; -1 where all are NaN.
  int32_t best_token(size_t guess) const;
  /// Where scores were wanted, the best ones, by the heads' own ids.
  const kernels::HeadStats& best(size_t guess) const { return best_[guess]; }
  /// [draft vocabulary] the model's tokens by the heads' ids; empty: they are the same.
  std::span<const int32_t> tokens() const { return tokens_of_drafts_; }

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
  void norm_stream(const float* norm, int64_t count) const;
  void run_layer(size_t index, std::span<const EagleRow> rows);
  void project(const Layer& layer, int64_t count);
  void write_keys(size_t index, std::span<const EagleRow> rows);
  void attend(size_t index, std::span<const EagleRow> rows);
  /// One kv head's queries of the active row at `place`.
  void attend_head(size_t index, const EagleRow& row, int64_t place, int32_t kv_head) const;
  void feed_forward(const Layer& layer, int64_t count);
  void guess(int64_t count, bool scores);
  /// Calls run_one(row) for rows that something is done to of `width` numbers.
  template <typename Run>
  void each_row(int64_t count, int64_t width, const Run& run_one) const {
    work_.run(count, 4 * count * width, run_one);
  }
  void rotate(float* heads, int64_t count, int32_t position) const;
  ops::RowBuffer& rows_of(const std::string& name, int64_t width);

  const EagleConfig config_;
  const Checkpoint checkpoint_;  // of the heads
  const kernels::CpuKernels& kernel_;
  const float epsilon_;
  ops::Graph no_graph_;
  HeadMemory memory_;
  ops::PlanScratch scratch_;
  ops::Products products_;
  SharedWork work_;
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
  float* logits_ = nullptr;                      // [kMaxRows, draft vocabulary]
  std::vector<kernels::HeadBlockStats> blocks_;  // [kMaxRows, blocks of the vocabulary]
  std::vector<kernels::HeadStats> best_;
  std::vector<int32_t> active_;  // rows of the run that go on behind keys and values
  std::vector<int32_t> fused_rows_;
  std::vector<int32_t> block_table_;
  // [branches] the same table but for the branch's own blocks, and where those begin.
  std::array<std::vector<int32_t>, EagleCache::kBranches> branch_tables_;
  std::array<int32_t, EagleCache::kBranches> branch_begins_ = {};
  std::vector<float> frequencies_, cos_, sin_;
};

}  // namespace vitrine::draft_heads
