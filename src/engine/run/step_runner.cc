// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_runner.h"

#include <algorithm>
#include <cstring>

#include "audit/pass_record.h"
#include "engine/engine_options.h"
#include "engine/model_checks.h"
#include "engine/run/audit_layout.h"
#include "engine/run/device_executor.h"
#include "engine/run/draft_trees.h"
#include "engine/run/features.h"
#include "engine/run/forced_routes.h"
#include "engine/run/lone_failures.h"
#include "model/architecture.h"
#include "model/draft_layer.h"
#include "model/tensor_use.h"
#include "ops/draft_input.h"

namespace vitrine::engine {

namespace {

// Of the trees of a step; CUDA's kernels have a bit for each (RopeKv::branches).
constexpr size_t kMaxBranches = 255;

// Of a draft layer `config` becomes that of a model of this layer alone.
ops::Graph build_graph(const Checkpoint& checkpoint, const LoadRequest& request, bool is_lenient,
                       ModelConfig& config) {
  if (request.is_draft_layer()) {
    model::DraftLayer layer = model::build_draft_layer(checkpoint, config, request.draft_layer);
    config = std::move(layer.config);
    return std::move(layer.graph);
  }
  ops::Graph graph = model::build_graph(checkpoint, config);
  if (!is_lenient) require_no_surplus(checkpoint, config);
  return graph;
}

}  // namespace

StepRunner::StepRunner(const std::string& path, const EngineOptions& given,
                       const LoadRequest& request)
    : checkpoint_(Checkpoint::open(path)),
      config_(parse_model_config(checkpoint_)),
      graph_(build_graph(checkpoint_, request, given.lenient_weights, config_)),
      options_(
          resolve_options(given, checkpoint_, limited_config(request, given, config_), graph_)),
      layout_(make_audit_layout(graph_, options_.audit_mode, options_.audit_level,
                                request.record_rows, options_.expert_norms)),
      kv_blocks_(find_kv_blocks(options_, graph_)),
      pool_(
          request.is_load() ? pool_sizes(options_, graph_, kv_blocks_) : no_pool(options_),
          [this](int32_t from, int32_t to) { executor_->copy_block(from, to); },
          [this](int32_t from, int32_t to) { executor_->copy_state(from, to); },
          [this](int32_t from, int32_t to) { executor_->copy_window_block(from, to); }),
      row_sampler_(static_cast<size_t>(config_.vocab_size),
                   static_cast<size_t>(options_.max_logit_rows)),
      next_step_(config_.vocab_size, options_.max_context),
      trees_(pool_) {
  using Reading = LoadRequest::Reading;
  const bool is_fused_cpu =
      options_.kernels == KernelPath::kFused && options_.device.kind == DeviceKind::kCpu;
  if (!options_.adapters.empty() || !options_.lora.empty()) {
    adapters_.emplace(options_.adapters, options_.lora, graph_, is_fused_cpu);
  }
  if (!request.is_draft_layer()) {
    tensor_use_ = model::find_tensor_use(checkpoint_, config_, graph_, options_.lenient_weights);
    if (request.reading != Reading::kCheck) report_float_blocks(checkpoint_, options_.strict);
  }
  const bool knows_unread = is_fused_cpu && options_.expert_cache_bytes == 0;
  const bool weights_read =
      request.reading == Reading::kLoad || (request.reading == Reading::kDescribe && !knows_unread);
  ExecutorInputs inputs{checkpoint_,
                        config_,
                        graph_,
                        layout_,
                        options_,
                        kv_blocks_.full,
                        adapters_ ? &*adapters_ : nullptr,
                        weights_read,
                        request.is_load()};
  inputs.num_states = num_states(options_, graph_);
  inputs.num_window_blocks = kv_blocks_.windowed;
  inputs.is_windowed = kv_blocks_.is_windowed;
  inputs.table_stride = pool_.table_stride();
  inputs.joint = request.joint;
  if (!options_.taps.empty() || !options_.feature_layers.empty()) {
    inputs.taps = &taps_.emplace(graph_, all_taps(graph_, options_));
    features_.reserve(options_, config_.hidden_size);
    taps_->reader = &features_;
  }
  threads_ = options_.shared_threads;
  // Other paths have threads of their own, and an occupant as well.
  if (threads_ == nullptr) {
    threads_ = std::make_shared<EngineThreads>(is_fused_cpu ? options_.threads : 1);
  }
  inputs.threads = threads_.get();
  executor_ = options_.kernels == KernelPath::kReference ? make_reference_executor(inputs)
              : options_.device.kind == DeviceKind::kCpu ? make_fused_executor(inputs)
                                                         : make_device_executor(inputs);
  checkpoint_.check_unchanged();  // some of what was read might be of another model
  summary_.path = path;
  describe_model(config_, options_, summary_);
  executor_->describe(summary_);
  if (!request.is_load()) add_context(options_, graph_, kv_blocks_, summary_);
  if (request.is_load()) summary_.table_bytes += pool_.num_bytes();
  const auto tokens = static_cast<size_t>(options_.max_step_tokens);
  const auto rows = static_cast<size_t>(options_.max_logit_rows);
  watch_.reserve(static_cast<size_t>(options_.max_sequences));
  batch_.reserve(tokens, rows, static_cast<size_t>(options_.max_sequences) + tokens);
  rows_.reserve(tokens, rows, tokens);
  outputs_.reserve(rows);
  journal_.reserve(executor_->journal_rows());
  own_words_.resize(rows);
  parts_.reserve(tokens);
  if (executor_->runs_trees() && rows > 1) {
    trees_.reserve(tokens, std::min(rows, kMaxBranches));
    tree_record_ = std::make_unique_for_overwrite<std::byte[]>(largest_record(layout_, options_));
  }
  const bool is_device = options_.device.kind != DeviceKind::kCpu;
  samples_on_device_ = options_.sample_on_device.value_or(is_device) &&
                       (is_device || options_.kernels == KernelPath::kReference);
  sampler_steps_.resize(samples_on_device_ ? rows : 0);
  batch_.row_steps.reserve(sampler_steps_.size());
  if (executor_->runs_ahead()) next_step_.reserve(rows);
  layers_ = {0, graph_.num_layers};
}

void StepRunner::check(std::span<const StepInput> inputs) const {
  for (const StepInput& input : inputs) require_level(pool_, input.sequence);
  check_trees(inputs);
  if (options_.hidden_states_only) require_no_choices(inputs);
  check_step(inputs, pool_, options_, config_.vocab_size, layout_, row_sampler_);
}

void StepRunner::prepare(std::span<const StepInput> inputs) {
  batch_.clear();
  rows_.clear();
  trees_.clear();
  batch_.audit_mode = records() || records_guess_ ? layout_.mode : AuditMode::kNone;
  batch_.read_logits = options_.keep_logits;
  batch_.read_hidden_states = options_.keep_hidden_state;
  batch_.runs_head = !options_.hidden_states_only;
  const int led_layer = std::exchange(led_layer_, 0);
  batch_.first_layer = led_layer > 0 ? led_layer : layers_.first;
  batch_.end_layer = layers_.end;
  batch_.residual = led_layer > 0 ? leads_.rows().residual.data() : residual_;
  batch_.reads_residual = layers_.end < graph_.num_layers || ops::takes_rows(graph_);
  const bool forces_routes =
      std::ranges::any_of(inputs, [](const StepInput& input) { return !input.routes.empty(); });
  for (const StepInput& input : inputs) {
    const auto count = static_cast<int32_t>(input.tokens.size());
    const kv::SequenceBlocks& blocks = pool_.get(input.sequence);
    const int64_t past = past_of(input.sequence);
    parts_.push_back({input.sequence, past, static_cast<int32_t>(batch_.token_ids.size()), count});
    rows_.add(input, past);
    if (forces_routes) append_by_token(input, batch_.forced_routes);
    if (DraftTree::is_tree(input)) {
      pool_.prepare(input.sequence, DraftTree(input).end_of_branch(0));
      trees_.add(input, past, blocks.adapter, batch_);
      continue;
    }
    if (layers_.first == 0) pool_.prepare(input.sequence, count);
    batch_.spans.push_back(
        {static_cast<int32_t>(batch_.token_ids.size()), count, past, blocks.blocks.data()});
    if (pool_.has_states()) {  // undo() takes it back
      const bool has_drafts = input.num_drafts > 0;
      const bool is_forced = !input.routes.empty() || pool_.forced_end(input.sequence) > 0;
      batch_.spans.back().state =
          pool_.own_state(input.sequence, count, /*keeps=*/has_drafts || is_forced);
      if (has_drafts) batch_.spans.back().journal = journal_.add(input.sequence, past, count);
      pool_.set_state_length(input.sequence, past + count);
    }
    if (!input.routes.empty()) pool_.set_forced_end(input.sequence, past + count);
    batch_.span_adapters.push_back(blocks.adapter);
    for (int32_t i = 0; i < count; ++i) {
      batch_.token_ids.push_back(input.tokens[static_cast<size_t>(i)]);
      batch_.positions.push_back(static_cast<int32_t>(past) + i);
      batch_.block_tables.push_back(blocks.blocks.data());
    }
  }
  trees_.end(batch_);
  prepare_rows(inputs);
}

std::span<const float> StepRunner::features(SequenceId sequence) const {
  if (options_.feature_layers.empty()) return {};
  const auto part = std::ranges::find(parts_, sequence, &InputPart::sequence);
  if (part == parts_.end()) return {};
  return features_.rows(part->first_token, part->num_tokens);
}

// The record's head, written before the pass; returns where the pass's words go.
std::byte* StepRunner::reserve_record() {
  const std::span<const AuditToken> tokens = rows_.audit_tokens();
  const AuditPassHeader header =
      audit::record_header(layout_, passes_, tokens.size(), rows_.size());
  if (trees_.empty()) {
    record_ = audit::begin_record(*sink_, header);
  } else {  // what stays of it goes to the sink
    record_ = tree_record_.get();
    std::memcpy(record_, &header, sizeof(header));
  }
  clock_.begin();  // waiting for a slow sink is no work
  std::memcpy(record_ + sizeof(header), tokens.data(), tokens.size_bytes());
  return record_ + sizeof(header) + tokens.size_bytes();
}

// Of a row, but for its token.
StepOutput StepRunner::output_of(size_t row) const {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  StepOutput output;
  output.sequence = input_of(rows_[row]).sequence;
  output.position = rows_[row].position;
  if (pass_.logits != nullptr) output.logits = {pass_.logits + row * vocab, vocab};
  if (pass_.hidden_states != nullptr) {
    output.hidden_state = {pass_.hidden_states + row * hidden, hidden};
  }
  return output;
}

void StepRunner::run_to_rows(std::span<const StepInput> inputs, const DeviceJointStep* joint,
                             ChoicePoint point) {
  batch_.clear();
  parts_.clear();
  if (pool_.has_states()) journal_.clear();
  for (const StepInput& input : inputs) {
    blame(blamed_, input.sequence, [&] { catch_up(input.sequence); });
  }
  prepare(inputs);
  if (joint != nullptr) {
    batch_.joint = joint->count() > 0 ? joint : nullptr;
    batch_.read_logits = joint->reads_logits;
    batch_.read_hidden_states = joint->reads_hidden_states;
  }
  pass_ = {};
  pass_.words = records()        ? reserve_record()
                : records_guess_ ? guess_record_.data()
                                 : reinterpret_cast<std::byte*>(own_words_.data());
  if (layers_.first == 0) {
    for (const StepInput& input : inputs) {  // before the pass: a sampler in it sees them
      const size_t drafts =                  // of a tree they come when they are chosen
          DraftTree::is_tree(input) ? static_cast<size_t>(input.num_drafts) : 0;
      pool_.append(input.sequence, input.tokens.data(),
                   static_cast<int64_t>(input.tokens.size() - drafts));
    }
  }
  describe_choices();
  if (point == ChoicePoint::kBehindHead) batch_.choice_point = point;
  const bool leads_on =
      is_whole() && executor_->runs_ahead() && batch_.choice_point != ChoicePoint::kBehindHead;
  batch_.next = leads_on ? next_step_.make(inputs, rows_, batch_, pool_, *executor_) : nullptr;
  batch_.meanwhile = this;
  executor_->run_to_choice(batch_, pass_);
}

void StepRunner::run_from_rows() {
  executor_->run_from_choice(batch_, pass_);
  if (meanwhile_error_) {
    blamed_ = meanwhile_blamed_;
    std::rethrow_exception(std::exchange(meanwhile_error_, nullptr));
  }
  if (records() && batch_.first_layer > layers_.first) {  // the layers before have run already
    std::byte* const words = pass_.words + layout_.pass_words(rows_.size(), 0) * sizeof(int32_t);
    leads_.copy_words(words);
  }
  if (batch_.joint == nullptr && !options_.hidden_states_only) {
    choose();
  } else {
    collect_without_tokens();
  }
  settle_trees();
  if (records() && record_ != nullptr) {
    commit_record(*sink_, record_, clock_.nanoseconds(), blamed_);
  }
  ++passes_;
}

void StepRunner::collect_without_tokens() {
  outputs_.clear();
  for (size_t row = 0; row < rows_.size(); ++row) outputs_.push_back(output_of(row));
}

// Gives back what a pass that failed had taken, wherever it failed.
void StepRunner::undo(std::span<const StepInput> inputs) {
  trees_.clear();
  for (size_t i = 0; layers_.first == 0 && i < inputs.size(); ++i) {  // else it took nothing
    const SequenceId sequence = inputs[i].sequence;
    pool_.truncate(sequence, i < parts_.size() ? parts_[i].past : pool_.get(sequence).length);
  }
  parts_.clear();
}

std::span<const StepOutput> StepRunner::step(std::span<const StepInput> inputs,
                                             const DeviceJointStep* joint) {
  blamed_ = 0;
  check(inputs);
  begin_watch(inputs);
  if (joint != nullptr || !takes_leads()) leads_.clear();
  led_layer_ = leads_.take(inputs, pool_, records()) ? leads_.layer() : 0;
  try {
    run_to_rows(inputs, joint, ChoicePoint::kBehindPass);
    if (batch_.choice_point == ChoicePoint::kBehindHead) choose_behind_head();
    run_from_rows();
  } catch (...) {
    undo(inputs);
    throw;
  }
  settle(inputs);
  return outputs_;
}

std::span<const StepOutput> StepRunner::step_to_rows(std::span<const StepInput> inputs,
                                                     const DeviceJointStep* joint) {
  blamed_ = 0;
  check(inputs);
  begin_watch(inputs);
  leads_.clear();
  try {
    run_to_rows(inputs, joint, ChoicePoint::kBehindHead);
  } catch (...) {
    undo(inputs);
    throw;
  }
  collect_without_tokens();
  return outputs_;
}

void StepRunner::step_from_rows(std::span<const int32_t> chosen,
                                std::span<const int32_t> runners_up) {
  batch_.chosen.assign(chosen.begin(), chosen.end());
  batch_.runners_up.assign(runners_up.begin(), runners_up.end());
  try {
    run_from_rows();
  } catch (...) {
    undo(inputs_);
    throw;
  }
  settle(inputs_);
}

void StepRunner::set_audit_sink(AuditSink* sink) {
  if (sink != nullptr && options_.hidden_states_only) {
    throw Error(ErrorKind::kUnsupported,
                "the engine was loaded for hidden states alone (engine option "
                "'hidden_states_only'), whose steps are no passes that could be recorded; expected "
                "no audit sink, or an engine without that option");
  }
  if (sink != nullptr) sink->open(layout_, largest_record(layout_, options_));
  sink_ = sink;  // where it does not refuse
  record_ = nullptr;
  clock_.calibrate();
}

void StepRunner::set_audit_mode(AuditMode mode) {
  executor_->check_audit_mode(mode);
  layout_.mode = mode;
}

}  // namespace vitrine::engine
