// SPDX-License-Identifier: Apache-2.0
#include "generate_recording.h"

namespace cli {

namespace {

constexpr size_t kRingBytes = size_t{4} << 20;

vitrine::LogHeader header_of(const GenerateArguments& arguments, const GenerateRequest& request,
                             const vitrine::ModelSummary& model) {
  vitrine::LogHeader header =
      log_header(request.model, arguments.sampling, arguments.device, model, request.checkpoint);
  header.constraint = arguments.constraint.description(arguments.log.hides_text());
  arguments.lengths.add_to(header);
  header.speculation = arguments.speculation.description();
  if (request.spec) add_members(*request.spec, header);
  return header;
}

}  // namespace

vitrine::AuditSink* Recording::open(const GenerateArguments& arguments,
                                    const GenerateRequest& request,
                                    const vitrine::ModelSummary& model) {
  if (!arguments.log.stream.empty()) {
    target_ = std::make_unique<StreamTarget>(arguments.log.stream);
  }
  // Large files may be read for their hashes.
  std::optional<vitrine::LogHeader> header;
  if (target_ || !arguments.log.path.empty()) header = header_of(arguments, request, model);
  catch_interrupts();  // from here on there is something to finish
  vitrine::AuditSink* sink = nullptr;
  if (!arguments.log.path.empty()) {
    log_ = arguments.log.open(*header, request.prompt_tokens(), [&request](int32_t id) {
      return token_piece(request.tokenizer, id);
    });
    if (arguments.summary) {
      log_->on_record([this](const vitrine::TokenRecord& record) { summary_.add(record); });
    }
    sink = &log_->sink();
  } else if (request.engine.audit_mode != vitrine::AuditMode::kNone) {
    // The summary needs the records of the whole run, any other run only the last ones.
    ring_ = std::make_unique<vitrine::SlabRing>(arguments.summary ? 16 * kRingBytes : kRingBytes,
                                                vitrine::SlabRing::WhenFull::kOverwrite);
    sink = ring_.get();
  }
  if (target_) {
    stream_ = open_stream(*target_, *header, arguments.log);
    sink = &both_.emplace(*sink, stream_->sink());
  }
  return sink;
}

void Recording::finish(const std::string& reason) {
  if (log_) log_->finish(reason);
  if (stream_) stream_->finish(reason);
}

const Summary& Recording::summary() {
  if (ring_) {
    summary_.set_overwritten(ring_->overwritten());
    for (const vitrine::TokenRecord& record : ring_->drain_records()) summary_.add(record);
  }
  return summary_;
}

}  // namespace cli
