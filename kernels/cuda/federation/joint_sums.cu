// SPDX-License-Identifier: Apache-2.0
// What a joint is made of: each specialist's log-sum-exp at each row, and its weight there.
#include "kernels/cuda/federation/joint.h"
#include "kernels/cuda/federation/row_math.h"
#include "kernels/cuda/reduce.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kWarps = kJointThreads / kWarp;
constexpr int kProductsAhead = 8 * kWarp;  // of a gate's dot

// A block of threads for a block of a specialist's row. Bytes: 4 a logit to read.
VITRINE_KERNEL(kJointThreads)
void joint_sums_kernel(Joint joint, bool whole) {
  JointSumShared& shared = *dynamic_shared<JointSumShared>();
  const int64_t row = block_y() / joint.specialists;
  const int32_t specialist = block_y() % joint.specialists;
  const int64_t begin = static_cast<int64_t>(block_x()) * kJointBlockEntries;
  const int64_t left = joint.vocab - begin;
  const int64_t count = left < kJointBlockEntries ? left : kJointBlockEntries;
  const int64_t of_source = joint.rows[row * (joint.specialists + 1) + specialist];
  const float* logits = joint.sources[specialist] + of_source * joint.vocab + begin;
  float values[kJointPerLane];
  load_floats(logits, thread_index() * kJointPerLane, count, whole, values);
  sum_joint_block(shared, values, count,
                  joint.sums + static_cast<int64_t>(block_y()) * grid_x() + block_x());
}

struct FoldShared {
  double factors[kWarps][kWarp];
  double terms[kWarps][kWarp];
  double products[kWarps][kProductsAhead];
  double weights[kMaxSpecialists];
};

// One warp: log of the sum over blocks in ascending order, S = S * factor + term for each, by the
// largest so far. Factors need no S, so the exponentials are made 32 at a time. Lane 0 gets it.
VITRINE_DEVICE double fold_sums(const JointSum* sums, int64_t blocks, double* factors,
                                double* terms) {
  const double lowest = -static_cast<double>(bits_float(0x7f800000u));
  double most = lowest;  // of the blocks so far that count
  bool is_empty = true;  // none did
  double sum = 0;
  for (int64_t first = 0; first < blocks; first += kWarp) {
    const int64_t b = first + lane_index();
    const JointSum own = b < blocks ? sums[b] : JointSum{0.0, 0.0f};
    const bool counts = own.sum != 0.0;  // NaN does
    double running = counts ? static_cast<double>(own.max) : lowest;
    for (int delta = 1; delta < kWarp; delta *= 2) {
      const double other = shuffle_up(running, delta);
      if (lane_index() >= delta && other > running) running = other;
    }
    const uint32_t counting = ballot(counts);
    double before = shuffle_up(running, 1);
    before = lane_index() == 0 || before < most ? most : before;
    const bool is_first = is_empty && (counting & ((1u << lane_index()) - 1)) == 0;
    const double max = static_cast<double>(own.max);
    double factor = 1.0, term = 0.0;
    if (counts && is_first) {
      factor = 0.0;
      term = own.sum;
    } else if (counts && max > before) {
      factor = exp_double(before - max);
      term = own.sum;
    } else if (counts) {
      term = own.sum * exp_double(max - before);
    }
    factors[lane_index()] = factor;
    terms[lane_index()] = term;
    sync_warp();
    if (lane_index() == 0) {
      for (int lane = 0; lane < kWarp; ++lane) sum = sum * factors[lane] + terms[lane];
    }
    sync_warp();
    const double here = shuffle(running, kWarp - 1);
    most = here > most ? here : most;
    is_empty = is_empty && counting == 0;
  }
  return (is_empty ? 0.0 : most) + log_double(sum);
}

// One warp: bias + sum(gate * state), each product and sum rounded to double, in order. Lane 0 gets
// it. The chain of additions is what it costs: about 10 us for 2,048 numbers.
VITRINE_DEVICE double gate_logit(const float* gate, const float* state, int64_t hidden, float bias,
                                 double* products) {
  double sum = static_cast<double>(bias);
  for (int64_t first = 0; first < hidden; first += kProductsAhead) {
    const int64_t left = hidden - first;
    const int count = static_cast<int>(left < kProductsAhead ? left : kProductsAhead);
    for (int j = lane_index(); j < count; j += kWarp) {
      products[j] = static_cast<double>(gate[first + j]) * static_cast<double>(state[first + j]);
    }
    sync_warp();
    if (lane_index() == 0) {
#pragma unroll 8
      for (int j = 0; j < count; ++j) sum += products[j];
    }
    sync_warp();
  }
  return sum;
}

// All threads: `weights` becomes its softmax, added up in order.
VITRINE_DEVICE void take_softmax(double* weights, int32_t count) {
  sync_block();
  double most = -static_cast<double>(bits_float(0x7f800000u));
  for (int32_t i = 0; i < count; ++i) most = most < weights[i] ? weights[i] : most;
  sync_block();
  const int32_t own = thread_index();
  if (own < count) weights[own] = exp_double(weights[own] - most);
  sync_block();
  double total = 0;
  for (int32_t i = 0; i < count; ++i) total += weights[i];
  sync_block();
  if (own < count) weights[own] /= total;
  sync_block();
}

// A block of threads a row of the joint, a warp a specialist. Bytes: 16 a block of logits, and of a
// gate 4 * hidden a specialist, to read.
VITRINE_KERNEL(kJointThreads)
void joint_weights_kernel(Joint joint, int64_t blocks) {
  FoldShared& shared = *dynamic_shared<FoldShared>();
  const int64_t row = block_x();
  const int32_t count = joint.specialists;
  double* values = joint.values + row * joint_values(count);
  const int warp = warp_index();
  const bool is_gate = joint.kind == JointKind::kGate;
  const float* state = nullptr;
  if (is_gate) {
    state = joint.sources[count] + joint.rows[row * (count + 1) + count] * joint.hidden;
  }
  for (int32_t i = warp; i < count; i += kWarps) {
    const double log_sum_exp = fold_sums(joint.sums + (row * count + i) * blocks, blocks,
                                         shared.factors[warp], shared.terms[warp]);
    const double weight = is_gate ? gate_logit(joint.gate + i * joint.hidden, state, joint.hidden,
                                               joint.bias[i], shared.products[warp])
                                  : joint.weights[i];
    if (lane_index() != 0) continue;
    values[1 + i] = log_sum_exp;
    shared.weights[i] = weight;
  }
  if (is_gate) {
    take_softmax(shared.weights, count);
  } else {
    sync_block();
  }
  const int32_t own = thread_index();
  if (own < count) values[1 + count + own] = shared.weights[own];
  if (own == 0) values[0] = 0.0;
}

struct NormaliserShared {
  double factors[kWarp];
  double terms[kWarp];
};

// A warp a row of the joint.
VITRINE_KERNEL(kWarp)
void joint_normaliser_kernel(Joint joint, int64_t blocks) {
  NormaliserShared& shared = *dynamic_shared<NormaliserShared>();
  const int64_t row = block_x();
  const double log_normaliser = fold_sums(joint.sums + row * joint.specialists * blocks, blocks,
                                          shared.factors, shared.terms);
  if (lane_index() == 0) joint.values[row * joint_values(joint.specialists)] = log_normaliser;
}

}  // namespace

Status joint_sums(const Joint& joint, int32_t joints, Stream stream) {
  const Dim3 grid{static_cast<uint32_t>(joint_blocks(joint.vocab)),
                  static_cast<uint32_t>(joints * joint.specialists)};
  // Where rows begin is known on the device alone: memory of a device begins at multiples of 256.
  const bool whole = joint.vocab % kVector == 0;
  return launch(joint_sums_kernel, grid, kJointThreads, sizeof(JointSumShared), stream, joint,
                whole);
}

Status joint_weights(const Joint& joint, int32_t joints, Stream stream) {
  return launch(joint_weights_kernel, {static_cast<uint32_t>(joints)}, kJointThreads,
                sizeof(FoldShared), stream, joint, joint_blocks(joint.vocab));
}

Status joint_normaliser(const Joint& joint, int32_t joints, Stream stream) {
  return launch(joint_normaliser_kernel, {static_cast<uint32_t>(joints)}, kWarp,
                sizeof(NormaliserShared), stream, joint, joint_blocks(joint.vocab));
}

}  // namespace vitrine::kernels::cuda
