// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/step_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "backend_cuda/branch_bits.h"
#include "backend_cuda/sampler_steps.h"
#include "backend_cuda/word_layout.h"

namespace vitrine::backend_cuda {

using kernels::cuda::AttentionQueries;
using kernels::cuda::AttentionTile;
using kernels::cuda::MmaRows;
using kernels::cuda::SampleStep;

namespace {

// Sixteen query rows a block need two tokens or more of a sequence to be worth it.
constexpr int32_t kMaxDecodeTokens = 16;

// Powers of two, and above 64 three sizes between two of them: a small step waits for weights,
// which filling up reads no more of, a large one for arithmetic.
int32_t next_size(int64_t count, int32_t most) {
  if (count <= 0) return 0;
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  const int64_t step = count > 64 ? power / 8 : power;
  return static_cast<int32_t>(std::min<int64_t>((count + step - 1) / step * step, most));
}

// Where the parts before the sampler's steps begin, in words, and how many they are in all.
struct HeadLayout {
  int64_t tiles, token_ids, positions, sequences, adapters;
  int64_t row_tokens, row_targets, host_choices, row_choices, branches;
  int64_t words;
};

HeadLayout head_layout(const StepShape& shape) {
  int64_t words = 0;
  const auto take = [&words](int64_t count) { return std::exchange(words, words + count); };
  constexpr int64_t kTileWords = sizeof(AttentionTile) / sizeof(int32_t);
  HeadLayout layout;
  layout.tiles = take(kTileWords * shape.tokens);
  layout.token_ids = take(shape.tokens);
  layout.positions = take(shape.tokens);
  layout.sequences = take(shape.tokens);
  layout.adapters = take(shape.tokens);
  layout.row_tokens = take(shape.rows);
  layout.row_targets = take(shape.rows);
  layout.host_choices = take(int64_t{2} * shape.rows);
  layout.row_choices = take(shape.rows);
  layout.branches = take(shape.branches ? int64_t{kernels::cuda::kBranchWords} * shape.tokens : 0);
  layout.words = aligned(words);
  return layout;
}

// Words of the sampler's steps, for what is chosen in each row.
int64_t step_words(const StepShape& shape) {
  return shape.samples ? aligned(shape.choices() * kChoiceStepWords) : 0;
}

}  // namespace

std::span<const DeviceSamplerSteps* const> steps_of(const engine::StepBatch& batch) {
  return batch.joint != nullptr ? batch.joint->steps : batch.row_steps;
}

bool attends_on_tensor_cores(const EngineOptions& options, DType kv_type, const ops::Graph& graph) {
  return options.activation_dtype != DType::kI8 && kv_type != DType::kF32 &&
         kv_type != DType::kI16 &&
         kernels::cuda::takes_attention_mma(static_cast<int32_t>(graph.num_heads),
                                            static_cast<int32_t>(graph.num_kv_heads),
                                            static_cast<int32_t>(graph.head_dim));
}

int64_t forced_route_words(const AuditLayout& layout, int layer) {
  int64_t words = 0;
  for (int i = 0; i < layer; ++i) words += 2 * layout.layers[static_cast<size_t>(i)].top_k;
  return words;
}

StepBuffers::StepBuffers(DeviceRuntime& runtime, const ops::Graph& graph, const AuditLayout& layout,
                         const EngineOptions& options, DType kv_type,
                         const engine::DeviceJointSpec* joint)
    : runtime_(runtime),
      max_tokens_(options.max_step_tokens),
      max_rows_(options.max_logit_rows),
      max_ranges_((options.max_context + kernels::cuda::kAttentionRange - 1) /
                  kernels::cuda::kAttentionRange),
      most_ahead_(std::min({options.max_sequences, max_tokens_, max_rows_})),
      samples_(joint != nullptr ? joint->max_sampled > 0 : samples_on_device(options)),
      tensor_core_attention_(attends_on_tensor_cores(options, kv_type, graph)),
      layout_(layout),
      joint_(joint != nullptr ? JointLayout(*joint) : JointLayout()),
      joint_sources_(joint != nullptr ? static_cast<size_t>(joint->row_width()) : 0),
      row_words_(layout.row_words),
      token_words_(layout.token_words),
      forced_words_(forced_route_words(layout, graph.num_layers)),
      hidden_(graph.width(graph.stream())),
      vocab_(graph.vocab_size),
      // Any step may bring a sampler, and its graph's addresses must stay: all of it is given now.
      sampler_words_((joint != nullptr ? joint->max_sampled
                      : samples_ ? std::min(max_rows_, options.max_sequences + engine::kDraftRows)
                                 : 0) *
                     most_sampler_words(vocab_)),
      table_stride_((options.max_context + kernels::cuda::kKvBlock - 1) / kernels::cuda::kKvBlock),
      device_in_(runtime,
                 static_cast<size_t>(words_before_tables(largest_shape()) +
                                     joint_.input_words(joint_.max_joints()) +
                                     max_tokens_ * table_stride_ + sampler_words_) *
                     sizeof(int32_t),
                 "a step's inputs"),
      device_out_{
          DeviceBuffer(runtime,
                       static_cast<size_t>(
                           record_words(max_tokens_, max_rows_) +
                           joint_record_words(joint_.max_joints()) + aligned(max_rows_ * hidden_) +
                           aligned(joint_.max_joints() * vocab_) + max_rows_ * vocab_) *
                           sizeof(int32_t),
                       "a step's records and logits"),
          DeviceBuffer(
              runtime,
              static_cast<size_t>(record_words(next_size(most_ahead_, max_tokens_),
                                               next_size(most_ahead_, max_rows_)) +
                                  joint_record_words(next_size(most_ahead_, joint_.max_joints()))) *
                  sizeof(int32_t),
              "a step's records")},
      host_in_{HostBuffer(runtime, device_in_.size(), "a step's inputs"),
               HostBuffer(runtime, device_in_.size(), "a step's inputs")},
      host_out_{HostBuffer(runtime, device_out_[0].size(), "a step's records and logits"),
                HostBuffer(runtime, device_out_[1].size(), "a step's records")} {}

StepBuffers::~StepBuffers() {
  for (const int32_t lane : {0, 1}) static_cast<void>(settle(lane));
}

int64_t StepBuffers::record_words(int32_t tokens, int32_t rows) const {
  return aligned(rows * (choice_words(samples_) + row_words_)) + aligned(tokens * token_words_);
}

int64_t StepBuffers::joint_record_words(int32_t joints) const {
  return joints > 0 ? aligned(joints * choice_words(samples_)) + joint_.result_words(joints) : 0;
}

int64_t StepBuffers::words_before_tables(const StepShape& shape) const {
  return head_layout(shape).words + step_words(shape) + joint_.input_words(shape.joints) +
         (shape.forces ? aligned(shape.tokens * forced_words_) : 0);
}

Status StepBuffers::settle(int32_t lane) {
  bool& is_under_way = is_under_way_[static_cast<size_t>(lane)];
  if (!is_under_way) return {};
  is_under_way = false;
  return runtime_.finish_read_back(lane);
}

StepShape StepBuffers::shape_of(int64_t tokens, int64_t rows, int64_t last_position) const {
  const int64_t ranges = last_position / kernels::cuda::kAttentionRange + 1;
  return {next_size(tokens, max_tokens_), next_size(rows, max_rows_),
          next_size(ranges, max_ranges_)};
}

StepShape StepBuffers::shape_of(const engine::StepBatch& batch) const {
  StepShape shape = shape_of(std::ssize(batch.token_ids), std::ssize(batch.row_tokens),
                             std::ranges::max(batch.positions));
  if (batch.joint != nullptr) {
    shape.joints = next_size(std::ssize(batch.joint->targets), joint_.max_joints());
  }
  shape.samples =
      std::ranges::any_of(steps_of(batch), [](const auto* steps) { return steps != nullptr; });
  shape.forces = !batch.forced_routes.empty();
  shape.branches = !batch.kv_copies.empty();
  shape.adapts = std::ranges::any_of(batch.span_adapters, [](int32_t of) { return of >= 0; });
  return shape;
}

StepMemory StepBuffers::at(const StepShape& shape, std::byte* in, std::byte* out) const {
  StepMemory memory;
  memory.shape = shape;
  const bool is_small = shape.tokens <= kMaxDecodeTokens;
  memory.queries = is_small ? AttentionQueries::k8 : AttentionQueries::k16;
  memory.mma_rows = is_small ? MmaRows::k16 : MmaRows::k64;
  memory.table_stride = table_stride_;
  auto* words = reinterpret_cast<int32_t*>(in);
  const HeadLayout head = head_layout(shape);
  memory.tiles = reinterpret_cast<AttentionTile*>(words + head.tiles);
  memory.token_ids = words + head.token_ids;
  memory.positions = words + head.positions;
  memory.sequences = words + head.sequences;
  memory.adapters = words + head.adapters;
  memory.row_tokens = words + head.row_tokens;
  memory.row_targets = words + head.row_targets;
  memory.host_choices = words + head.host_choices;
  memory.row_choices = words + head.row_choices;
  memory.branches = reinterpret_cast<uint32_t*>(words + head.branches);
  memory.words = words;
  memory.steps = reinterpret_cast<SampleStep*>(words + head.words);
  int32_t* const joint = words + head.words + step_words(shape);
  memory.forced_routes = joint + joint_.input_words(shape.joints);
  memory.tables = words + words_before_tables(shape);
  memory.chosen_ids = reinterpret_cast<int32_t*>(out);
  memory.choice_facts = reinterpret_cast<float*>(memory.chosen_ids + shape.choices());
  int64_t at = shape.choices() * choice_words(shape.samples);
  if (shape.joints > 0) {
    at = aligned(at);
    memory.joint = {.joints = shape.joints, .samples = shape.samples};
    joint_.place(memory.joint, joint, memory.chosen_ids + at);
    memory.joint.steps = memory.steps;
    memory.joint.words = memory.words;
    memory.joint.chosen_ids = memory.chosen_ids;
    memory.joint.choice_facts = memory.choice_facts;
    at += joint_.result_words(shape.joints);
  }
  memory.row_records = memory.chosen_ids + at;
  at += shape.rows * row_words_;
  memory.token_records = memory.chosen_ids + at;
  at = aligned(at + shape.tokens * token_words_);
  memory.hidden_states = reinterpret_cast<float*>(memory.chosen_ids + at);
  at = aligned(at + shape.rows * hidden_);
  memory.joint.logits = reinterpret_cast<float*>(memory.chosen_ids + at);
  at += aligned(shape.joints * vocab_);
  memory.logits = reinterpret_cast<float*>(memory.chosen_ids + at);
  return memory;
}

StepMemory StepBuffers::on_device(const StepShape& shape) const {
  const auto lane = static_cast<size_t>(shape.lane);
  StepMemory memory = at(shape, device_in_.data(), device_out_[lane].data());
  memory.last_chosen_ids = reinterpret_cast<const int32_t*>(device_out_[1 - lane].data());
  if (lane == 0) return memory;
  // Nobody reads these back: behind the records of lane 0, whatever step's they are.
  auto* words = reinterpret_cast<float*>(device_out_[0].data());
  memory.hidden_states =
      words + record_words(max_tokens_, max_rows_) + joint_record_words(joint_.max_joints());
  memory.joint.logits = memory.hidden_states + aligned(shape.rows * hidden_);
  memory.logits = memory.joint.logits + aligned(shape.joints * vocab_);
  return memory;
}

PackedStep StepBuffers::pack(const engine::StepBatch& batch, const StepShape& shape, int32_t heads,
                             int32_t kv_heads) {
  // A fault of a step that nobody waits for shows in the next one that somebody does.
  static_cast<void>(settle(shape.lane));
  const StepMemory memory = on_host(shape);
  const int32_t tile_tokens =
      tensor_core_attention_
          ? kernels::cuda::attention_mma_tile_tokens(heads, kv_heads, memory.mma_rows)
          : kernels::cuda::attention_tile_tokens(heads, kv_heads, memory.queries);
  const auto tokens = static_cast<int32_t>(batch.token_ids.size());
  const auto rows = static_cast<int32_t>(batch.row_tokens.size());
  // What is left over from other steps would make equal steps look unlike each other.
  std::fill(memory.words, memory.tables + std::ssize(batch.spans) * table_stride_, 0);
  std::copy_n(batch.token_ids.data(), tokens, memory.token_ids);
  std::copy_n(batch.positions.data(), tokens, memory.positions);
  AttentionTile* tile = memory.tiles;
  for (size_t i = 0; i < batch.spans.size(); ++i) {
    const engine::BatchSpan& span = batch.spans[i];
    std::fill_n(memory.sequences + span.first_token, span.num_tokens, static_cast<int32_t>(i));
    std::fill_n(memory.adapters + span.first_token, span.num_tokens, batch.span_adapters[i]);
    for (int32_t token = 0; token < span.num_tokens; token += tile_tokens) {
      *tile++ = {span.first_token + token, std::min(tile_tokens, span.num_tokens - token)};
    }
    const int64_t blocks =
        (span.past + span.num_tokens + kernels::cuda::kKvBlock - 1) / kernels::cuda::kKvBlock;
    const int64_t held = blocks - (span.next_block < 0 ? 0 : 1);
    int32_t* table = memory.tables + static_cast<int64_t>(i) * table_stride_;
    table = std::copy_n(span.block_table, held, table);
    if (held < blocks) *table = span.next_block;
  }
  std::fill(memory.token_ids + tokens, memory.token_ids + shape.tokens, memory.token_ids[0]);
  std::fill(memory.positions + tokens, memory.positions + shape.tokens, memory.positions[0]);
  std::fill(memory.sequences + tokens, memory.sequences + shape.tokens, memory.sequences[0]);
  std::fill(memory.adapters + tokens, memory.adapters + shape.tokens, memory.adapters[0]);
  for (int32_t token = tokens; token < shape.tokens; ++token) *tile++ = {token, 1};
  std::fill(tile, memory.tiles + shape.tokens, AttentionTile{0, 0});
  std::copy_n(batch.row_tokens.data(), rows, memory.row_tokens);
  std::copy_n(batch.row_targets.data(), rows, memory.row_targets);
  if (rows > 0) {
    std::fill(memory.row_tokens + rows, memory.row_tokens + shape.rows, memory.row_tokens[0]);
    std::fill(memory.row_targets + rows, memory.row_targets + shape.rows, memory.row_targets[0]);
  }
  if (shape.branches) write_branch_bits(batch, memory.sequences, memory.branches);
  write_choices(batch, memory);
  if (shape.joints > 0) write_joint(*batch.joint, memory);
  if (shape.forces) write_forced_routes(batch, memory);
  int64_t words = memory.tables - memory.words;
  words += static_cast<int64_t>(batch.spans.size()) * table_stride_;
  if (shape.samples) {
    words = write_steps(steps_of(batch), shape.choices(), words, memory.steps, memory.words);
  }
  return {shape, words, batch.audit_mode != AuditMode::kNone, batch.read_logits,
          batch.read_hidden_states};
}

bool StepBuffers::is_same(const PackedStep& step, const PackedStep& ahead, int64_t tokens) const {
  StepShape shape = step.shape;
  shape.lane = ahead.shape.lane;
  if (shape != ahead.shape || step.words != ahead.words || step.audit != ahead.audit ||
      step.read_logits || step.read_hidden_states) {
    return false;
  }
  const StepMemory asked = on_host(step.shape), started = on_host(ahead.shape);
  const int32_t *ids = asked.token_ids, *ids_end = ids + shape.tokens;
  const int32_t* const other_ids = started.token_ids;
  for (int64_t i = 0; i < tokens; ++i) {
    if (ids[i] < 0 || ids[i] != asked.chosen_ids[-1 - other_ids[i]]) return false;
  }
  const int32_t* const words = asked.words;
  const auto is_equal = [&](const int32_t* from, const int32_t* to) {
    return std::equal(from, to, std::as_const(started.words) + (from - words));
  };
  // Where a joint finds its rows hangs on the lane.
  const int32_t* const end = words + step.words;
  const int32_t* const sources =
      shape.joints > 0 ? reinterpret_cast<const int32_t*>(asked.joint.sources) : end;
  const int32_t* const behind = shape.joints > 0 ? sources + joint_.source_words() : end;
  return is_equal(words, ids) && is_equal(ids_end, sources) && is_equal(behind, end);
}

void StepBuffers::send(const PackedStep& step) {
  check(runtime_.copy_to_device(device_in_.data(),
                                host_in_[static_cast<size_t>(step.shape.lane)].data(),
                                static_cast<size_t>(step.words) * sizeof(int32_t)),
        "copying a step's inputs");
}

void StepBuffers::write_joint(const engine::DeviceJointStep& joint, const StepMemory& memory) {
  const StepMemory device = on_device(memory.shape);
  std::fill_n(joint_sources_.begin(), joint_sources_.size() - 1, device.logits);
  joint_sources_.back() = device.hidden_states;
  joint_.write(joint, joint_sources_, memory.joint);
}

void StepBuffers::write_choices(const engine::StepBatch& batch, const StepMemory& memory) const {
  const int32_t rows = memory.shape.rows;
  std::fill_n(memory.host_choices, 2 * rows, -1);
  for (size_t row = 0; row < batch.chosen.size(); ++row) {
    memory.host_choices[2 * row] = batch.chosen[row];
    if (row < batch.runners_up.size()) memory.host_choices[2 * row + 1] = batch.runners_up[row];
  }
  if (memory.shape.joints == 0) {
    std::iota(memory.row_choices, memory.row_choices + rows, 0);
    return;
  }
  // Descending, since all joints of a combiner that reads no hidden state name row 0 for it.
  const std::vector<int32_t>& rows_of_joints = batch.joint->rows;
  const auto width = std::ssize(joint_sources_);
  for (auto i = std::ssize(rows_of_joints) - 1; i >= 0; --i) {
    memory.row_choices[rows_of_joints[static_cast<size_t>(i)]] = static_cast<int32_t>(i / width);
  }
}

void StepBuffers::write_forced_routes(const engine::StepBatch& batch,
                                      const StepMemory& memory) const {
  for (int64_t token = 0; token < memory.shape.tokens; ++token) {
    int32_t* const words = memory.forced_routes + token * forced_words_;
    std::fill_n(words, forced_words_, -1);
    // What fills the shape up is the first token, its routes too.
    const auto from = static_cast<size_t>(token) < batch.forced_routes.size() ? token : 0;
    const std::span<const ForcedRoute> routes = batch.forced_routes[static_cast<size_t>(from)];
    int32_t* of_slot = words;
    for (size_t i = 0; i < routes.size(); ++i) {
      const int layer = routes[i].layer;
      const bool same_layer = i > 0 && routes[i - 1].layer == layer;
      of_slot = same_layer ? of_slot + 1 : words + forced_route_words(layout_, layer);
      *of_slot = routes[i].expert;
      std::memcpy(of_slot + layout_.layers[static_cast<size_t>(layer)].top_k, &routes[i].weight,
                  sizeof(float));
    }
  }
}

bool StepBuffers::keep_choosable(std::span<const DeviceSamplerSteps*> row_steps) const {
  return keep_takeable(row_steps, samples_ ? sampler_words_ : -1);
}

void StepBuffers::start_read_back(const engine::StepBatch& batch, const PackedStep& step) {
  const auto lane = static_cast<size_t>(step.shape.lane);
  const StepMemory memory = on_host(step.shape);
  const auto rows = static_cast<int64_t>(batch.row_tokens.size());
  const auto tokens = static_cast<int64_t>(batch.token_ids.size());
  const int64_t joints = batch.joint != nullptr ? std::ssize(batch.joint->targets) : 0;
  const int64_t choices = joints > 0 ? joints : rows;
  const void* end = memory.chosen_ids + choices;
  if (step.shape.samples) end = memory.choice_facts + choices * kernels::cuda::kSampleFacts;
  if (joints > 0) end = memory.joint.values + joints * joint_.values();
  if (step.audit) end = memory.token_records + tokens * token_words_;
  if (step.read_hidden_states) end = memory.hidden_states + rows * hidden_;
  if (step.read_logits) {
    end = joints > 0 ? memory.joint.logits + joints * vocab_ : memory.logits + rows * vocab_;
  }
  std::byte* const out = host_out_[lane].data();
  const auto bytes = static_cast<size_t>(static_cast<const std::byte*>(end) - out);
  // A step without rows is read back too: the host's inputs must stay until it has ended.
  check(runtime_.start_read_back(step.shape.lane, out, device_out_[lane].data(),
                                 std::max(bytes, sizeof(int32_t))),
        "a step");
  is_under_way_[lane] = true;
}

engine::DevicePass StepBuffers::receive(const PackedStep& step) {
  const StepMemory memory = on_host(step.shape);
  check(settle(step.shape.lane), "a step");
  const StepMemory device = on_device(step.shape);
  engine::DevicePass pass;
  pass.rows_on_device = {device.logits, device.hidden_states};
  pass.chosen_ids = reinterpret_cast<const std::byte*>(memory.chosen_ids);
  pass.row_records = reinterpret_cast<const std::byte*>(memory.row_records);
  pass.token_records = reinterpret_cast<const std::byte*>(memory.token_records);
  if (step.read_hidden_states) pass.hidden_states = memory.hidden_states;
  if (step.shape.joints > 0) {
    const JointMemory& joint = memory.joint;
    pass.joint = {joint.chosen_ids, step.shape.samples ? joint.choice_facts : nullptr,
                  joint.records, joint.values, step.read_logits ? joint.logits : nullptr};
    return pass;
  }
  if (step.shape.samples) pass.choice_facts = memory.choice_facts;
  if (step.read_logits) pass.logits = memory.logits;
  return pass;
}

}  // namespace vitrine::backend_cuda
