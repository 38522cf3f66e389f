#include "kernels/cuda/sample/sample.h"

#include "kernels/cuda/sample/row.h"

namespace vitrine::kernels::cuda {
namespace {

using Kind = SampleStep::Kind;

// One warp: of the bins from the last to the first, the one in which the sum, `before` it included,
// reaches `target`; where none does, the last that holds anything. Into shared.found: the bin, and
// the sum before it.
VITRINE_DEVICE void find_bin(SampleShared& shared, uint64_t before, double target) {
  constexpr int kOwn = kBins / kWarp;
  const int highest = kBins - 1 - lane_index() * kOwn;
  uint64_t own = 0;
  for (int j = 0; j < kOwn; ++j) own += shared.bins[highest - j];
  uint64_t sum = own;
  for (int delta = 1; delta < kWarp; delta *= 2) {
    const uint64_t other = shuffle_up(sum, delta);
    if (lane_index() >= delta) sum += other;
  }
  uint64_t running = before + sum - own;
  uint64_t bin_before = running;
  int bin = -1;
  bool reaches = false;
  for (int j = 0; j < kOwn && !reaches; ++j) {
    const uint64_t here = shared.bins[highest - j];
    if (here == 0) continue;
    bin = highest - j;
    bin_before = running;
    running += here;
    reaches = static_cast<double>(running) >= target;
  }
  const uint32_t reaching = ballot(reaches);
  const uint32_t holding = ballot(bin >= 0);
  const bool is_first = reaches && (reaching & ((1u << lane_index()) - 1)) == 0;
  const bool is_last = bin >= 0 && holding >> lane_index() == 1;
  if (reaching != 0 ? is_first : is_last) {
    shared.found[0] = static_cast<uint64_t>(bin);
    shared.found[1] = bin_before;
  }
}

// Keeps, in descending order, entries until the sum of their measures reaches `target`; at least
// one. Digit by digit of the keys, from the highest: 4 passes and those over equal logits.
template <typename Measure>
VITRINE_DEVICE void keep_best(Row& row, double target, Measure measure) {
  SampleShared& shared = row.shared;
  uint64_t prefix = 0, before = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = thread_index(); i < kBins; i += kSampleThreads) shared.bins[i] = 0;
    sync_block();
    for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
      const Entry entry = row.entry(i);
      const uint64_t key = order_key(entry.value);
      if (!entry.is_left || key >> (shift + 8) != prefix) continue;
      atomic_add(&shared.bins[key >> shift & (kBins - 1)], measure(entry));
    }
    sync_block();
    if (warp_index() == 0) find_bin(shared, before, target);
    sync_block();
    prefix = prefix << 8 | shared.found[0];
    before = shared.found[1];
  }
  // Of those equal to the last one, the lowest ids: as many as it takes.
  const auto key = static_cast<uint32_t>(prefix);
  const auto is_equal = [&](const Entry& entry) {
    return entry.is_left && order_key(entry.value) == key;
  };
  const uint64_t each = measure({0, key_float(key), true});
  uint64_t wanted = 1;
  if (each != 0 && static_cast<double>(before) < target) {
    wanted =
        static_cast<uint64_t>((target - static_cast<double>(before)) / static_cast<double>(each));
    // The quotient is rounded: the number is the first that reaches the target.
    while (wanted > 1 && static_cast<double>(before + (wanted - 1) * each) >= target) --wanted;
    while (wanted < 1 || static_cast<double>(before + wanted * each) < target) ++wanted;
  }
  uint64_t ignored = 0;
  const uint32_t last = find_in_order(
      row, wanted - 1, [&](const Entry& entry) { return uint64_t{is_equal(entry) ? 1u : 0u}; },
      &ignored);
  row.take({Taken::Kind::kPrefix, 0, 0, {key, last}});
}

// The best entry that is left, and whether every logit is a number below infinity.
VITRINE_DEVICE Best find_best(const Row& row, bool* is_broken) {
  SampleShared& shared = row.shared;
  Best own = no_best();
  uint32_t broken = 0;
  for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
    const Entry entry = row.entry(i);
    broken |= entry.value < bits_float(0x7f800000u) ? 0 : 1;
    const uint32_t key = order_key(entry.value);
    if (entry.is_left && (key > own.key || (key == own.key && entry.id < own.id))) {
      own = {key, entry.id};
    }
  }
  *is_broken = add_up_block(shared, broken) != 0;
  own = best_of_warp(own);
  if (lane_index() == 0) shared.warp_best[warp_index()] = own;
  sync_block();
  return best_of_warp(shared.warp_best[lane_index()]);
}

struct Choice {
  int32_t id;
  float candidates, probability;
};

VITRINE_DEVICE Choice draw(const Row& row, double uniform) {
  uint64_t mass = 0, left = 0;
  for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
    const Entry entry = row.entry(i);
    mass += row.mass(entry);
    left += entry.is_left ? 1 : 0;
  }
  mass = add_up_block(row.shared, mass);
  left = add_up_block(row.shared, left);
  auto target = static_cast<uint64_t>(uniform * static_cast<double>(mass));
  target = target < mass ? target : mass - 1;  // the product may round up to the sum
  uint64_t own = 0;
  const uint32_t id = find_in_order(
      row, target, [&](const Entry& entry) { return row.mass(entry); }, &own);
  const bool is_certain = own == mass;
  return {static_cast<int32_t>(id), is_certain ? 1.0f : static_cast<float>(left),
          static_cast<float>(static_cast<double>(own) / static_cast<double>(mass))};
}

// All steps of the row; the last one chooses.
VITRINE_DEVICE Choice choose(Row& row, const SampleStep* steps) {
  for (int i = 0; i < kMostSampleSteps; ++i) {
    const SampleStep step = steps[i];
    const auto a = static_cast<float>(step.a);
    if (step.kind == Kind::kGreedy) break;
    if (step.kind == Kind::kDraw) return draw(row, step.a);
    if (step.kind == Kind::kDivide) {
      const bool is_finite = absolute(row.best / a) < bits_float(0x7f800000u);
      const float offset = is_finite ? 0.0f : row.best;
      row.take({Taken::Kind::kDivide, a, offset, no_best()});
      row.best = (row.best - offset) / a;
      continue;
    }
    if (step.kind == Kind::kMinP) {
      row.take({Taken::Kind::kMinimum, a, row.best, no_best()});
    } else if (step.kind == Kind::kTopK) {
      keep_best(row, step.a, [](const Entry&) { return uint64_t{1}; });
    } else {
      const auto measure = [&](const Entry& entry) { return row.mass(entry); };
      uint64_t mass = 0;
      for (int64_t e = thread_index(); e < row.count; e += kSampleThreads) {
        mass += row.mass(row.entry(e));
      }
      mass = add_up_block(row.shared, mass);
      keep_best(row, step.a * static_cast<double>(mass), measure);
    }
    shorten(row);
  }
  bool is_broken = false;
  return {static_cast<int32_t>(find_best(row, &is_broken).id), 1.0f, 1.0f};
}

// A block a row. Bytes: 4 * vocab for each pass until few are left: one for the best, then (top-k:
// 5, top-p: 6, min-p: 0), one or two to move what is left into shared memory, two for a draw.
VITRINE_KERNEL(kSampleThreads)
void sample_kernel(Sampling sampling) {
  const int64_t index = block_x();
  Row row{*dynamic_shared<SampleShared>(),
          sampling.logits + index * sampling.vocab,
          sampling.vocab,
          false,
          0,
          0.0f};
  bool is_broken = false;
  const Best best = find_best(row, &is_broken);
  Choice choice{is_broken ? kBrokenRow : kEmptyRow, 0.0f, 0.0f};
  if (!is_broken && best.id != kNoId) {
    row.best = row.logits[best.id];
    choice = choose(row, sampling.steps + index * kMostSampleSteps);
  }
  if (thread_index() != 0) return;
  sampling.chosen_ids[index] = choice.id;
  sampling.facts[2 * index] = choice.candidates;
  sampling.facts[2 * index + 1] = choice.probability;
}

}  // namespace

Status sample_rows(const Sampling& sampling, int32_t rows, Stream stream) {
  if (rows < 1) return refuse("sample_rows: rows, expected at least 1");
  if (sampling.vocab < 1 || sampling.vocab > 1 << 22) {
    return refuse("sample_rows: vocab, expected 1 to 2^22");
  }
  return launch(sample_kernel, {static_cast<uint32_t>(rows)}, kSampleThreads, sizeof(SampleShared),
                stream, sampling);
}

}  // namespace vitrine::kernels::cuda
