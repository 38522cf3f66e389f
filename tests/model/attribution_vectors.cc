// SPDX-License-Identifier: Apache-2.0
// attribution_vectors MODEL PROMPT_IDS TOKENS: generates with attribution and writes, for each
// token, what its terms and its logit were computed from, as float32 in binary to standard output:
//
//   int32 hidden, vectors, terms
//   for each token: int32 chosen, runner_up; float logit, rounding (of the chosen, then of the
//   runner-up); terms[2][terms]; the final stream[hidden]; the head's input[hidden]; the kept
//   vectors[vectors][hidden]; their weights[vectors]
//
// The op `attribution` is wrapped where it is registered, so that nothing else of the run differs.
#include <cstdio>
#include <sstream>

#include "ops/attribution.h"
#include "ops/op.h"
#include "vitrine/engine.h"

namespace vitrine {
namespace {

struct Tapped {
  int32_t hidden = 0, vectors = 0;
  std::vector<float> stream, head_input, kept, weights;
};
Tapped tapped;

/// Does what the op does, and keeps what it read. Of steps with one row.
class Tap final : public ops::PlannedOp {
 public:
  Tap(ops::PlanContext& context, const ops::OpNode& node, std::unique_ptr<ops::PlannedOp> inner)
      : inner_(std::move(inner)), stream_(context.scratch.value(node.inputs[0])) {
    for (const ops::GraphHead& head : context.graph.heads) {
      head_input_ = &context.scratch.value(head.input);
    }
    tapped.hidden = static_cast<int32_t>(stream_.width);
    tapped.vectors = ops::attribution_vectors(context.graph);
    const int64_t count = context.shape.max_rows * tapped.vectors;
    kept_ = context.scratch.shared_array<float>("attribution", count * stream_.width);
    weights_ = context.scratch.shared_array<float>("attribution_weights", count);
    for (ops::Phase phase : inner_->phases()) {
      phase.run = [this, run = phase.run](const ops::StepState& step, int64_t piece) {
        run(step, piece);
        keep(step, piece);
      };
      add_phase(std::move(phase));
    }
  }
  void use_loaded_weights() override { inner_->use_loaded_weights(); }
  void keep(const ops::StepState& step, int64_t piece) const {
    const float* stream = stream_.row(step.row_tokens[piece]);
    const float* head_input = head_input_->row(piece);
    tapped.stream.assign(stream, stream + stream_.width);
    tapped.head_input.assign(head_input, head_input + stream_.width);
    tapped.kept.assign(kept_, kept_ + tapped.vectors * stream_.width);
    tapped.weights.assign(weights_, weights_ + tapped.vectors);
  }
  std::string kernel_name() const override { return inner_->kernel_name(); }
  uint64_t weight_bytes() const override { return inner_->weight_bytes(); }

 private:
  std::unique_ptr<ops::PlannedOp> inner_;
  ops::RowBuffer& stream_;
  ops::RowBuffer* head_input_ = nullptr;
  const float *kept_ = nullptr, *weights_ = nullptr;
};

const ops::OpDefinition& original() {
  static const ops::OpDefinition definition = ops::find_op("attribution");
  return definition;
}

void wrap_attribution() {
  original();
  const_cast<ops::OpDefinition&>(ops::find_op("attribution")).plan =
      [](ops::PlanContext& context, const ops::OpNode& node) -> std::unique_ptr<ops::PlannedOp> {
    return std::make_unique<Tap>(context, node, original().plan(context, node));
  };
}

template <typename T>
void put(const std::vector<T>& values) {
  std::fwrite(values.data(), sizeof(T), values.size(), stdout);
}

void write_token(const AttributionRecord& from, int32_t chosen) {
  put(std::vector<int32_t>{chosen, from.runner_up});
  put(std::vector<float>{from.logit, from.rounding, from.runner_up_logit, from.runner_up_rounding});
  std::vector<float> terms;
  for (const TermRecord& term : from.terms) terms.push_back(term.value);
  for (const TermRecord& term : from.terms) terms.push_back(term.runner_up);
  put(terms);
  put(tapped.stream);
  put(tapped.head_input);
  put(tapped.kept);
  put(tapped.weights);
}

void run(const std::string& model, std::vector<int32_t> ids, int tokens) {
  wrap_attribution();
  EngineOptions options;
  options.kernels = KernelPath::kFused;
  options.threads = 1;
  options.attribution = true;
  options.max_context = static_cast<int>(ids.size()) + tokens;
  const auto engine = Engine::load(model, options);
  SlabRing ring(1 << 20, SlabRing::WhenFull::kOverwrite);
  engine->set_audit_sink(&ring);
  SamplerPipeline sampler = SamplerPipeline::from_options({.temperature = 1.0F, .seed = 7});
  const SequenceId sequence = engine->create_sequence();
  for (int i = 0; i < tokens; ++i) {
    StepInput input;
    input.sequence = sequence;
    input.tokens = ids;
    input.sampler = &sampler;
    engine->step({&input, 1});
    const TokenRecord record = ring.drain_records().back();
    const AttributionRecord& attribution = record.prediction.attribution;
    if (i == 0) {
      put(std::vector<int32_t>{tapped.hidden, tapped.vectors,
                               static_cast<int32_t>(attribution.terms.size())});
    }
    write_token(attribution, record.prediction.token);
    ids = {record.prediction.token};
  }
}

}  // namespace
}  // namespace vitrine

int main(int argc, char** argv) try {
  if (argc != 4) return std::fputs("usage: attribution_vectors MODEL IDS TOKENS\n", stderr), 2;
  std::vector<int32_t> ids;
  std::istringstream text(argv[2]);
  for (int32_t id = 0; text >> id;) ids.push_back(id);
  vitrine::run(argv[1], ids, std::stoi(argv[3]));
  return 0;
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "attribution_vectors: %s\n", error.what()), 1;
}
