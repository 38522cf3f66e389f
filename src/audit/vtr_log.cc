// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <sodium.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "decode.h"
#include "head_sections.h"
#include "log_file.h"
#include "log_thread.h"
#include "manifest.h"
#include "page_writer.h"
#include "vitrine/audit_log.h"
#include "vitrine/version.h"

namespace vitrine {
namespace {

using Clock = std::chrono::steady_clock;
using WhenBehind = VtrOptions::WhenBehind;
using OnError = VtrOptions::OnError;

const std::string& check_path(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".vtr") return path;
  throw Error(ErrorKind::kUnsupported,
              "audit log '" + path + "': extension '" + extension + "', expected .vtr");
}

/// Some columns say more of a prediction, and are read with it. Others tell each token to whoever
/// runs the model on every token that might stand there, and are read with the tokens.
void check_groups(const std::vector<std::string>& groups) {
  if (groups.empty()) return;
  audit::find_groups(groups);
  const auto is_given = [&groups](const std::string& name) {
    return std::find(groups.begin(), groups.end(), name) != groups.end();
  };
  for (const char* name :
       {"routing", "norms", "digests", "router_probs", "hidden_states", "drafts"}) {
    if (!is_given(name) || is_given("tokens")) continue;
    throw Error(ErrorKind::kInvalidArgument,
                std::string("audit log: a recipient is to read '") + name +
                    "' without 'tokens', but whoever has the model finds each token by it; "
                    "expected both, or 'counters' for the use of experts over " +
                    std::to_string(audit::kCounterTokens) + " tokens and more");
  }
  if (is_given("prediction")) return;
  for (const char* name : {"attribution", "sampler", "constraint", "federation"}) {
    if (!is_given(name)) continue;
    throw Error(ErrorKind::kInvalidArgument,
                std::string("audit log: a recipient is to read '") + name +
                    "' without 'prediction', of whose token it tells; expected both");
  }
}

void check_options(const VtrOptions& options, bool has_token_text) {
  const auto refuse = [](const char* name, const std::string& found, const char* expected) {
    throw Error(ErrorKind::kInvalidArgument, std::string("audit log: option '") + name + "' is " +
                                                 found + "; expected " + expected);
  };
  if (options.page_tokens < 1 || options.page_tokens > static_cast<int>(audit::kMaxPageRows)) {
    refuse("page_tokens", std::to_string(options.page_tokens), "1 to 4096");
  }
  if (!(options.page_seconds > 0)) {
    refuse("page_seconds", std::to_string(options.page_seconds), "more than 0");
  }
  audit::check_trace_id(options.trace_id, "audit log");
  for (const VtrRecipient& recipient : options.recipients) check_groups(recipient.groups);
  for (const VtrRedaction& redaction : options.redact) audit::find_groups(redaction.groups);
  if (options.text && !has_token_text) refuse("text", "true without token_text", "both");
}

std::string_view text_of(const audit::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

struct VtrLog::Impl : audit::LogThread {
  Impl(const std::string& log_path, LogHeader log_header, VtrOptions log_options,
       std::function<std::string(int32_t)> log_token_text)
      : LogThread({.name = "audit log '" + check_path(log_path) + "'",
                   .ring_bytes = log_options.ring_bytes,
                   .ends_on_failure = log_options.on_error == OnError::kFail},
                  &spill),
        path(log_path),
        options(std::move(log_options)),
        key(options.seal ? *options.seal : SealKey::generate()),
        token_text(std::move(log_token_text)),
        file(path, options.overwrite),
        spill(file.folder()),
        sink(*this, ring_, spill, options.when_behind, has_ended_) {
    check_options(options, static_cast<bool>(token_text));
    if (!options.overwrite) refuse_manifest();
    header.log = std::move(log_header);
    header.detail = options.detail;
    header.is_key_ephemeral = !options.seal;
    header.has_text = options.text && options.detail != LogDetail::kCounters;
    header.engine_build = engine_build();
    header.trace_id = options.trace_id;
    const auto counts = [](const VtrRecipient& recipient) {
      return std::ranges::find(recipient.groups, "counters") != recipient.groups.end();
    };
    if (options.detail == LogDetail::kCounters || std::ranges::any_of(options.recipients, counts)) {
      header.counter_tokens = audit::kCounterTokens;
    }
    start();
  }

  void refuse_manifest() const {
    std::error_code error;
    if (!std::filesystem::exists(manifest_path(path), error)) return;
    throw Error(ErrorKind::kInvalidArgument,
                "audit log '" + path + "': a manifest of that name is there already, '" +
                    manifest_path(path) +
                    "'; choose another name, or ask for it to be overwritten");
  }

  void prepare(const AuditLayout& layout, size_t max_record_bytes) override {
    sink.prepare(max_record_bytes);
    if (options.when_behind == WhenBehind::kSpill) spill.prepare(max_record_bytes);
    header.mode = layout.mode;
    for (const AuditLayout::Layer& from : layout.layers) {
      AuditLayout::Layer layer;
      layer.layer = from.layer;
      layer.reads_embedding = from.reads_embedding;
      if (from.expert_ids >= 0) {
        layer.top_k = from.top_k;
        layer.router = from.router;
      }
      if (options.detail != LogDetail::kCounters && from.router_scores >= 0) {
        layer.router_scores = 0;
      }
      if (options.detail != LogDetail::kCounters && from.expert_norms >= 0) layer.expert_norms = 0;
      if (from.expert_ids >= 0 || from.router_probs >= 0) layer.num_experts = from.num_experts;
      if (options.detail == LogDetail::kFull && layer.num_experts > 0 && from.router_probs < 0) {
        throw Error(
            ErrorKind::kUnsupported,
            "audit log '" + path +
                "': level full needs the routers' distributions, which this engine does not "
                "record; load it with audit_level full");
      }
      header.layers.push_back(layer);
    }
    if (options.detail != LogDetail::kCounters) header.terms = layout.terms;
    if (options.detail != LogDetail::kCounters) header.federation = layout.federation;
    if (options.detail == LogDetail::kFull) take_hidden_states(layout);
  }

  void take_hidden_states(const AuditLayout& layout) {
    const size_t count = layout.hidden_states.size();
    const size_t bytes = count * sizeof(float) * static_cast<size_t>(layout.hidden_size);
    if (bytes > audit::kMaxRowBytes) {
      throw Error(ErrorKind::kUnsupported,
                  "audit log '" + path + "': hidden states of " + std::to_string(count) +
                      " layers are " + std::to_string(bytes) + " bytes a token, expected at most " +
                      std::to_string(audit::kMaxRowBytes) + "; record fewer layers");
    }
    for (const AuditLayout::HiddenState& state : layout.hidden_states) {
      header.hidden_state_layers.push_back(state.layer);
    }
    if (count > 0) header.hidden_size = layout.hidden_size;
  }

  // ---- The log's thread -----------------------------------------------------------------------

  void begin() override {
    guarded([this] {
      const bool can_fail = options.on_error == OnError::kDegrade;
      pages = std::make_unique<audit::PageWriter>(
          header, key,
          audit::PageWriterOptions{.page_tokens = options.page_tokens,
                                   .can_fail = can_fail,
                                   .token_text = token_text,
                                   .recipients = options.recipients,
                                   .redact = options.redact,
                                   .hidden_states_at = options.hidden_states_at});
      pages->begin(frame_bytes);
      std::string problem;
      if (!file.append(text_of(frame_bytes), problem)) throw Error(ErrorKind::kIo, problem);
      if (!file.sync(problem)) throw Error(ErrorKind::kIo, problem);
      num_bytes += frame_bytes.size();
    });
    if (failure()) file.discard();
    page_age = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(options.page_seconds, 1e6)));
  }

  /// Runs on the step's thread before its first record: what the run shows from here on is in a log
  /// of its name. A run that is refused before its first pass leaves the log that was there.
  void before_first() override {
    try {
      publish();
    } catch (const Error&) {
      if (options.on_error == OnError::kFail) throw;
    }
  }

  void publish() {
    const std::lock_guard lock(publish_mutex);
    if (is_published) return;
    file.publish();
    if (options.overwrite) audit::remove_manifest(path);
    is_published = true;
  }

  void take(std::span<const std::byte> record) override {
    if (pages->is_empty()) page_began = Clock::now();
    if (const auto event = audit::event_of(record)) return take_event(*event);
    has_pass = true;
    const size_t num_tokens = audit::decode_pass_into(ring_.layout(), record, pool);
    AuditPassHeader header;  // decoding has checked it
    std::memcpy(&header, record.data(), sizeof(header));
    pages->add_pass(header.step_ns);
    for (size_t i = 0; i < num_tokens; ++i) {
      if (callback) callback(pool[i]);
      add(pool[i]);
    }
  }

  void take_event(const audit::EventFrame& frame) {
    if (frame.lost_count > 0) {
      has_pass = true;  // one that was dropped
      pages->add_lost(frame.lost_sequence, frame.lost_first, frame.lost_count,
                      LostReason::kSinkSlow);
    } else {
      pages->add_event(frame.event);
    }
    if (pages->is_full()) close_page();
  }

  void add(const TokenRecord& record) {
    try {
      pages->add_record(record);
    } catch (const Error&) {
      if (options.on_error == OnError::kFail) throw;
      pages->add_lost(record.sequence, record.position, 1, LostReason::kBadRecord);
    }
    if (pages->is_full()) {
      close_page();
      page_began = Clock::now();
    }
  }

  void take_failure(ConstraintFailure failure) override {
    if (pages->is_empty()) page_began = Clock::now();
    pages->add_failure(std::move(failure));
    if (pages->has_many_failures()) close_page();
  }

  void take_drafts(DraftedPass drafts) override {
    if (pages->is_empty()) page_began = Clock::now();
    pages->add_drafts(std::move(drafts));
    if (pages->has_many_drafts()) close_page();
  }

  /// Returns false where the page could not be written.
  bool close_page() {
    publish();
    frame_bytes.clear();
    pages->encode_page(frame_bytes);
    std::string problem;
    if (file.append(text_of(frame_bytes), problem) && (!options.durable || file.sync(problem))) {
      num_bytes += frame_bytes.size();
      pages->page_written();
      return true;
    }
    if (options.on_error == OnError::kFail) throw Error(ErrorKind::kIo, problem);
    warn(problem);
    pages->page_failed();
    return false;
  }

  /// Closes pages until nothing is left, what a failed page left to say included.
  void close_pages() {
    while (!pages->is_empty() && close_page()) {
    }
  }

  void end(const std::string& reason) {
    close_pages();
    publish();
    frame_bytes.clear();
    pages->encode_end(reason, frame_bytes);
    std::string problem;
    if (pages->is_empty() && file.append(text_of(frame_bytes), problem) && file.sync(problem)) {
      num_bytes += frame_bytes.size();
      return;
    }
    if (options.on_error == OnError::kFail) throw Error(ErrorKind::kIo, problem);
    warn(problem);
  }

  void warn(const std::string& problem) {
    if (!has_warned) log_message(LogLevel::kWarning, problem + "; the log has gaps, and says so");
    has_warned = true;
  }

  void look_around() override {
    if (has_pass && !pages->is_empty() && Clock::now() - page_began >= page_age) close_page();
  }

  void close(const std::optional<std::string>& reason) override {
    for (const audit::EventFrame& frame : sink.pending()) take_event(frame);
    if (!reason && !has_pass) return;
    pages->end_records();
    close_pages();
    if (reason) end(*reason);
  }

  const std::string path;
  const VtrOptions options;
  const SealKey key;
  const std::function<std::string(int32_t)> token_text;
  VtrHeader header;
  audit::LogFile file;
  audit::SpillFile spill;
  std::unique_ptr<audit::PageWriter> pages;
  audit::Bytes frame_bytes;
  std::vector<TokenRecord> pool;
  std::function<void(const TokenRecord&)> callback;
  uint64_t num_bytes = 0;
  bool has_warned = false;
  bool has_pass = false;  // one came, or was lost
  std::mutex publish_mutex;
  bool is_published = false;  // the file has its name
  Clock::time_point page_began;
  Clock::duration page_age{};
  audit::LogThreadSink<Impl> sink;
};

VtrLog::VtrLog(const std::string& path, LogHeader header, VtrOptions options,
               std::function<std::string(int32_t)> token_text)
    : impl_(std::make_unique<Impl>(path, std::move(header), std::move(options),
                                   std::move(token_text))) {}

VtrLog::~VtrLog() {
  if (impl_->is_running()) impl_->stop(std::nullopt);
}

AuditSink& VtrLog::sink() { return impl_->sink; }

void VtrLog::on_record(std::function<void(const TokenRecord&)> callback) {
  impl_->callback = std::move(callback);
}

void VtrLog::finish(const std::string& stop_reason) {
  if (!impl_->is_running()) impl_->throw_ended();
  impl_->stop(stop_reason);
  if (impl_->failure()) std::rethrow_exception(impl_->failure());
  if (!impl_->was_opened()) {
    throw Error(ErrorKind::kInvalidArgument,
                "audit log '" + impl_->path +
                    "': no engine was ever connected to it; call set_audit_sink first");
  }
}

const VtrCounts& VtrLog::counts() const {
  static const VtrCounts kNone;
  return impl_->pages ? impl_->pages->counts() : kNone;
}

uint64_t VtrLog::bytes_written() const { return impl_->num_bytes; }

}  // namespace vitrine
