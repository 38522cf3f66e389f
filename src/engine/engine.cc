// SPDX-License-Identifier: Apache-2.0
#include "vitrine/engine.h"

#include "engine/engine_access.h"
#include "engine/engine_impl.h"
#include "engine/model_checks.h"
#include "engine/run/audit_layout.h"
#include "engine/run/step_checks.h"

namespace vitrine {

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

std::unique_ptr<Engine> engine::EngineAccess::load(const std::string& path,
                                                   const EngineOptions& options,
                                                   const LoadRequest& request) {
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<Engine::Impl>(path, options, request)));
}

engine::LoadedModel& engine::EngineAccess::model(Engine& engine) { return engine.impl_->model; }
engine::Occupant& engine::EngineAccess::occupant(Engine& engine) { return engine.impl_->occupant; }
engine::StepRunner& engine::EngineAccess::runner(Engine& engine) { return engine.impl_->runner; }
engine::PartialSteps& engine::EngineAccess::partial_steps(Engine& engine) {
  return engine.impl_->partial_steps;
}

std::unique_ptr<Engine> Engine::load(const std::string& path, const EngineOptions& options) {
  return engine::EngineAccess::load(path, options, {});
}

void Engine::check(const std::string& path, bool lenient_weights) {
  EngineOptions options;
  options.lenient_weights = lenient_weights;
  options.max_context = options.max_sequences = options.max_step_tokens = options.threads = 1;
  options.audit_mode = AuditMode::kNone;
  const engine::LoadedModel model(path, options, {engine::LoadRequest::Reading::kCheck});
}

ModelPlan Engine::describe(const std::string& path, const EngineOptions& options) {
  const engine::LoadedModel model(path, options, {engine::LoadRequest::Reading::kDescribe});
  return {model.summary, model.executor->plan(), model.options, model.tensor_use};
}

const ModelSummary& Engine::summary() const { return impl_->model.summary; }
const std::vector<PlanEntry>& Engine::plan() const { return impl_->model.executor->plan(); }
const EngineOptions& Engine::options() const { return impl_->model.options; }
std::shared_ptr<engine::EngineThreads> Engine::threads() const { return impl_->model.threads; }
ExpertCacheStats Engine::expert_cache() const { return impl_->model.executor->expert_cache(); }

SequenceId Engine::create_sequence(int adapter) {
  const engine::Occupied occupied(impl_->occupant);
  engine::require_adapter(adapter, impl_->model.num_adapters());
  const SequenceId sequence = impl_->model.pool.create(impl_->model.loaded_adapter(adapter));
  engine::tell_sink(audit_sink(), AuditEvent{AuditEvent::Kind::kCreated, sequence, 0, 0, 0});
  return sequence;
}

SequenceId Engine::fork(SequenceId sequence) {
  const engine::Occupied occupied(impl_->occupant);
  const SequenceId copy = impl_->model.pool.fork(sequence);
  engine::tell_sink(audit_sink(),
                    AuditEvent{AuditEvent::Kind::kForked, copy, sequence, length(copy), 0});
  return copy;
}

void Engine::truncate(SequenceId sequence, int64_t length) {
  const engine::Occupied occupied(impl_->occupant);
  const int64_t before = impl_->model.pool.get(sequence).length;
  impl_->runner.truncate(sequence, length);
  if (length == before) return;
  engine::tell_sink(audit_sink(),
                    AuditEvent{AuditEvent::Kind::kTruncated, sequence, 0, length, before});
}

void Engine::release(SequenceId sequence) {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kWaits);
  const int64_t last_length = length(sequence);
  impl_->model.pool.release(sequence);
  engine::tell_sink(audit_sink(),
                    AuditEvent{AuditEvent::Kind::kReleased, sequence, 0, last_length, 0});
}

int64_t Engine::length(SequenceId sequence) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->model.pool.get(sequence).length;
}

std::span<const int32_t> Engine::tokens(SequenceId sequence) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->model.pool.get(sequence).history;
}

std::pair<int64_t, int64_t> Engine::kv_blocks() const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  const kv::BlockPool& pool = impl_->model.pool;
  return {pool.num_free() + pool.num_free_window(), pool.num_blocks() + pool.num_window_blocks()};
}

StepFit Engine::fits(std::span<const StepInput> inputs) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return engine::measure_step(inputs, impl_->model.pool, impl_->model.options);
}

StepperTraits Engine::traits() const {
  const engine::LoadedModel& model = impl_->model;
  StepperTraits traits;
  traits.runs_trees = model.executor->runs_trees();
  traits.samples_on_device = model.samples_on_device();
  traits.records = !model.options.hidden_states_only;
  traits.keeps_states = model.pool.has_states();
  return traits;
}

ThreadLender* Engine::thread_lender() {
  return impl_->lender.has_threads() ? &impl_->lender : nullptr;
}

std::span<const StepOutput> Engine::step(std::span<const StepInput> inputs) {
  const engine::Occupied occupied(impl_->occupant);
  Impl& impl = *impl_;
  return impl.lone_failures.step(
      inputs, [&impl](std::span<const StepInput> those) { return impl.runner.step(those); },
      [&impl] { return impl.runner.blamed(); },
      [&impl](SequenceId sequence) { return impl.model.pool.get(sequence).length; });
}

std::span<const StepFailure> Engine::failures() const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->lone_failures.failures();
}

std::span<const float> Engine::features(SequenceId sequence) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->runner.features(sequence);
}

std::span<const StepOutput> Engine::step_layers(std::span<const StepInput> inputs,
                                                LayerRange layers,
                                                std::span<const float> residual) {
  const engine::Occupied occupied(impl_->occupant);
  return impl_->partial_steps.step(inputs, layers, residual);
}

std::span<const float> Engine::residual_rows() const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->partial_steps.residual_rows();
}

void Engine::replace_matrix(const std::string& module, const Checkpoint& from) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->runner.replace_matrix(module, from);
}

void Engine::replace_matrix(const std::string& module, std::span<const float> values) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->runner.replace_matrix(module, values);
}

void Engine::restore_matrix(const std::string& module) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->runner.restore_matrix(module);
}

void Engine::forget_layer(int layer) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->runner.forget_layer(layer);
}

void Engine::set_tap_reader(TapReader* reader) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->model.features.host = reader;
}

TapSums Engine::tap_sums(size_t tap, int expert) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  const std::optional<ops::TapBook>& taps = impl_->model.taps;
  return taps ? taps->sums(tap, expert) : ops::TapBook({}, {}).sums(tap, expert);
}

void Engine::clear_tap_sums() {
  const engine::Occupied occupied(impl_->occupant);
  if (impl_->model.taps) impl_->model.taps->clear();
}

void Engine::set_audit_sink(AuditSink* sink) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->runner.recorder().set_sink(sink);
}

AuditSink* Engine::audit_sink() const { return impl_->sink(); }
const AuditLayout& Engine::audit_layout() const { return impl_->model.layout; }

void Engine::set_audit_mode(AuditMode mode) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->runner.set_audit_mode(mode);
}

uint64_t Engine::readback_count() const { return impl_->model.executor->readback().count(); }

std::optional<double> Engine::measure_read_bandwidth(double seconds) {
  const engine::Occupied occupied(impl_->occupant);
  return impl_->model.executor->measure_read_bandwidth(seconds);
}

}  // namespace vitrine
