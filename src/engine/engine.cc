// SPDX-License-Identifier: Apache-2.0
#include "vitrine/engine.h"

#include <algorithm>
#include <cstring>

#include "engine/audit_layout.h"
#include "engine/device_executor.h"
#include "engine/engine_impl.h"
#include "engine/engine_options.h"
#include "engine/forced_routes.h"
#include "engine/kv_budget.h"
#include "engine/step_fit.h"
#include "model/architecture.h"

namespace vitrine {

Engine::Impl::Impl(const std::string& path, const EngineOptions& given, Reading reading,
                   const engine::DeviceJointSpec* joint)
    : checkpoint(Checkpoint::open(path)),
      config(parse_model_config(checkpoint)),
      graph(model::find_architecture(config.model_type, checkpoint.config_name()).build(config)),
      options(engine::resolve_options(given, checkpoint, config, graph)),
      layout(engine::make_audit_layout(graph, options.audit_mode, options.audit_level,
                                       options.record_rows)),
      pool({engine::num_kv_blocks(options, config), options.kv_block_size, options.max_context,
            options.max_sequences},
           [this](int32_t from, int32_t to) { executor->copy_block(from, to); }),
      row_sampler(static_cast<size_t>(config.vocab_size),
                  static_cast<size_t>(options.max_logit_rows)),
      next_step(config.vocab_size, options.max_context) {
  engine::require_no_further_layer(checkpoint, config);
  const bool is_fused_cpu =
      options.kernels == KernelPath::kFused && options.device.kind == DeviceKind::kCpu;
  if (!options.adapters.empty()) adapters.emplace(options.adapters, graph, is_fused_cpu);
  if (reading != Reading::kCheck) engine::report_float_blocks(checkpoint, options.strict);
  const bool knows_unread = is_fused_cpu && options.expert_cache_bytes == 0;
  const bool weights_read =
      reading == Reading::kLoad || (reading == Reading::kDescribe && !knows_unread);
  engine::ExecutorInputs inputs{checkpoint,
                                config,
                                graph,
                                layout,
                                options,
                                pool.num_blocks(),
                                adapters ? &*adapters : nullptr,
                                weights_read};
  inputs.joint = joint;
  executor = options.kernels == KernelPath::kReference ? engine::make_reference_executor(inputs)
             : options.device.kind == DeviceKind::kCpu ? engine::make_fused_executor(inputs)
                                                       : engine::make_device_executor(inputs);
  checkpoint.check_unchanged();  // some of what was read might be of another model
  summary.path = path;
  engine::describe_model(config, options, summary);
  executor->describe(summary);
  const auto tokens = static_cast<size_t>(options.max_step_tokens);
  const auto rows = static_cast<size_t>(options.max_logit_rows);
  batch.reserve(tokens, rows, static_cast<size_t>(options.max_sequences) + tokens);
  audit_tokens.reserve(tokens);
  row_inputs.reserve(rows);
  outputs.reserve(rows);
  own_words.resize(rows);
  const bool is_device = options.device.kind != DeviceKind::kCpu;
  samples_on_device = options.sample_on_device.value_or(is_device) &&
                      (is_device || options.kernels == KernelPath::kReference);
  sampler_steps.resize(samples_on_device ? rows : 0);
  batch.row_steps.reserve(sampler_steps.size());
  if (executor->runs_ahead()) next_step.reserve(rows);
}

void Engine::Impl::prepare(std::span<const StepInput> inputs) {
  batch.clear();
  audit_tokens.clear();
  row_inputs.clear();
  batch.audit_mode = records() ? layout.mode : AuditMode::kNone;
  batch.read_logits = options.keep_logits;
  batch.read_hidden_states = options.keep_hidden_state;
  chooses_in_pass = false;
  bool needs_host_choice = false;
  const bool forces_routes =
      std::ranges::any_of(inputs, [](const StepInput& input) { return !input.routes.empty(); });
  for (size_t i = 0; i < inputs.size(); ++i) {
    const StepInput& input = inputs[i];
    const auto count = static_cast<int32_t>(input.tokens.size());
    pool.prepare(input.sequence, count);
    if (forces_routes) engine::append_by_token(input, batch.forced_routes);
    const kv::SequenceBlocks& blocks = pool.get(input.sequence);
    batch.spans.push_back(
        {static_cast<int32_t>(batch.token_ids.size()), count, blocks.length, blocks.blocks.data()});
    batch.span_adapters.push_back(blocks.adapter);
    for (int32_t j = 0; j < count; ++j) {
      const bool last = j + 1 == count;
      const auto token = static_cast<int32_t>(batch.token_ids.size());
      const auto position = static_cast<int32_t>(blocks.length) + j;
      batch.token_ids.push_back(input.tokens[static_cast<size_t>(j)]);
      batch.positions.push_back(position);
      batch.block_tables.push_back(blocks.blocks.data());
      AuditToken record{input.sequence, position, input.tokens[static_cast<size_t>(j)], -1, 0};
      if (input.rows == StepInput::Rows::kAll || (last && input.rows == StepInput::Rows::kLast)) {
        const int32_t next = last ? input.next_token : input.tokens[static_cast<size_t>(j) + 1];
        const bool chooses = last && next < 0;
        const bool is_forced = engine::RowSampler::is_forced(input, static_cast<size_t>(j));
        record.row = static_cast<int32_t>(batch.row_tokens.size());
        record.generated = chooses || is_forced ? 1 : 0;
        batch.row_tokens.push_back(token);
        batch.row_targets.push_back(next);
        row_inputs.push_back(chooses     ? static_cast<int32_t>(i)
                             : is_forced ? kForced - static_cast<int32_t>(i)
                                         : -1);
        const size_t row = row_inputs.size() - 1;
        if (is_device_sampled(input, chooses)) {
          batch.row_steps.resize(row);  // of rows before this one that have none
          batch.row_steps.push_back(&sampler_steps[row]);
        } else if (host_sampled(row) != nullptr) {
          needs_host_choice = true;
        }
      }
      audit_tokens.push_back(record);
    }
  }
  if (!batch.row_steps.empty()) batch.row_steps.resize(batch.row_tokens.size());
  if (!needs_host_choice) return;
  batch.read_logits = true;
  require_choice_in_pass();
}

// Where a row's token is the host's, and its terms are recorded.
void Engine::Impl::require_choice_in_pass() {
  chooses_in_pass = options.attribution && batch.audit_mode != AuditMode::kNone;
  if (chooses_in_pass && !engine::runs_fused(options)) engine::refuse_late_choice();
}

// The record's head, written before the pass; returns where the pass's words go.
std::byte* Engine::Impl::reserve_record() {
  const size_t tokens = audit_tokens.size(), rows = batch.row_tokens.size();
  const AuditPassHeader header = engine::record_header(layout, passes, tokens, rows);
  record = engine::begin_record(*sink, header);
  clock.begin();  // waiting for a slow sink is no work
  const size_t token_bytes = tokens * sizeof(AuditToken);
  std::memcpy(record + sizeof(header), audit_tokens.data(), token_bytes);
  return record + sizeof(header) + token_bytes;
}

// Of a row, but for its token.
StepOutput Engine::Impl::output_of(size_t row) const {
  const auto vocab = static_cast<size_t>(config.vocab_size);
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto token = static_cast<size_t>(batch.row_tokens[row]);
  StepOutput output;
  output.sequence = audit_tokens[token].sequence;
  output.position = batch.positions[token];
  if (pass.logits != nullptr) output.logits = {pass.logits + row * vocab, vocab};
  if (pass.hidden_states != nullptr) {
    output.hidden_state = {pass.hidden_states + row * hidden, hidden};
  }
  return output;
}

// Rows whose token the host samples, in the record too.
void Engine::Impl::choose(std::span<const StepInput> inputs) {
  outputs.clear();
  const size_t rows = batch.row_tokens.size();
  std::byte* const words = pass.words;
  const auto broken_at = [&](size_t token) {
    return engine::broken_layer(layout, token, rows, records() ? words : nullptr);
  };
  for (size_t row = 0; row < rows; ++row) {
    const auto token = static_cast<size_t>(batch.row_tokens[row]);
    StepOutput output = output_of(row);
    std::memcpy(&output.token, words + row * sizeof(int32_t), sizeof(int32_t));
    if (row_inputs[row] >= 0) {
      const StepInput& input = inputs[static_cast<size_t>(row_inputs[row])];
      if (has_steps(row) && output.token >= 0) {
        row_sampler.take_facts(input, row, pass.choice_facts + row * engine::kChoiceFacts);
      } else if (host_sampled(row) != nullptr) {
        if (!chooses_in_pass) {
          try {
            output.token = sample(input, row, output.logits.data());
          } catch (const Error& error) {
            throw Error(error.kind(), error.what() + broken_at(token));
          }
          const float logit = output.logits[static_cast<size_t>(output.token)];
          engine::write_choice(layout, rows, row, output.token, logit, records(), words);
        }
      } else if (output.token < 0) {
        engine::refuse_choice(output.token == engine::kNothingLeft, input.sequence, output.position,
                              broken_at(token) + " (" + checkpoint.path() + ")");
      }
    }
    if (records() && layout.row_words > 0) {
      const size_t record = rows + row * static_cast<size_t>(layout.row_words);
      std::byte* const of_row = words + record * sizeof(int32_t);
      row_sampler.record(layout, choosing_input(row), row,
                         has_steps(row) ? nullptr : output.logits.data(), of_row);
      if (row_inputs[row] <= kForced) {
        const StepInput& input = inputs[static_cast<size_t>(kForced - row_inputs[row])];
        row_sampler.record_forced(layout, input, batch.row_targets[row], of_row);
      }
    }
    if (has_steps(row) || host_sampled(row) != nullptr)
      output.constraint = row_sampler.constraint(row);
    outputs.push_back(output);
  }
}

const StepInput* Engine::Impl::choosing_input(size_t row) const {
  return row_inputs[row] < 0 ? nullptr : &step_inputs[static_cast<size_t>(row_inputs[row])];
}

const StepInput* Engine::Impl::host_sampled(size_t row) const {
  const StepInput* input = choosing_input(row);
  return input != nullptr && engine::RowSampler::is_needed(*input) && !has_steps(row) ? input
                                                                                      : nullptr;
}

bool Engine::Impl::has_steps(size_t row) const {
  return row < batch.row_steps.size() && batch.row_steps[row] != nullptr;
}

// The naive recorder has read the head's choice before another one could be made.
bool Engine::Impl::is_device_sampled(const StepInput& input, bool chooses) const {
  return chooses && samples_on_device && batch.audit_mode != AuditMode::kNaive &&
         engine::RowSampler::is_needed(input) && engine::RowSampler::has_device_form(input);
}

// Once the sequences have their new tokens, which stages look back at.
void Engine::Impl::describe_choices() {
  for (size_t row = 0; row < batch.row_steps.size(); ++row) {
    if (batch.row_steps[row] == nullptr) continue;
    const StepInput& input = *choosing_input(row);
    row_sampler.describe(input, row, context_of(input, row), sampler_steps[row]);
  }
  // What the executor leaves to the host: a row can be described, and then sampled.
  if (executor->take_steps(batch.row_steps)) return;
  require_choice_in_pass();
  batch.read_logits = true;
}

SampleContext Engine::Impl::context_of(const StepInput& input, size_t row) const {
  const int64_t position = batch.positions[static_cast<size_t>(batch.row_tokens[row])];
  return {input.seed, position + 1, input.branch, pool.get(input.sequence).history};
}

int32_t Engine::Impl::sample(const StepInput& input, size_t row, const float* logits) {
  return row_sampler.sample(input, row, logits, context_of(input, row));
}

void Engine::Impl::begin(std::span<const StepInput> inputs, const engine::DeviceJointStep* joint,
                         bool stops) {
  step_inputs = inputs;
  prepare(inputs);
  if (joint != nullptr) {
    batch.joint = joint->count() > 0 ? joint : nullptr;
    batch.read_logits = joint->reads_logits;
    batch.read_hidden_states = joint->reads_hidden_states;
  }
  pass = {};
  pass.words = records() ? reserve_record() : reinterpret_cast<std::byte*>(own_words.data());
  for (const StepInput& input : inputs) {  // before the pass: a sampler in it sees them
    pool.append(input.sequence, input.tokens.data(), static_cast<int64_t>(input.tokens.size()));
  }
  describe_choices();
  batch.stops = stops || chooses_in_pass;
  const bool leads_on = executor->runs_ahead() && !batch.stops;
  batch.next = leads_on ? next_step.make(inputs, batch, pool, *executor) : nullptr;
  executor->begin(batch, pass);
}

void Engine::Impl::choose_in_pass() {
  const auto vocab = static_cast<size_t>(config.vocab_size);
  for (size_t row = 0; row < batch.row_tokens.size(); ++row) {
    const StepInput* input = host_sampled(row);
    batch.chosen.push_back(input == nullptr ? -1 : sample(*input, row, pass.logits + row * vocab));
  }
}

void Engine::Impl::finish() {
  executor->finish(batch, pass);
  if (batch.joint == nullptr) {
    choose(step_inputs);
  } else {
    collect_without_tokens();
  }
  if (records() && record != nullptr) engine::commit_record(*sink, record, clock.nanoseconds());
  ++passes;
}

void Engine::Impl::collect_without_tokens() {
  outputs.clear();
  for (size_t row = 0; row < batch.row_tokens.size(); ++row) outputs.push_back(output_of(row));
}

// Gives back what a pass that failed had taken, wherever it failed.
void Engine::Impl::undo(std::span<const StepInput> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const SequenceId sequence = inputs[i].sequence;
    pool.truncate(sequence,
                  i < batch.spans.size() ? batch.spans[i].past : pool.get(sequence).length);
  }
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::load(const std::string& path, const EngineOptions& options) {
  return load_joint(path, options, nullptr);
}

std::unique_ptr<Engine> Engine::load_joint(const std::string& path, const EngineOptions& options,
                                           const engine::DeviceJointSpec* joint) {
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<Impl>(path, options, Impl::Reading::kLoad, joint)));
}

void Engine::check(const std::string& path) {
  EngineOptions options;
  options.max_context = options.max_sequences = options.max_step_tokens = options.threads = 1;
  options.audit_mode = AuditMode::kNone;
  Impl(path, options, Impl::Reading::kCheck);
}

ModelPlan Engine::describe(const std::string& path, const EngineOptions& options) {
  const Impl impl(path, options, Impl::Reading::kDescribe);
  return {impl.summary, impl.executor->plan(), impl.options};
}

const ModelSummary& Engine::summary() const { return impl_->summary; }
const std::vector<PlanEntry>& Engine::plan() const { return impl_->executor->plan(); }
const EngineOptions& Engine::options() const { return impl_->options; }
ExpertCacheStats Engine::expert_cache() const { return impl_->executor->expert_cache(); }
SequenceId Engine::create_sequence(int adapter) {
  const engine::Occupied occupied(impl_->occupant);
  engine::require_adapter(adapter, static_cast<int>(impl_->options.adapters.size()));
  const SequenceId sequence = impl_->pool.create(adapter);
  engine::tell_sink(impl_->sink, AuditEvent{AuditEvent::Kind::kCreated, sequence, 0, 0, 0});
  return sequence;
}
SequenceId Engine::fork(SequenceId sequence) {
  const engine::Occupied occupied(impl_->occupant);
  const SequenceId copy = impl_->pool.fork(sequence);
  engine::tell_sink(impl_->sink,
                    AuditEvent{AuditEvent::Kind::kForked, copy, sequence, length(copy), 0});
  return copy;
}
void Engine::truncate(SequenceId sequence, int64_t length) {
  const engine::Occupied occupied(impl_->occupant);
  const int64_t before = impl_->pool.get(sequence).length;
  impl_->pool.truncate(sequence, length);
  if (length != before) {
    engine::tell_sink(impl_->sink,
                      AuditEvent{AuditEvent::Kind::kTruncated, sequence, 0, length, before});
  }
}
void Engine::release(SequenceId sequence) {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kWaits);
  const int64_t last_length = length(sequence);
  impl_->pool.release(sequence);
  engine::tell_sink(impl_->sink,
                    AuditEvent{AuditEvent::Kind::kReleased, sequence, 0, last_length, 0});
}
int64_t Engine::length(SequenceId sequence) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->pool.get(sequence).length;
}
std::span<const int32_t> Engine::tokens(SequenceId sequence) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->pool.get(sequence).history;
}
std::pair<int64_t, int64_t> Engine::kv_blocks() const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return {impl_->pool.num_free(), impl_->pool.num_blocks()};
}
StepFit Engine::fits(std::span<const StepInput> inputs) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return engine::measure_step(inputs, impl_->pool, impl_->options);
}
const AuditLayout& Engine::audit_layout() const { return impl_->layout; }
uint64_t Engine::readback_count() const { return impl_->executor->readback().count(); }
std::optional<double> Engine::measure_read_bandwidth(double seconds) {
  const engine::Occupied occupied(impl_->occupant);
  return impl_->executor->measure_read_bandwidth(seconds);
}

engine::WorkerPool* Engine::workers() { return impl_->executor->workers(); }

std::span<const StepOutput> Engine::step(std::span<const StepInput> inputs) {
  return step_joint(inputs, nullptr);
}

std::span<const StepOutput> Engine::step_joint(std::span<const StepInput> inputs,
                                               const engine::DeviceJointStep* joint) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->check(inputs);
  try {
    impl_->begin(inputs, joint, /*stops=*/false);
    if (impl_->chooses_in_pass) impl_->choose_in_pass();
    impl_->finish();
  } catch (...) {
    impl_->undo(inputs);
    throw;
  }
  return impl_->outputs;
}

std::span<const StepOutput> Engine::begin_step(std::span<const StepInput> inputs,
                                               const engine::DeviceJointStep* joint) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  impl.check(inputs);
  try {
    impl.begin(inputs, joint, /*stops=*/true);
  } catch (...) {
    impl.undo(inputs);
    throw;
  }
  impl.collect_without_tokens();
  return impl.outputs;
}

const engine::DeviceJointResult& Engine::joint_result() const { return impl_->pass.joint; }
const engine::DeviceRows& Engine::rows_on_device() const { return impl_->pass.rows_on_device; }

bool Engine::take_steps(std::span<const DeviceSamplerSteps*> row_steps) const {
  return impl_->executor->take_steps(row_steps);
}

void Engine::finish_step(std::span<const int32_t> chosen, std::span<const int32_t> runners_up) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  impl.batch.chosen.assign(chosen.begin(), chosen.end());
  impl.batch.runners_up.assign(runners_up.begin(), runners_up.end());
  try {
    impl.finish();
  } catch (...) {
    impl.undo(impl.step_inputs);
    throw;
  }
}

void Engine::set_audit_sink(AuditSink* sink) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  if (sink != nullptr) sink->open(impl.layout, engine::largest_record(impl.layout, impl.options));
  impl.sink = sink;  // where it does not refuse
  impl.record = nullptr;
  impl.clock.calibrate();
}

AuditSink* Engine::audit_sink() const { return impl_->sink; }
void Engine::set_audit_mode(AuditMode mode) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->executor->check_audit_mode(mode);
  impl_->layout.mode = mode;
}

}  // namespace vitrine
