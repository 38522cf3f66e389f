// SPDX-License-Identifier: Apache-2.0
// The joint's rows, from what joint_sums.cu made.
#include "kernels/cuda/federation/joint.h"

#include "kernels/cuda/federation/row_math.h"
#include "kernels/cuda/reduce.h"

namespace vitrine::kernels::cuda {
namespace {

// In place of log(0): a specialist without weight adds nothing and no NaN.
constexpr float kNoWeight = -1e30f;
// The least probability of a mixture that the exponentials tell: below it their floor would show.
constexpr float kLeastMixed = 1e-30f;

// A block of logits of every specialist at one row of the joint.
struct Place {
  int64_t row, begin, count;
  const int32_t* rows;   // [specialists + 1]
  const double* values;  // the row's
};
VITRINE_DEVICE Place place_of(const Joint& joint) {
  const int64_t row = block_y();
  const int64_t begin = static_cast<int64_t>(block_x()) * kJointBlockEntries;
  const int64_t left = joint.vocab - begin;
  return {row, begin, left < kJointBlockEntries ? left : kJointBlockEntries,
          joint.rows + row * (joint.specialists + 1),
          joint.values + row * joint_values(joint.specialists)};
}

// This thread's logits of specialist i.
VITRINE_DEVICE void load_logits(const Joint& joint, const Place& place, int32_t i, bool whole,
                                float (&out)[kJointPerLane]) {
  const float* logits = joint.sources[i] + place.rows[i] * joint.vocab + place.begin;
  load_floats(logits, thread_index() * kJointPerLane, place.count, whole, out);
}

struct MixShared {
  float factors[kMaxSpecialists];
  float max[kMaxSpecialists];
  float offsets[kMaxSpecialists];
  uint32_t below[kJointThreads / kWarp];
};

// The long way: q is log(sum(exp(logit + offset))) by the largest of them.
VITRINE_DEVICE void mix_by_logarithms(const Joint& joint, const Place& place, bool whole,
                                      MixShared& shared, float (&q)[kJointPerLane]) {
  const int32_t count = joint.specialists;
  const int32_t own = thread_index();
  if (own < count) {
    const double weight = place.values[1 + count + own];
    shared.offsets[own] =
        weight > 0 ? static_cast<float>(log_double(weight) - place.values[1 + own]) : kNoWeight;
  }
  sync_block();
  float most[kJointPerLane], sum[kJointPerLane], logits[kJointPerLane];
#pragma unroll
  for (int j = 0; j < kJointPerLane; ++j) {
    most[j] = kNoWeight;  // not infinite: a token that all specialists rule out is no NaN
    sum[j] = 0.0f;
  }
  for (int32_t i = 0; i < count; ++i) {
    load_logits(joint, place, i, whole, logits);
#pragma unroll
    for (int j = 0; j < kJointPerLane; ++j) {
      most[j] = joint_max(most[j], logits[j] + shared.offsets[i]);
    }
  }
  for (int32_t i = 0; i < count; ++i) {
    load_logits(joint, place, i, whole, logits);
#pragma unroll
    for (int j = 0; j < kJointPerLane; ++j) {
      const float x = (logits[j] + shared.offsets[i]) - most[j];
      sum[j] += joint_exp(joint_max(x, kJointExpLow));
    }
  }
#pragma unroll
  for (int j = 0; j < kJointPerLane; ++j) q[j] = most[j] + joint_log(sum[j]);
}

// A mixture's, a block of threads a block of the row. Bytes: 4 a logit of each specialist to read
// (12 the long way), 4 an entry to write.
VITRINE_KERNEL(kJointThreads)
void joint_mixture_kernel(Joint joint, bool whole) {
  MixShared& shared = *dynamic_shared<MixShared>();
  const Place place = place_of(joint);
  const int32_t count = joint.specialists;
  const int32_t own = thread_index();
  if (own < count) {
    const float max = joint.sums[(place.row * count + own) * grid_x() + block_x()].max;
    const double scale = exp_double(static_cast<double>(max) - place.values[1 + own]);
    shared.max[own] = max;
    shared.factors[own] = static_cast<float>(place.values[1 + count + own] * scale);
  }
  sync_block();
  float q[kJointPerLane], logits[kJointPerLane];
  for (int32_t i = 0; i < count; ++i) {
    load_logits(joint, place, i, whole, logits);
#pragma unroll
    for (int j = 0; j < kJointPerLane; ++j) {
      const float part = shared.factors[i] * joint_exponential(logits[j], shared.max[i]);
      q[j] = i == 0 ? part : q[j] + part;
    }
  }
  const int64_t first = thread_index() * kJointPerLane;
  bool is_below = false;
#pragma unroll
  for (int j = 0; j < kJointPerLane; ++j) {
    is_below = is_below || (first + j < place.count && !(q[j] >= kLeastMixed));
  }
  const uint32_t below = ballot(is_below);
  if (lane_index() == 0) shared.below[warp_index()] = below;
  sync_block();
  uint32_t any = 0;
  for (const uint32_t of_warp : shared.below) any |= of_warp;
  if (any != 0) {
    mix_by_logarithms(joint, place, whole, shared, q);
  } else {
#pragma unroll
    for (int j = 0; j < kJointPerLane; ++j) q[j] = first + j < place.count ? joint_log(q[j]) : 0.0f;
  }
  store_floats(joint.logits + place.row * joint.vocab + place.begin, first, place.count, whole, q);
}

// A product's, before it is normalised, and what each block of it adds to log Z, in the place of
// the first sums of the row's specialists, which nobody reads any more.
VITRINE_KERNEL(kJointThreads)
void joint_product_kernel(Joint joint, bool whole) {
  JointSumShared& shared = *dynamic_shared<JointSumShared>();
  const Place place = place_of(joint);
  const int32_t count = joint.specialists;
  float q[kJointPerLane], logits[kJointPerLane];
  for (int32_t i = 0; i < count; ++i) {
    const auto offset = static_cast<float>(-place.values[1 + i]);
    const auto weight = static_cast<float>(place.values[1 + count + i]);
    load_logits(joint, place, i, whole, logits);
#pragma unroll
    for (int j = 0; j < kJointPerLane; ++j) {
      const float part = weight * (logits[j] + offset);
      q[j] = i == 0 ? part : q[j] + part;
    }
  }
  store_floats(joint.logits + place.row * joint.vocab + place.begin, thread_index() * kJointPerLane,
               place.count, whole, q);
  sum_joint_block(shared, q, place.count, joint.sums + place.row * count * grid_x() + block_x());
}

// Bytes: 4 an entry to read, 4 to write.
VITRINE_KERNEL(kJointThreads)
void joint_normalise_kernel(Joint joint, bool whole) {
  const Place place = place_of(joint);
  float* row = joint.logits + place.row * joint.vocab + place.begin;
  const auto log_normaliser = static_cast<float>(place.values[0]);
  const int64_t first = thread_index() * kJointPerLane;
  float values[kJointPerLane];
  load_floats(row, first, place.count, whole, values);
#pragma unroll
  for (int j = 0; j < kJointPerLane; ++j) values[j] -= log_normaliser;
  store_floats(row, first, place.count, whole, values);
}

// A block a row of the joint, a thread a specialist.
VITRINE_KERNEL(kMaxSpecialists)
void joint_account_kernel(Joint joint) {
  const int64_t row = block_x();
  const int32_t count = joint.specialists;
  const int32_t own = thread_index();
  if (own >= count) return;
  const int32_t id = joint.chosen_ids[row];
  const int32_t* best = joint.best_ids + row * joint.best_stride;
  const int32_t second = best[0] != id ? best[0] : best[1];
  const int64_t of_source = joint.rows[row * (count + 1) + own];
  const float* source = joint.sources[own] + of_source * joint.vocab;
  double* logits = joint.values + row * joint_values(count) + 1 + 2 * count;
  logits[own] = id < 0 ? 0.0 : static_cast<double>(source[id]);
  logits[count + own] = static_cast<double>(source[second < 0 ? 0 : second]);
}

Status check(const Joint& joint, int32_t joints) {
  if (joint.specialists < 1 || joint.specialists > kMaxSpecialists) {
    return refuse("joint: specialists, expected 1 to 64");
  }
  if (joint.vocab < 1 || joint.vocab > 1 << 22) return refuse("joint: vocab, expected 1 to 2^22");
  if (joints < 1 || joints > 65535 / joint.specialists) {
    return refuse("joint: rows, expected 1 to 65,535 of all specialists");
  }
  return {};
}

}  // namespace

Status joint_rows(const Joint& joint, int32_t joints, Stream stream) {
  Status status = check(joint, joints);
  if (status.ok()) status = joint_sums(joint, joints, stream);
  if (status.ok()) status = joint_weights(joint, joints, stream);
  if (!status.ok()) return status;
  const Dim3 grid{static_cast<uint32_t>(joint_blocks(joint.vocab)), static_cast<uint32_t>(joints)};
  const bool whole = is_whole(joint.vocab, joint.logits);
  if (joint.kind != JointKind::kProduct) {
    return launch(joint_mixture_kernel, grid, kJointThreads, sizeof(MixShared), stream, joint,
                  whole);
  }
  status = launch(joint_product_kernel, grid, kJointThreads, sizeof(JointSumShared), stream, joint,
                  whole);
  if (status.ok()) status = joint_normaliser(joint, joints, stream);
  if (!status.ok()) return status;
  return launch(joint_normalise_kernel, grid, kJointThreads, 0, stream, joint, whole);
}

Status joint_account(const Joint& joint, int32_t joints, Stream stream) {
  const Status status = check(joint, joints);
  if (!status.ok()) return status;
  return launch(joint_account_kernel, {static_cast<uint32_t>(joints)}, kMaxSpecialists, 0, stream,
                joint);
}

}  // namespace vitrine::kernels::cuda
