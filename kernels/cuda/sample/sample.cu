// SPDX-License-Identifier: Apache-2.0
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

// Keeps, in descending order of their keys, entries until the sum of their measures reaches
// `target`; at least one. Byte by byte of the keys, from the highest: a pass each and those over
// equal entries. The last 32 bits of a key are the logit's. Returns the last key and id.
template <typename Key, typename KeyOf, typename Measure>
VITRINE_DEVICE Key find_last(const Row& row, double target, KeyOf key_of, Measure measure,
                             uint32_t* last_id) {
  constexpr int kDigit = 8;
  SampleShared& shared = row.shared;
  Key prefix = 0;
  uint64_t before = 0;
  for (int shift = 8 * static_cast<int>(sizeof(Key)) - kDigit; shift >= 0; shift -= kDigit) {
    for (int i = thread_index(); i < kBins; i += kSampleThreads) shared.bins[i] = 0;
    sync_block();
    for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
      const Entry entry = row.entry(i);
      const Key digits = key_of(entry) >> shift;
      if (!entry.is_left || digits >> kDigit != prefix) continue;
      const uint64_t size = measure(entry);
      if (size != 0) atomic_add_to_sum(&shared.bins[digits & (kBins - 1)], size);
    }
    sync_block();
    if (warp_index() == 0) find_bin(shared, before, target);
    sync_block();
    prefix = prefix << kDigit | static_cast<Key>(shared.found[0]);
    before = shared.found[1];
  }
  // The lowest ids stay among those equal to the last one: as many as it takes.
  const auto is_equal = [&](const Entry& entry) {
    return entry.is_left && key_of(entry) == prefix;
  };
  const uint64_t each = measure({0, key_float(static_cast<uint32_t>(prefix)), true});
  uint64_t wanted = 1;
  if (each != 0 && static_cast<double>(before) < target) {
    wanted =
        static_cast<uint64_t>((target - static_cast<double>(before)) / static_cast<double>(each));
    // The quotient is rounded: the number is the first that reaches the target.
    while (wanted > 1 && static_cast<double>(before + (wanted - 1) * each) >= target) --wanted;
    while (wanted < 1 || static_cast<double>(before + wanted * each) < target) ++wanted;
  }
  uint64_t ignored = 0;
  *last_id = find_in_order(
      row, wanted - 1, [&](const Entry& entry) { return uint64_t{is_equal(entry) ? 1u : 0u}; },
      &ignored);
  return prefix;
}

template <typename Measure>
VITRINE_DEVICE void keep_best(Row& row, double target, Measure measure) {
  uint32_t id = 0;
  const auto key_of = [](const Entry& entry) { return order_key(entry.value); };
  const uint32_t key = find_last<uint32_t>(row, target, key_of, measure, &id);
  row.take({Taken::Kind::kPrefix, 0, 0, {key, id}, 0, nullptr});
}

// Where the best k are wanted: leaves out what lies below the k-th of the threads' own best. Those
// are k entries, so that none of the best k is lower; what is left are few more, for one pass over
// the row in place of one for each byte of a key.
VITRINE_DEVICE void shorten_to_best(Row& row, double k) {
  if (row.is_short || k > kSampleThreads) return;
  SampleShared& shared = row.shared;
  uint32_t best = 0;
  float value = 0.0f;
  VITRINE_UNROLL_BY(8)
  for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
    const Entry entry = row.entry(i);
    const uint32_t key = order_key(entry.value);
    if (!entry.is_left || key <= best) continue;
    best = key;
    value = entry.value;
  }
  const uint64_t found = add_up_block(shared, uint64_t{best != 0 ? 1u : 0u});
  if (static_cast<double>(found) < k) return;
  shared.values[thread_index()] = best != 0 ? value : bits_float(0xff800000u);
  shared.ids[thread_index()] = static_cast<uint32_t>(thread_index());
  sync_block();
  const Row bests{shared, nullptr, kSampleThreads, true, 0, row.best};
  uint32_t id = 0;
  const uint32_t last = find_last<uint32_t>(
      bests, k, [](const Entry& entry) { return order_key(entry.value); },
      [](const Entry&) { return uint64_t{1}; }, &id);
  sync_block();  // all have read what is rewritten now
  shorten(row,
          [last](const Entry& entry) { return entry.is_left && order_key(entry.value) >= last; });
}

// The best entry that is left, and whether every logit is a number below infinity.
VITRINE_DEVICE Best find_best(const Row& row, bool* is_broken) {
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
  *is_broken = add_up_block(row.shared, uint64_t{broken}) != 0;
  return best_of_block(row.shared, own);
}

VITRINE_DEVICE uint64_t mass_left(const Row& row) {
  uint64_t mass = 0;
  for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
    mass += row.mass(row.entry(i));
  }
  return add_up_block(row.shared, mass);
}

VITRINE_DEVICE uint64_t count_left(const Row& row) {
  uint64_t left = 0;
  for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
    left += row.entry(i).is_left ? 1 : 0;
  }
  return add_up_block(row.shared, left);
}

// How far what is left lies below the best logit, on average by its probability; `mass` is its sum.
VITRINE_DEVICE double mean_distance(const Row& row, uint64_t mass) {
  uint64_t sum = 0;
  for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
    const Entry entry = row.entry(i);
    if (!entry.is_left) continue;
    const float distance = row.best - entry.value;
    sum += static_cast<uint64_t>(exp_float(-distance) * distance * kMassOfOne);
  }
  return static_cast<double>(add_up_block(row.shared, sum)) / static_cast<double>(mass);
}

VITRINE_DEVICE void divide(Row& row, float divisor) {
  const bool is_finite = absolute(row.best / divisor) < bits_float(0x7f800000u);
  const float offset = is_finite ? 0.0f : row.best;
  row.take({Taken::Kind::kDivide, divisor, offset, no_best(), 0, nullptr});
  row.best = (row.best - offset) / divisor;
}

VITRINE_DEVICE void divide_by_entropy(Row& row, const SampleStep& step) {
  const uint64_t count = count_left(row);
  if (count < 2) return;
  const uint64_t mass = mass_left(row);
  const double entropy = log_double(static_cast<double>(mass) / static_cast<double>(kMassOfOne)) +
                         mean_distance(row, mass);
  double share = entropy / log_double(static_cast<double>(count));
  share = share < 0 ? 0 : share > 1 ? 1 : share;
  const double raised = share == 0 ? 0 : exp_double(step.c * log_double(share));
  const auto low = static_cast<float>(step.a), range = static_cast<float>(step.b - step.a);
  const auto temperature =
      static_cast<float>(static_cast<double>(low) + static_cast<double>(range) * raised);
  if (temperature > 0) return divide(row, temperature);
  // At 0 only the best are left.
  row.take({Taken::Kind::kMinimum, 0, row.best, no_best(), 0, nullptr});
}

VITRINE_DEVICE void keep_within_deviations(Row& row, double deviations) {
  const auto count = static_cast<double>(count_left(row));
  const auto sum_of = [&](auto&& measure) {
    double sum = 0;
    for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
      const Entry entry = row.entry(i);
      if (entry.is_left) sum += measure(static_cast<double>(entry.value) - row.best);
    }
    return add_up_block(row.shared, sum);
  };
  const double mean = sum_of([](double distance) { return distance; }) / count;
  const double squares =
      sum_of([&](double distance) { return (distance - mean) * (distance - mean); });
  const float deviation = square_root(static_cast<float>(squares / count));
  const auto lowest = static_cast<float>(-deviations * static_cast<double>(deviation));
  row.take({Taken::Kind::kMinimum, lowest, row.best, no_best(), 0, nullptr});
}

VITRINE_DEVICE void keep_typical(Row& row, double share) {
  const uint64_t mass = mass_left(row);
  const auto center = static_cast<float>(-mean_distance(row, mass));
  uint32_t id = 0;
  const auto key_of = [&](const Entry& entry) {
    return join_keys(near_key(entry.value, row.best, center), order_key(entry.value));
  };
  const uint64_t key = find_last<uint64_t>(
      row, share * static_cast<double>(mass), key_of,
      [&](const Entry& entry) { return row.mass(entry); }, &id);
  row.take({Taken::Kind::kNear,
            center,
            row.best,
            {static_cast<uint32_t>(key), id},
            static_cast<uint32_t>(key >> 32),
            nullptr});
}

// Drops those that reach the threshold but for the last one, which stays with all behind it.
VITRINE_DEVICE void drop_top(Row& row, double threshold) {
  const double limit = threshold * static_cast<double>(mass_left(row));
  Best own = no_best();  // keys and ids turned round: the worst is the best then
  uint64_t reach = 0;
  for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
    const Entry entry = row.entry(i);
    const uint64_t mass = row.mass(entry);
    if (mass == 0 || static_cast<double>(mass) < limit) continue;
    ++reach;
    const Best turned = {~order_key(entry.value), ~entry.id};
    if (turned.key > own.key || (turned.key == own.key && turned.id < own.id)) own = turned;
  }
  reach = add_up_block(row.shared, reach);
  own = best_of_block(row.shared, own);
  if (reach < 2) return;
  row.take({Taken::Kind::kSuffix, 0, 0, {~own.key, ~own.id}, 0, nullptr});
}

struct Choice {
  int32_t id;
  float candidates, probability;
};

VITRINE_DEVICE Choice draw(const Row& row, double uniform) {
  const uint64_t mass = mass_left(row), left = count_left(row);
  auto target = static_cast<uint64_t>(uniform * static_cast<double>(mass));
  target = target < mass ? target : mass - 1;  // the product may round up to the sum
  uint64_t own = 0;
  const uint32_t id = find_in_order(
      row, target, [&](const Entry& entry) { return row.mass(entry); }, &own);
  const auto probability = static_cast<float>(static_cast<double>(own) / static_cast<double>(mass));
  // Certain, to float's precision: a choice of one.
  return {static_cast<int32_t>(id), probability == 1.0f ? 1.0f : static_cast<float>(left),
          probability};
}

VITRINE_DEVICE bool is_edit(Kind kind) { return kind == Kind::kAdd || kind == Kind::kPenalise; }

// Edits and masks, in place; what stood there takes the place of the values. Returns their number.
VITRINE_DEVICE int take_edits(Row& row, const SampleStep* steps, int32_t* words) {
  int taken = 0;
  for (; is_edit(steps[taken].kind) || steps[taken].kind == Kind::kMask; ++taken) {
    const SampleStep step = steps[taken];
    if (step.kind == Kind::kMask) {
      const auto* mask = reinterpret_cast<const uint32_t*>(words + step.first);
      row.take({Taken::Kind::kMask, 0, 0, no_best(), 0, mask});
      continue;
    }
    const int32_t* ids = words + step.first;
    auto* values = reinterpret_cast<float*>(words + step.first + step.count);
    const auto factor = static_cast<float>(step.a);
    for (int32_t i = thread_index(); i < step.count; i += kSampleThreads) {
      float& logit = row.logits[ids[i]];
      const float old = logit;
      if (step.kind == Kind::kAdd) {
        logit = old + values[i];
      } else {
        logit = (old < 0.0f ? old * factor : old / factor) - values[i];
      }
      values[i] = old;
    }
    sync_block();
  }
  return taken;
}

VITRINE_DEVICE void undo_edits(Row& row, const SampleStep* steps, int taken, int32_t* words) {
  for (int t = taken - 1; t >= 0; --t) {
    const SampleStep step = steps[t];
    if (!is_edit(step.kind)) continue;
    sync_block();  // all have read what is rewritten now
    const int32_t* ids = words + step.first;
    const auto* values = reinterpret_cast<const float*>(words + step.first + step.count);
    for (int32_t i = thread_index(); i < step.count; i += kSampleThreads) {
      row.logits[ids[i]] = values[i];
    }
  }
  sync_block();
}

// What is left has another best; false where nothing is.
VITRINE_DEVICE bool find_best_again(Row& row) {
  bool is_broken = false;
  const Best best = find_best(row, &is_broken);
  row.best = key_float(best.key);
  return best.id != kNoId;
}

VITRINE_DEVICE void narrow(Row& row, const SampleStep& step) {
  const auto measure = [&](const Entry& entry) { return row.mass(entry); };
  const auto one = [](const Entry&) { return uint64_t{1}; };
  switch (step.kind) {
    case Kind::kTopNSigma: return keep_within_deviations(row, step.a);
    case Kind::kTopK: shorten_to_best(row, step.a); return keep_best(row, step.a, one);
    case Kind::kTypicalP: return keep_typical(row, step.a);
    case Kind::kTopP: return keep_best(row, step.a * static_cast<double>(mass_left(row)), measure);
    case Kind::kXtc: return drop_top(row, step.a);
    default:
      return row.take(
          {Taken::Kind::kMinimum, static_cast<float>(step.a), row.best, no_best(), 0, nullptr});
  }
}

// The steps from `first` on; the last one chooses. `is_narrowed`: something was ruled out before.
VITRINE_DEVICE Choice choose(Row& row, const SampleStep* steps, int first, bool is_narrowed) {
  const Choice none{kEmptyRow, 0.0f, 0.0f};
  if (is_narrowed) {
    if (!find_best_again(row)) return none;
    shorten(row);
  }
  for (int i = first; i < kMaxSampleSteps; ++i) {
    const SampleStep step = steps[i];
    if (step.kind == Kind::kGreedy) break;
    if (step.kind == Kind::kDraw) return draw(row, step.a);
    if (step.kind == Kind::kDivide) {
      divide(row, static_cast<float>(step.a));
      continue;
    }
    if (step.kind == Kind::kDynamicTemperature) {
      divide_by_entropy(row, step);
      continue;
    }
    narrow(row, step);
    shorten(row);
    const bool keeps_the_best = step.kind != Kind::kTypicalP && step.kind != Kind::kXtc;
    if (!keeps_the_best && !find_best_again(row)) return none;
  }
  bool is_broken = false;
  return {static_cast<int32_t>(find_best(row, &is_broken).id), 1.0f, 1.0f};
}

// What the first mask among the steps takes away from the row as it was given.
VITRINE_DEVICE void find_removed(const Row& row, const SampleStep* steps, const int32_t* words,
                                 uint32_t best, float* removed, float* rules_out_best) {
  int at = 0;
  while (is_edit(steps[at].kind)) ++at;
  if (steps[at].kind != Kind::kMask) return;
  const auto* mask = reinterpret_cast<const uint32_t*>(words + steps[at].first);
  uint64_t mass = 0;
  for (int64_t i = thread_index(); i < row.count; i += kSampleThreads) {
    const Entry entry = row.entry(i);
    mass += is_set(mask, entry.id) ? 0 : row.mass(entry);
  }
  mass = add_up_block(row.shared, mass);
  *removed = static_cast<float>(static_cast<double>(mass) / static_cast<double>(mass_left(row)));
  *rules_out_best = is_set(mask, best) ? 0.0f : 1.0f;
}

// A block a row. Bytes: 4 * vocab for each pass until few are left: one for the best, two where
// there is a mask, one or two where something was edited or masked, then (top-k: 4 and 2, top-p: 5
// and 2, top-n-sigma: 3, typical-p: 10 and 2, XTC: 2, dynamic temperature: 3, min-p: 0), one or two
// to move what is left into shared memory, four for a draw.
VITRINE_KERNEL(kSampleThreads)
void sample_kernel(Sampling sampling) {
  const int64_t index = block_x();
  const SampleStep* steps = sampling.steps + index * kMaxSampleSteps;
  if (steps[0].kind == Kind::kKeep) return;  // the whole block
  Row row{*dynamic_shared<SampleShared>(),
          sampling.logits + index * sampling.vocab,
          sampling.vocab,
          false,
          0,
          0.0f};
  bool is_broken = false;
  const Best best = find_best(row, &is_broken);
  Choice choice{is_broken ? kBrokenRow : kEmptyRow, 0.0f, 0.0f};
  float removed = 0.0f, rules_out_best = 0.0f;
  if (!is_broken && best.id != kNoId) {
    row.best = key_float(best.key);  // not the logit: edits may be under way there
    find_removed(row, steps, sampling.words, best.id, &removed, &rules_out_best);
    const int taken = take_edits(row, steps, sampling.words);
    choice = choose(row, steps, taken, taken > 0);
    undo_edits(row, steps, taken, sampling.words);
  }
  if (thread_index() != 0) return;
  sampling.chosen_ids[index] = choice.id;
  float* facts = sampling.facts + index * kSampleFacts;
  facts[0] = choice.candidates;
  facts[1] = choice.probability;
  facts[2] = removed;
  facts[3] = rules_out_best;
  if (sampling.records != nullptr && choice.id >= 0) {
    sampling.records[index * sampling.record_stride] = row.logits[choice.id];
  }
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
