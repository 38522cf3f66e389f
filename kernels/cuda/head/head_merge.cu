// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/head/best.h"
#include "kernels/cuda/head/head.h"
#include "kernels/cuda/head/head_block.h"
#include "kernels/cuda/head/statistics.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 64;  // one warp for the list, one for the sums

// Lane l's share of a row's blocks, consecutive.
struct Share {
  int64_t begin, end;
};
VITRINE_DEVICE Share share_of_lane(int64_t blocks) {
  const int64_t each = divide_up<int64_t>(blocks, kWarp);
  const int64_t begin = each * lane_index();
  const int64_t end = begin + each < blocks ? begin + each : blocks;
  return {begin, end};
}

VITRINE_DEVICE RunningSums shuffle_down_sums(RunningSums sums, int delta) {
  return {shuffle_down(sums.max, delta), shuffle_down(sums.sum, delta),
          shuffle_down(sums.sum_logit, delta)};
}

// One warp: the row's sums and digest. Each lane merges its consecutive blocks, then lanes merge
// with the one `delta` above: the same tree for every row of this vocabulary.
VITRINE_DEVICE void merge_statistics(const HeadBlock* blocks, int64_t count, int32_t* words,
                                     const HeadRecord& record) {
  RunningSums sums{-static_cast<double>(bits_float(0x7f800000u)), 0.0, 0.0};
  uint64_t digest = 0;
  const Share share = share_of_lane(count);
  for (int64_t b = share.begin; b < share.end; ++b) {
    const HeadBlock& block = blocks[b];
    sums = merge_sums(sums, {block.max, block.sum_exp, block.sum_exp_logit});
    digest += hash_block_factor(static_cast<uint64_t>(b)) * block.hash;
  }
  for (int delta = 1; delta < kWarp; delta *= 2) {
    // The lanes whose partner is outside or already merged hold sums that nobody reads.
    sums = merge_sums(sums, shuffle_down_sums(sums, delta));
  }
  for (int width = kWarp / 2; width > 0; width /= 2) digest += shuffle_xor(digest, width);
  if (lane_index() != 0) return;
  const double log_sum = log_double(sums.sum);
  words[record.log_sum_exp] =
      static_cast<int32_t>(float_bits(static_cast<float>(sums.max + log_sum)));
  words[record.entropy] =
      static_cast<int32_t>(float_bits(static_cast<float>(log_sum - sums.sum_logit / sums.sum)));
  words[record.logits_digest] = static_cast<int32_t>(static_cast<uint32_t>(digest));
  words[record.logits_digest + 1] = static_cast<int32_t>(static_cast<uint32_t>(digest >> 32));
}

// One warp: the ten best of the row into lane 0 … 9. A lane looks at its blocks' lists, each in
// order, and keeps what is behind the last one that was taken.
VITRINE_DEVICE Best merge_lists(const HeadBlock* blocks, int64_t count, int places) {
  Best placed = no_best();
  Best last = {0xffffffffu, 0};
  const auto is_behind = [](Best a, Best b) {
    return a.key < b.key || (a.key == b.key && a.id > b.id);
  };
  Best own = no_best();
  bool is_known = false;
  for (int place = 0; place < places; ++place) {
    if (!is_known) {
      own = no_best();
      for (int64_t b = lane_index(); b < count; b += kWarp) {
        const HeadBlock& block = blocks[b];
        for (int32_t i = 0; i < block.count; ++i) {
          const Best entry{order_key(block.top_logits[i]), static_cast<uint32_t>(block.top_ids[i])};
          if (place > 0 && !is_behind(entry, last)) continue;  // taken before
          if (is_behind(own, entry)) own = entry;
          break;  // what follows in this list is behind it
        }
      }
      is_known = true;
    }
    const Best chosen = best_of_warp(own);
    if (lane_index() == place) placed = chosen;
    last = chosen;
    if (own.id == chosen.id) is_known = false;
  }
  return placed;
}

// A block a row. Bytes: 108 a block of logits to read, 4 or the record to write.
VITRINE_KERNEL(kThreads)
void head_merge_kernel(Head head, int64_t count) {
  const int64_t row = block_x();
  const HeadBlock* blocks = head.blocks + row * count;
  const HeadRecord& record = head.record;
  int32_t* words = record.words != nullptr ? record.words + row * record.stride : nullptr;
  if (warp_index() == 1) {
    if (words != nullptr) merge_statistics(blocks, count, words, record);
    return;
  }
  const Best best = merge_lists(blocks, count, words != nullptr ? kBestEntries : 1);
  const int lane = lane_index();
  const float* logits = head.logits + row * head.vocab;
  if (lane == 0) {
    const int32_t target = head.targets != nullptr ? head.targets[row] : -1;
    const int32_t chosen = target >= 0 ? target : static_cast<int32_t>(best.id);  // none: -1
    head.chosen_ids[row] = chosen;
    if (words != nullptr) {
      words[record.chosen_logit] =
          chosen >= 0 ? static_cast<int32_t>(float_bits(logits[chosen])) : 0;
    }
  }
  if (words == nullptr || lane >= kBestEntries) return;
  const bool is_there = best.id != kNoId;
  words[record.top_ids + lane] = static_cast<int32_t>(best.id);
  words[record.top_logits + lane] =
      is_there ? static_cast<int32_t>(float_bits(logits[best.id])) : 0;
}

}  // namespace

Status head_epilogue(const Head& head, int32_t rows, Stream stream) {
  if (rows < 1 || rows > 65535) return refuse("head: rows, expected 1 to 65,535");
  if (head.vocab < 1 || head.vocab > 1 << 24) return refuse("head: vocab, expected 1 to 2^24");
  const Status status = launch_head_blocks(head, rows, stream);
  if (!status.ok()) return status;
  return launch(head_merge_kernel, {static_cast<uint32_t>(rows)}, kThreads, 0, stream, head,
                head_blocks(head.vocab));
}

}  // namespace vitrine::kernels::cuda
