// SPDX-License-Identifier: Apache-2.0
#include "log_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "hidden_states.h"
#include "option_section.h"
#include "vitrine/audit_log.h"

namespace cli {

namespace {

constexpr int64_t kMaxGuessed = 3;  // tokens of a prompt that can be found by trying all

using vitrine::VtrRecipient;
using vitrine::VtrRedaction;

/// "auditor.pub" or "auditor.pub:routing,norms": the file, and the columns.
std::pair<std::string, std::vector<std::string>> split_recipient(const std::string& argument) {
  std::error_code error;
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(argument, error)) return {argument, {}};
  return {argument.substr(0, colon), CLI::detail::split(argument.substr(colon + 1), ',')};
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

VtrRecipient parse_recipient(const std::string& argument) {
  const auto [path, groups] = split_recipient(argument);
  return {vitrine::load_public_key(path), groups};
}

void Log::finish(const std::string& reason) {
  if (json) return json->finish(reason);
  sealed->finish(reason);
  if (key) vitrine::write_manifest(path, *key, vitrine::manifest_path(path));
}

void LogOptions::add_to(CLI::App& command) {
  const OptionSection section(command, "Audit log");
  command
      .add_option("--audit", path,
                  "where the recorder's log goes; the extension picks the format: .vtr (sealed) "
                  "or .json")
      ->check(not_empty());
  command
      .add_option("--audit-dir", folder,
                  "folder for a sealed log of its own name, made of the time and the trace id")
      ->check(not_empty())
      ->excludes("--audit");
  command.add_flag("--overwrite", overwrite,
                   "replace a log of that name, and its manifest; without, it is refused");
  command.add_flag("--audit-host", names_host, "keep this machine's name in the log's head");
  command
      .add_option(
          "--audit-stream", stream,
          "where the recorder's messages go as they come (Protocol Buffers): a file, a named "
          "pipe, or unix:PATH")
      ->check(not_empty());
  command.add_option("--audit-mode", mode, "none, naive or deferred")
      ->check(CLI::IsMember({"none", "naive", "deferred"}))
      ->capture_default_str();
  command
      .add_option("--audit-level", level,
                  "standard; full: the routers' whole distributions, unrounded; counters (.vtr): "
                  "only how often each expert was used")
      ->check(CLI::IsMember({"counters", "standard", "full"}))
      ->capture_default_str();
  command.add_option("--seal", seal,
                     "Ed25519 secret key that signs the .vtr log; made where there is none");
  command.add_option("--encrypt-for", encrypt_for,
                     "encrypt the .vtr log for this public key (KEYFILE.pub), or only some columns "
                     "of it: KEYFILE.pub:counters (the use of experts over 64 tokens and more); "
                     "may be given again");
  command
      .add_option("--redact", redact,
                  "never write these, with commas: prompt (its tokens and what tells them), or "
                  "whole columns "
                  "of the .vtr log: tokens, text, prediction, routing, norms, digests, "
                  "router_probs, attribution, sampler, constraint, failures, drafts, "
                  "hidden_states, federation, counters")
      ->delimiter(',');
  command
      .add_option("--hidden-states", hidden_states,
                  "layers whose residual stream the log keeps as it enters them, with commas, or "
                  "all; needs --audit-level full")
      ->check(not_empty());
  command
      .add_option("--hidden-positions", hidden_positions,
                  "where the .vtr log keeps them: all, generated (where a token was chosen) or "
                  "FIRST-LAST[,…]")
      ->capture_default_str();
  command.add_flag("--durable", durable, "sync each page of the .vtr log to the disk");
  command.add_flag("--audit-text", text, "keep the tokens' text in the .vtr log, too");
  command.add_option("--trace-id", trace_id,
                     "OpenTelemetry trace that the run belongs to (32 hexadecimal digits); stands "
                     "in the head of the .vtr log and of the stream");
  command
      .add_option("--audit-when-behind", when_behind,
                  "a .vtr log or a stream that falls behind: wait, drop (and count what is lost) "
                  "or, a log, "
                  "spill")
      ->check(CLI::IsMember({"wait", "drop", "spill"}))
      ->capture_default_str();
  command
      .add_option(
          "--audit-on-error", on_error,
          "a .vtr log or a stream that cannot be written: fail, or degrade (count what is lost)")
      ->check(CLI::IsMember({"fail", "degrade"}))
      ->capture_default_str();
}

bool LogOptions::is_sealed_log() const { return std::filesystem::path(path).extension() == ".vtr"; }

void LogOptions::check_hidden_states() const {
  parse_hidden_positions(hidden_positions);
  if (hidden_states.empty()) {
    if (hidden_positions == "all") return;
    refuse("--hidden-positions chooses among hidden states; expected --hidden-states too");
  }
  if (path.empty() || level != "full") {
    refuse(
        fmt::format("--hidden-states {}: they go to a log of level full; expected --audit FILE "
                    "and --audit-level full",
                    hidden_states));
  }
}

void LogOptions::check_stream() const {
  if (stream.empty()) return;
  // It is in the clear: what the log hides must not leave by another way.
  const std::pair<bool, const char*> unfit[] = {
      {mode == "none", "--audit-mode none"},
      {level == "counters", "--audit-level counters"},
      {when_behind == "spill", "--audit-when-behind spill"},
      {!encrypt_for.empty(), "--encrypt-for: a stream is not encrypted"},
      {!redact.empty(), "--redact: a stream leaves nothing out"}};
  for (const auto& [is_given, name] : unfit) {
    if (is_given) refuse(fmt::format("--audit-stream {}: does not go with {}", stream, name));
  }
}

bool tells_of_text(const std::vector<std::string>& columns) {
  constexpr std::array kColumns{"tokens", "text", "prediction", "constraint", "failures", "drafts"};
  return std::ranges::any_of(columns, [&](const std::string& name) {
    return std::ranges::find(kColumns, name) != kColumns.end();
  });
}

/// "20261127T063431.123Z-4bf92f35….vtr": what --audit-dir makes the path of. Without a trace id a
/// number of the process stands there.
void LogOptions::name_log() {
  if (folder.empty()) return;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    refuse(fmt::format("--audit-dir {}: is no folder; make it first", folder));
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  std::string time = vitrine::utc_text(static_cast<uint64_t>(nanoseconds));
  std::erase_if(time, [](char c) { return c == '-' || c == ':'; });
  const std::string id = trace_id.empty() ? std::to_string(::getpid()) : trace_id;
  path = (std::filesystem::path(folder) / fmt::format("{}-{}.vtr", time, id)).string();
  folder.clear();
}

std::string what_still_tells(const std::vector<std::string>& columns,
                             const std::vector<std::string>& there) {
  const auto is_in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  std::string left;
  if (!is_in(columns, "tokens") && !is_in(columns, "text")) return left;
  for (const char* name : {"tokens", "text", "prediction", "routing", "norms", "router_probs",
                           "attribution", "hidden_states", "federation"}) {
    if (is_in(columns, name) || !is_in(there, name)) continue;
    left += (left.empty() ? "" : ",") + std::string(name);
  }
  return left;
}

bool LogOptions::hides_text() const { return !encrypt_for.empty() || tells_of_text(redact); }

void LogOptions::check_places(std::vector<NamedPath> inputs) const {
  if (!seal.empty()) {
    inputs.insert(inputs.end(), {{"--seal", seal}, {"the public half of --seal", seal + ".pub"}});
  }
  for (const std::string& argument : encrypt_for) {
    inputs.emplace_back("--encrypt-for", split_recipient(argument).first);
  }
  refuse_same_file({"--audit-stream", stream}, inputs);
  inputs.emplace_back("--audit-stream", stream);
  refuse_same_file({"--audit", path}, inputs);
  if (seal.empty() || path.empty()) return;
  refuse_same_file({"the manifest", vitrine::manifest_path(path)}, inputs);
}

void LogOptions::check(const std::vector<NamedPath>& inputs) {
  if (!trace_id.empty() && !vitrine::is_trace_id(trace_id)) {
    refuse(
        fmt::format("--trace-id {}: expected 32 hexadecimal digits in lower case, not all 0 "
                    "(W3C Trace Context)",
                    trace_id));
  }
  name_log();
  check_places(inputs);
  check_stream();
  const bool has_stream = !stream.empty();
  const std::pair<bool, const char*> only_vtr[] = {
      {!seal.empty(), "--seal"},
      {!encrypt_for.empty(), "--encrypt-for"},
      {!redact.empty(), "--redact"},
      {durable, "--durable"},
      {text, "--audit-text"},
      {!has_stream && !trace_id.empty(), "--trace-id"},
      {level == "counters", "--audit-level counters"},
      {!has_stream && on_error != "fail", "--audit-on-error"},
      {!has_stream && when_behind != "wait", "--audit-when-behind"},
      {hidden_positions != "all", "--hidden-positions"}};
  check_hidden_states();
  for (const auto& [is_given, name] : only_vtr) {
    if (is_given && !is_sealed_log()) {
      refuse(fmt::format("{} is for a .vtr log; expected --audit FILE.vtr", name));
    }
  }
  if (path.empty()) return;
  std::error_code error;
  if (!overwrite && std::filesystem::exists(path, error)) {
    refuse(
        fmt::format("--audit {}: is there already, and evidence is not overwritten; expected "
                    "another name, --audit-dir FOLDER, or --overwrite",
                    path));
  }
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension != ".json" && extension != ".vtr") {
    refuse(fmt::format("--audit {}: the extension '{}' names no log format; expected .vtr or .json",
                       path, extension));
  }
  if (mode == "none") {
    refuse(
        fmt::format("--audit {}: the recorder is off (--audit-mode none); expected naive or "
                    "deferred",
                    path));
  }
}

vitrine::AuditMode LogOptions::audit_mode() const {
  if (mode == "none") return vitrine::AuditMode::kNone;
  return mode == "naive" ? vitrine::AuditMode::kNaive : vitrine::AuditMode::kDeferred;
}

vitrine::AuditLevel LogOptions::audit_level() const {
  return level == "full" ? vitrine::AuditLevel::kFull : vitrine::AuditLevel::kStandard;
}

/// Names the columns of the log that tell text, but for those that hang on the model's options.
std::vector<std::string> LogOptions::told_columns() const {
  std::vector<std::string> names;
  if (level == "counters") return names;
  names = {"tokens", "prediction", "routing", "norms"};
  if (text) names.emplace_back("text");
  if (level == "full") names.emplace_back("router_probs");
  if (!hidden_states.empty()) names.emplace_back("hidden_states");
  return names;
}

std::unique_ptr<Log> LogOptions::open(
    vitrine::LogHeader header, int64_t prompt_tokens,
    std::function<vitrine::TokenPiece(int32_t)> token_text) const {
  auto log = std::make_unique<Log>();
  log->path = path;
  if (names_host) header.host_name = host_name();
  if (!is_sealed_log()) {
    log->json = std::make_unique<vitrine::JsonLog>(path, std::move(header), std::move(token_text),
                                                   overwrite);
    return log;
  }
  using Options = vitrine::VtrOptions;
  Options options;
  options.detail = level == "counters" ? vitrine::LogDetail::kCounters
                   : level == "full"   ? vitrine::LogDetail::kFull
                                       : vitrine::LogDetail::kStandard;
  // What may be refused comes before a key is made.
  for (const std::string& argument : encrypt_for) {
    options.recipients.push_back(parse_recipient(argument));
  }
  VtrRedaction columns;
  for (const std::string& name : redact) {
    if (name == "prompt") {
      for (VtrRedaction& each : vitrine::redact_prompt(prompt_tokens)) {
        options.redact.push_back(std::move(each));
      }
      if (prompt_tokens <= kMaxGuessed) {
        write_note(fmt::format(
            "--redact prompt: a prompt of {} token{} is found by trying all, since the answer's "
            "numbers hang on it; leave out "
            "routing,norms,digests,prediction,attribution,sampler, too",
            prompt_tokens, prompt_tokens == 1 ? "" : "s"));
      }
    } else {
      columns.groups.push_back(name);
    }
  }
  if (!columns.groups.empty()) options.redact.push_back(columns);
  if (const std::string left = what_still_tells(columns.groups, told_columns()); !left.empty()) {
    write_note(
        fmt::format("--redact {}: whoever has the model still finds the text by {}; leave "
                    "these out, too, to withhold it",
                    fmt::join(columns.groups, ","), left));
  }
  std::error_code error;
  const bool makes_key = !seal.empty() && std::filesystem::symlink_status(seal, error).type() ==
                                              std::filesystem::file_type::not_found;
  if (!seal.empty()) {
    options.seal = log->key =
        makes_key ? vitrine::SealKey::generate() : vitrine::SealKey::load(seal);
  }
  options.durable = durable;
  options.overwrite = overwrite;
  options.text = text;
  options.hidden_states_at = parse_hidden_positions(hidden_positions);
  options.trace_id = trace_id;
  options.when_behind = when_behind == "drop"    ? Options::WhenBehind::kDrop
                        : when_behind == "spill" ? Options::WhenBehind::kSpill
                                                 : Options::WhenBehind::kWait;
  if (on_error == "degrade") options.on_error = Options::OnError::kDegrade;
  log->sealed = std::make_unique<vitrine::VtrLog>(
      path, std::move(header), std::move(options),
      [tell = std::move(token_text)](int32_t token) { return tell(token).piece; });
  // A log that is refused leaves no key behind.
  if (makes_key) {
    log->key->save(seal);
  } else if (log->key) {
    log->key->require_public_half(seal);
  }
  return log;
}

std::string LogOptions::note(const Log* log) const {
  if (log == nullptr) return "";
  if (!log->sealed) return ", log " + path;
  const vitrine::VtrAccount& positions = log->sealed->counts().positions;
  const double bytes = static_cast<double>(log->sealed->bytes_written());
  std::string note =
      fmt::format(", log {} ({:.0f} bytes a token)", path,
                  positions.total() == 0 ? bytes : bytes / static_cast<double>(positions.total()));
  if (positions.num_lost() > 0) {
    note += fmt::format("; INCOMPLETE: {} of {} positions lost", positions.num_lost(),
                        positions.total());
  }
  return note;
}

}  // namespace cli
