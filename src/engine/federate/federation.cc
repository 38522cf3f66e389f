// SPDX-License-Identifier: Apache-2.0
#include "vitrine/federation_engine.h"

#include <algorithm>
#include <limits>
#include <set>

#include "checkpoint/model_config.h"
#include "core/json_text.h"
#include "engine/device_backend.h"
#include "engine/engine_options.h"
#include "engine/federate/federation_impl.h"
#include "engine/run/audit_layout.h"
#include "engine/run/kv_budget.h"
#include "engine/run/kv_choice.h"
#include "engine/run/worker_pool.h"
#include "federation/spec_limits.h"
#include "model/architecture.h"

namespace vitrine {

namespace {

// What Engine::load accepts; a federation's engines work on all sources at once.
constexpr int kMaxStepTokens = 16384, kMaxRows = 16384, kMaxSequences = 4096;

void refuse_options(const EngineOptions& options) {
  if (!options.adapters.empty() || !options.lora.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "a federation takes adapters from its file; expected engine options 'adapters' and "
                "'lora' to be empty");
  }
  if (options.shared_threads != nullptr) {
    throw Error(ErrorKind::kUnsupported,
                "a federation's engines share threads of their own; expected engine option "
                "'shared_threads' to be null");
  }
  if (!options.taps.empty() || !options.feature_layers.empty()) {
    throw Error(ErrorKind::kUnsupported,
                "a federation's models are not tapped; expected engine options 'taps' and "
                "'feature_layers' to be empty");
  }
  if (options.attribution && !engine::runs_fused(options)) {
    throw Error(ErrorKind::kUnsupported,
                "attribution of a federation needs the fused kernels: the joint is made in the "
                "middle of a pass; use --kernels fused on the CPU or CUDA");
  }
}

// What a file's reader has seen to, of a spec that a host made.
void check_spec(const FederationSpec& spec) {
  const auto require = [&](bool is_so, const std::string& what) {
    if (!is_so) throw Error(ErrorKind::kInvalidArgument, "a federation's spec: " + what);
  };
  const size_t count = spec.specialists.size();
  require(count >= federation::kMinSpecialists && count <= federation::kMaxSpecialists,
          std::to_string(count) + " specialists; expected " +
              std::to_string(federation::kMinSpecialists) + " to " +
              std::to_string(federation::kMaxSpecialists));
  std::set<std::string> names;
  for (const SpecialistSpec& specialist : spec.specialists) {
    require(
        names.insert(specialist.name).second,
        "two specialists named " + quote_text(specialist.name) + "; expected names that differ");
  }
}

// The text that says how each model's ids are to be read; the models must agree.
void check_models(const FederationSpec& spec, EngineOptions& options) {
  std::string tokenizer, first;
  int64_t vocabulary = 0;
  int fewest = std::numeric_limits<int>::max();  // positions
  for (const SpecialistSpec& specialist : spec.specialists) {
    if (specialist.model == first) continue;
    const Checkpoint checkpoint = Checkpoint::open(specialist.model);
    const ModelConfig config = parse_model_config(checkpoint);
    if (first.empty()) {
      first = specialist.model;
      tokenizer = checkpoint.tokenizer_json();
      vocabulary = config.vocab_size;
    }
    const std::string place = spec.path + ": specialist '" + specialist.name + "'";
    if (config.vocab_size != vocabulary) {
      throw Error(ErrorKind::kBadFile, place + " has a vocabulary of " +
                                           std::to_string(config.vocab_size) + " and '" +
                                           spec.specialists[0].name + "' one of " +
                                           std::to_string(vocabulary) + "; expected the same");
    }
    if (checkpoint.tokenizer_json() != tokenizer) {
      throw Error(ErrorKind::kBadFile,
                  place + " has another tokenizer (" + checkpoint.tokenizer_name() + ") than '" +
                      spec.specialists[0].name +
                      "'; expected the same tokenizer.json, since ids must mean the same");
    }
    const auto limit = static_cast<int>(config.max_position_embeddings);
    if (options.max_context < 0 || options.max_context > limit) {
      throw Error(ErrorKind::kInvalidArgument, "engine option 'max_context' is " +
                                                   std::to_string(options.max_context) +
                                                   "; expected 1 to " + std::to_string(limit) +
                                                   ", the limit of " + specialist.model);
    }
    fewest = std::min(fewest, limit);
  }
  if (options.max_context == 0) options.max_context = fewest;
}

}  // namespace

Federation::Impl::Impl(const FederationSpec& given, const EngineOptions& asked,
                       std::unique_ptr<Combiner> own)
    : kernel(ops::select_cpu_kernels()), spec(given), combiner(std::move(own)), options(asked) {
  refuse_options(options);
  check_spec(spec);
  spec.check_members();
  check_models(spec, options);
  const size_t count = spec.specialists.size();
  const bool has_own_combiner = combiner != nullptr;
  if (!has_own_combiner) combiner = make_combiner(spec.combiner, count);
  if (options.max_logit_rows == 0) options.max_logit_rows = options.max_sequences;
  load_engines(has_own_combiner);
  const AuditLayout::Federation names{specialist_names(), std::string(combiner->name()),
                                      combiner->shares(), -1};
  std::vector<const AuditLayout*> layouts;
  for (const FederationSource& source : sources) {
    layouts.push_back(&engines[source.engine]->audit_layout());
  }
  check_hidden_states(layouts);
  layout = engine::make_federation_layout(layouts, names);
  describe();
  const auto rows = static_cast<size_t>(options.max_logit_rows);
  reserve_rows(rows);
  workers = runner(0).model().executor->workers();
  lender.emplace(occupant, workers);
  shares.resize(rows * count);
  accounts.resize(rows);
  next_output.resize(engines.size());
  part_rows.resize(rows * count);
  choices.resize(engines.size());
  for (size_t i = 0; i < engines.size(); ++i) {
    choices[i].reserve(static_cast<size_t>(engines[i]->options().max_logit_rows));
  }
  outputs.reserve(rows);
  watch.reserve(static_cast<size_t>(options.max_sequences));
  if (device_joint) {
    if (engines.size() > 1) {
      joint_model = engine::make_device_joint(engines[0]->options().device, *device_joint,
                                              summary.vocab_size);
      summary.arena_bytes += joint_model->num_bytes();
    }
    joint_sources.resize(static_cast<size_t>(device_joint->row_width()));
    for (engine::DeviceJointStep* step : {&joint_step, &next_joint}) {
      step->rows.reserve(rows * static_cast<size_t>(device_joint->row_width()));
      step->targets.reserve(rows);
      step->steps.reserve(rows);
    }
    joint_step.choosers.reserve(static_cast<size_t>(options.max_sequences) * sources.size());
    sampler_steps.resize(rows);
    next_sampler_steps.resize(rows);
  }
  row_sampler.emplace(static_cast<size_t>(summary.vocab_size), rows);
  this->rows.reserve(static_cast<size_t>(options.max_step_tokens), rows,
                     static_cast<size_t>(options.max_step_tokens));
  hidden.resize(rows);
  summary.arena_bytes += (joint.size() + exponentials.size()) * sizeof(float);
}

void Federation::Impl::load_engines(bool has_own_combiner) {
  const bool has_base = !spec.base.empty();
  EngineOptions own = options;
  own.kv_bytes = engine::own_kv_bytes(options);
  own.draft_kv_bytes.reset();
  own.keep_logits = true;
  own.keep_hidden_state = combiner->needs_hidden_state();
  engine::LoadRequest request;
  request.record_rows = options.attribution;  // of rows the joint's are recorded, and terms
  own.sample_on_device = false;               // the joint is sampled, not a specialist's row
  for (const SpecialistSpec& specialist : spec.specialists) {
    FederationSource source{has_base ? 0 : sources.size(), -1};
    if (!specialist.adapter.empty()) {
      source.adapter = static_cast<int>(own.adapters.size());
      own.adapters.push_back(specialist.adapter);
    }
    if (has_base && source.adapter < 0) base = sources.size();
    sources.push_back(source);
  }
  if (!has_base) base = 0;
  if (has_base && base == kNone && combiner->needs_hidden_state()) {
    base = sources.size();
    sources.push_back({0, -1});
  }
  const auto width = static_cast<int>(has_base ? sources.size() : 1);
  options.max_step_tokens = std::min(options.max_step_tokens, kMaxStepTokens / width);
  options.max_logit_rows = std::min(options.max_logit_rows, kMaxRows / width);
  options.max_sequences = std::min(options.max_sequences, kMaxSequences / width);
  own.max_step_tokens = options.max_step_tokens * width;
  own.max_logit_rows = options.max_logit_rows * width;
  own.max_sequences = options.max_sequences * width;
  own.max_states = options.max_states > (1 << 20) / width ? 1 << 20 : options.max_states * width;
  own.max_context = options.max_context;
  plan_device_joint(has_own_combiner);
  if (!device_joint) options.keep_logits = true;  // the joint's rows are on the host anyway
  if (has_base) {
    request.joint = device_joint ? &*device_joint : nullptr;
    engines.push_back(engine::EngineAccess::load(spec.base, own, request));
  } else {
    std::vector<ops::Graph> graphs;
    std::vector<int64_t> depths;
    std::string kv_codec = "i16";  // one for all, which a log names
    for (const SpecialistSpec& specialist : spec.specialists) {
      const Checkpoint checkpoint = Checkpoint::open(specialist.model);
      graphs.push_back(model::build_graph(checkpoint, parse_model_config(checkpoint)));
      depths.push_back(graphs.back().num_layers);
      if (own.kv_codecs.empty() && kv_codec == "i16") {
        kv_codec = engine::default_kv_codec(own.device, checkpoint);
      }
    }
    if (own.kv_codecs.empty()) own.kv_codecs = {kv_codec};
    const std::vector<uint64_t> budgets = engine::split_kv_bytes(own, graphs);
    const int64_t deepest = *std::ranges::max_element(depths);
    for (size_t i = 0; i < spec.specialists.size(); ++i) {
      EngineOptions its = own;
      if (!engines.empty()) its.shared_threads = engines[0]->threads();
      its.kv_bytes = budgets[i];
      std::erase_if(its.hidden_state_layers, [&](int layer) {  // a deeper specialist has it
        return layer > depths[i] && layer <= deepest;
      });
      engines.push_back(engine::EngineAccess::load(spec.specialists[i].model, its, request));
    }
  }
  taps.resize(engines.size());
  inputs.resize(engines.size());
  engine_outputs.resize(engines.size());
  options.threads = engines[0]->options().threads;
  options.kernels = engines[0]->options().kernels;
  options.kv_codecs = engines[0]->options().kv_codecs;
  if (options.kv_bytes > 0) options.draft_kv_bytes = options.draft_kv_bytes.value_or(0);
  options.kv_bytes = options.draft_kv_bytes.value_or(0);
  for (const auto& each : engines) {
    options.kv_bytes += each->options().kv_bytes;
    options.max_context = std::min(options.max_context, each->options().max_context);
  }
  if (combiner->needs_hidden_state() && spec.combiner.kind == CombinerSpec::Kind::kGate &&
      spec.combiner.hidden_size != engines[sources[base].engine]->summary().hidden_size) {
    throw Error(ErrorKind::kBadFile,
                spec.path + ": the gate reads a hidden state of " +
                    std::to_string(spec.combiner.hidden_size) + " numbers and the base has " +
                    std::to_string(engines[sources[base].engine]->summary().hidden_size) +
                    "; expected a gate that was fitted for this base");
  }
}

void Federation::Impl::check_hidden_states(std::span<const AuditLayout* const> layouts) const {
  for (const AuditLayout* of : layouts) {
    if (of->hidden_states.empty() || of->hidden_size == layouts[0]->hidden_size) continue;
    throw Error(ErrorKind::kInvalidArgument,
                spec.path + ": hidden states of " + std::to_string(layouts[0]->hidden_size) +
                    " and of " + std::to_string(of->hidden_size) +
                    " numbers do not stand in one log; expected specialists of one size");
  }
}

void Federation::Impl::describe() {
  summary = engines[0]->summary();
  summary.path = spec.path;
  summary.num_layers = static_cast<int>(layout.layers.size());
  for (size_t i = 1; i < engines.size(); ++i) {
    const ModelSummary& other = engines[i]->summary();
    summary.weight_bytes += other.weight_bytes;
    summary.mapped_bytes += other.mapped_bytes;
    summary.kv_bytes += other.kv_bytes;
    summary.arena_bytes += other.arena_bytes;
    summary.table_bytes += other.table_bytes;
    summary.bytes_per_token += other.bytes_per_token;
    summary.num_parameters += other.num_parameters;
    summary.invariant = summary.invariant && other.invariant;
    if (other.architecture != summary.architecture) summary.architecture = "federation";
  }
}

// ---- The public face ----------------------------------------------------------------------------

Federation::Federation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Federation::~Federation() = default;

std::unique_ptr<Federation> Federation::load(const FederationSpec& spec,
                                             const EngineOptions& options,
                                             std::unique_ptr<Combiner> combiner) {
  return std::unique_ptr<Federation>(
      new Federation(std::make_unique<Impl>(spec, options, std::move(combiner))));
}

const ModelSummary& Federation::summary() const { return impl_->summary; }
const EngineOptions& Federation::options() const { return impl_->options; }
const FederationSpec& Federation::spec() const { return impl_->spec; }
const Combiner& Federation::combiner() const { return *impl_->combiner; }
std::vector<const Engine*> Federation::engines() const {
  std::vector<const Engine*> engines;
  for (const auto& engine : impl_->engines) engines.push_back(engine.get());
  return engines;
}

void Federation::Impl::release_all(const Member& member) {
  for (size_t source = 0; source < member.sequences.size(); ++source) {
    engine_of(source).release(member.sequences[source]);
  }
}

SequenceId Federation::create_sequence(int adapter) {
  if (adapter >= 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "adapter " + std::to_string(adapter) +
                    " of a federation's sequence, which goes through all specialists; expected -1");
  }
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  Impl::Member member;
  member.history.reserve(static_cast<size_t>(impl.options.max_context));
  try {
    for (const FederationSource& source : impl.sources) {
      member.sequences.push_back(impl.engines[source.engine]->create_sequence(source.adapter));
    }
  } catch (...) {  // one engine has as many as may live
    impl.release_all(member);
    throw;
  }
  const SequenceId sequence = impl.next_sequence++;
  impl.sequences.emplace(sequence, std::move(member));
  engine::tell_sink(impl.sink, AuditEvent{AuditEvent::Kind::kCreated, sequence, 0, 0, 0});
  return sequence;
}

SequenceId Federation::fork(SequenceId sequence) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  const Impl::Member& from = impl.find(sequence);
  Impl::Member member;
  member.history.reserve(static_cast<size_t>(impl.options.max_context));
  member.history.assign(from.history.begin(), from.history.end());
  member.length = member.step_begin = from.length;
  member.sequences.reserve(impl.sources.size());
  try {
    for (size_t source = 0; source < impl.sources.size(); ++source) {
      member.sequences.push_back(impl.engine_of(source).fork(from.sequences[source]));
    }
  } catch (...) {  // a specialist has no block left
    impl.release_all(member);
    throw;
  }
  const SequenceId copy = impl.next_sequence++;
  const int64_t length = member.length;
  impl.sequences.emplace(copy, std::move(member));
  engine::tell_sink(impl.sink, AuditEvent{AuditEvent::Kind::kForked, copy, sequence, length, 0});
  return copy;
}

void Federation::truncate(SequenceId sequence, int64_t length) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  Impl::Member& member = impl.find(sequence);
  const int64_t before = member.length;
  for (size_t source = 0; source < impl.sources.size(); ++source) {
    impl.engine_of(source).truncate(member.sequences[source], length);
  }
  member.length = length;
  member.step_begin = std::min(member.step_begin, length);
  member.history.resize(static_cast<size_t>(length));
  if (length != before) {
    engine::tell_sink(impl.sink,
                      AuditEvent{AuditEvent::Kind::kTruncated, sequence, 0, length, before});
  }
}

void Federation::release(SequenceId sequence) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant, engine::Occupied::kWaits);
  Impl::Member& member = impl.find(sequence);
  const int64_t length = member.length;
  impl.release_all(member);
  impl.sequences.erase(sequence);
  engine::tell_sink(impl.sink, AuditEvent{AuditEvent::Kind::kReleased, sequence, 0, length, 0});
}

int64_t Federation::length(SequenceId sequence) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->find(sequence).length;
}
std::span<const int32_t> Federation::tokens(SequenceId sequence) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  const Impl::Member& member = impl_->find(sequence);
  return std::span(member.history).first(static_cast<size_t>(member.length));
}

std::span<const StepOutput> Federation::step(std::span<const StepInput> inputs) {
  const engine::Occupied occupied(impl_->occupant);
  Impl& impl = *impl_;
  return impl.lone_failures.step(
      inputs,
      [&impl](std::span<const StepInput> those) -> std::span<const StepOutput> {
        impl.step_inputs = those;
        impl.prepare();
        impl.run();
        return impl.outputs;
      },
      [&impl] { return impl.blamed; },
      [&impl](SequenceId sequence) { return impl.find(sequence).length; });
}

std::span<const StepFailure> Federation::failures() const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->lone_failures.failures();
}

std::span<const SpecialistShare> Federation::shares(size_t output) const {
  const size_t count = impl_->spec.specialists.size();
  const size_t outputs = impl_->lone_failures.count(impl_->outputs.size());
  if (output >= outputs) {
    throw Error(ErrorKind::kInvalidArgument,
                "shares of output " + std::to_string(output) + " of the last step, which has " +
                    std::to_string(outputs) + "; expected one of them");
  }
  const std::ptrdiff_t row = impl_->lone_failures.run_output(output);
  if (row < 0) return {};  // its input failed
  return std::span<const SpecialistShare>(impl_->shares)
      .subspan(static_cast<size_t>(row) * count, count);
}

AuditSink* Federation::audit_sink() const { return impl_->sink; }

void Federation::set_audit_sink(AuditSink* sink) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  // It may refuse, and nothing has changed then.
  if (sink != nullptr) {
    sink->open(impl.layout, engine::largest_record(impl.layout, impl.options));
  }
  impl.sink = sink;
  impl.clock.calibrate();
  for (size_t i = 0; i < impl.engines.size(); ++i) {
    impl.engines[i]->set_audit_sink(sink == nullptr ? nullptr : &impl.taps[i]);
  }
}

const AuditLayout& Federation::audit_layout() const { return impl_->layout; }

void Federation::set_audit_mode(AuditMode mode) {
  const engine::Occupied occupied(impl_->occupant);
  for (const auto& engine : impl_->engines) engine->set_audit_mode(mode);
  impl_->layout.mode = mode;
}

}  // namespace vitrine
