// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "chat_prompt.h"
#include "federate.h"
#include "log_options.h"
#include "sampling_options.h"
#include "serve.h"
#include "vitrine/embed.h"
#include "vitrine/serve.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

/// Raises a flag when a signal comes while the model is loaded; afterwards signals end the server,
/// and steps go on until it has ended.
class LoadingWatch {
 public:
  LoadingWatch() : thread_([this](const std::stop_token& stop) { watch(stop); }) {}
  const std::atomic<bool>& flag() const { return flag_; }

 private:
  void watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (interrupt_signal() != 0) flag_ = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::atomic<bool>& flag_ = loading_flag();
  static std::atomic<bool>& loading_flag() {
    static std::atomic<bool> flag{false};
    return flag;
  }
  std::jthread thread_;
};

bool is_federation(const std::string& path) { return path.ends_with(".json"); }

/// What --model names: where it is, and what requests call it.
struct ModelPlace {
  std::string name, path;
};

ModelPlace read_place(const std::string& argument) {
  std::error_code error;
  const size_t equals = argument.find('=');
  const bool has_name = equals != std::string::npos && equals > 0 && argument.find('/') > equals &&
                        !std::filesystem::exists(argument, error);
  if (has_name) return {argument.substr(0, equals), argument.substr(equals + 1)};
  const std::filesystem::path path = std::filesystem::path(argument).lexically_normal();
  return {(path.has_filename() ? path : path.parent_path()).filename().string(), argument};
}

/// The models, the first one first, each with a name of its own.
std::vector<ModelPlace> model_places(const ServeArguments& arguments) {
  std::vector<ModelPlace> places;
  for (const std::string& argument : arguments.models) places.push_back(read_place(argument));
  if (!arguments.alias.empty()) places.front().name = arguments.alias;
  std::vector<std::string> known;
  for (const std::string& folder : arguments.adapters) {
    known.push_back(read_place(folder + "/").name);
  }
  for (const ModelPlace& place : places) {
    if (std::ranges::find(known, place.name) != known.end()) {
      refuse(
          fmt::format("--model {}: what else is served is called '{}', too; expected NAME=PATH "
                      "with a name of its own",
                      place.path, place.name));
    }
    known.push_back(place.name);
  }
  return places;
}

vitrine::ModelOptions model_options(const ServeArguments& arguments,
                                    const std::vector<ModelPlace>& places, size_t number,
                                    const std::atomic<bool>& cancelled) {
  const std::string& path = places[number].path;
  vitrine::ModelOptions options;
  options.engine = arguments.device.engine_options();
  options.engine.kv_bytes /= places.size();
  options.engine.cancelled = &cancelled;
  if (is_federation(path)) {  // its specialists have limits
    options.engine.max_context = arguments.context;
  } else {
    const vitrine::ModelFacts facts = read_model_facts(open_model(path));
    options.engine.max_context = context_limit(arguments.context, facts, path, 8192);
  }
  if (number == 0) {
    if (!arguments.chat_template.empty()) {
      options.chat_template = chat_template_source(arguments.chat_template);
    }
    options.engine.adapters = arguments.adapters;
  }
  options.engine.audit_mode =
      arguments.audit_mode == "none" ? vitrine::AuditMode::kNone : vitrine::AuditMode::kDeferred;
  options.engine.keep_logits = !arguments.no_logprobs;
  prepare_for_serving(options, arguments.streams);
  return options;
}

/// The model that makes embeddings, with room for as many texts a step as `vitrine embed` has.
vitrine::Model open_embedder(const ServeArguments& arguments, const std::vector<ModelPlace>& places,
                             const std::atomic<bool>& cancelled) {
  constexpr int64_t kMostPositions = 65536, kMostSequences = 16;
  const std::string& path = places.front().path;
  if (is_federation(path)) {
    refuse("--embeddings takes a model of its own; expected no federation");
  }
  const int64_t context = model_options(arguments, places, 0, cancelled).engine.max_context;
  const int64_t sequences = std::clamp<int64_t>(kMostPositions / context, 1, kMostSequences);
  vitrine::ModelOptions options;
  options.engine = vitrine::embedding_options(context, arguments.device.engine_options(),
                                              static_cast<int>(sequences));
  options.engine.cancelled = &cancelled;
  return vitrine::Model::open(path, options);
}

/// The first one has no name of its own: requests that name none get it.
std::vector<vitrine::NamedModel> open_models(const ServeArguments& arguments,
                                             const std::vector<ModelPlace>& places,
                                             const std::atomic<bool>& cancelled) {
  std::vector<vitrine::NamedModel> models;
  for (size_t i = 0; i < places.size(); ++i) {
    models.push_back(
        {i == 0 ? "" : places[i].name,
         vitrine::Model::open(places[i].path, model_options(arguments, places, i, cancelled))});
  }
  return models;
}

vitrine::ServerOptions server_options(const ServeArguments& arguments) {
  vitrine::ServerOptions options;
  options.policy = arguments.policy;
  options.drafter = arguments.drafter == "auto" ? "suffix" : arguments.drafter;
  options.max_running = arguments.streams;
  options.step_seconds = arguments.step_ms / 1e3;
  options.cache_prefixes = !arguments.no_cache;
  options.prefix_store.folder = arguments.prefix_store;
  options.prefix_store.max_bytes = arguments.prefix_store_bytes;
  options.max_unread_events = 128;  // what a client that does not read may hold here
  return options;
}

vitrine::HttpOptions http_options(const ServeArguments& arguments,
                                  const std::vector<ModelPlace>& places) {
  vitrine::HttpOptions options = arguments.http;
  if (!arguments.key_file.empty()) {
    options.keys = vitrine::read_api_keys(arguments.key_file);
  }
  for (const std::string& key : arguments.api_keys) options.keys.push_back({.key = key});
  options.model_name = places.front().name;
  return options;
}

/// A log of a federation has its members in its head, and is one of the first one's model.
vitrine::LogHeader model_log_header(const std::string& path, const DeviceOptions& device,
                                    const vitrine::ModelSummary& model) {
  const auto of_files = [&](const std::string& files) {
    return log_header(files, SamplingOptions(), device, model, open_model(files));
  };
  if (!is_federation(path)) return of_files(path);
  const vitrine::FederationSpec spec = load_federation_spec(path);
  spec.check_members();
  vitrine::LogHeader header = of_files(spec.specialists[0].model);
  add_members(spec, header);
  return header;
}

vitrine::HttpAudit audit_options(const ServeArguments& arguments,
                                 const std::vector<ModelPlace>& places,
                                 const vitrine::Server& server) {
  vitrine::HttpAudit audit;
  audit.folder = arguments.audit_dir;
  audit.drafter = server_options(arguments).drafter;
  if (audit.folder.empty()) return audit;
  if (arguments.audit_mode == "none") {
    refuse("--audit-dir needs records; expected --audit-mode deferred");
  }
  std::error_code error;
  if (!std::filesystem::is_directory(audit.folder, error)) {
    refuse(fmt::format("--audit-dir {}: is no folder; make it first", audit.folder));
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [name, path] = places[i];
    const vitrine::ModelSummary& model = server.model(i == 0 ? "" : name).summary();
    vitrine::LogHeader header = model_log_header(path, arguments.device, model);
    (i == 0 ? audit.header : audit.headers[name]) = std::move(header);
  }
  if (!arguments.seal.empty()) {
    audit.log.seal = vitrine::SealKey::load_or_create(arguments.seal);
  }
  for (const std::string& argument : arguments.encrypt_for) {
    audit.log.recipients.push_back(parse_recipient(argument));
  }
  vitrine::VtrRedaction columns;
  for (const std::string& name : arguments.redact) {
    if (name == "prompt") {
      audit.redacts_prompt = true;
    } else {
      columns.groups.push_back(name);
    }
  }
  if (!columns.groups.empty()) audit.log.redact.push_back(columns);
  using Log = vitrine::VtrOptions;
  audit.log.durable = arguments.durable;
  audit.log.when_behind = arguments.when_behind == "drop"    ? Log::WhenBehind::kDrop
                          : arguments.when_behind == "spill" ? Log::WhenBehind::kSpill
                                                             : Log::WhenBehind::kWait;
  if (arguments.on_error == "degrade") audit.log.on_error = Log::OnError::kDegrade;
  return audit;
}

/// Stops what answers for a server before that goes.
struct StopAtEnd {
  explicit StopAtEnd(vitrine::HttpServer& http) : http(http) {}
  ~StopAtEnd() { http.stop(); }
  StopAtEnd(const StopAtEnd&) = delete;
  StopAtEnd& operator=(const StopAtEnd&) = delete;
  vitrine::HttpServer& http;
};

/// Says where subscribers find what.
void note_events(const vitrine::KvEventPublisher& events, const std::vector<ModelPlace>& places) {
  for (size_t i = 0; i < places.size(); ++i) {
    std::string place = events.endpoints()[i];
    if (!events.replay_endpoints().empty()) place += ", again at " + events.replay_endpoints()[i];
    write_note(fmt::format("kept blocks of {} are published at {}", places[i].name, place));
  }
}

}  // namespace

int run_serve(const ServeArguments& arguments) {
  catch_interrupts();
  const std::vector<ModelPlace> places = model_places(arguments);
  const vitrine::HttpOptions options = http_options(arguments, places);
  std::optional<vitrine::KvEventPublisher> events;
  if (const std::optional<vitrine::KvEventOptions> asked = arguments.events.read()) {
    if (arguments.no_cache) refuse("--kv-events tells what is kept; expected no --no-cache");
    std::vector<std::string> names(places.size());
    std::ranges::transform(places, names.begin(), &ModelPlace::name);
    events.emplace(*asked, std::move(names));
  }
  vitrine::HttpServer http(options);
  http.start();
  const std::string host = arguments.http.host.find(':') == std::string::npos
                               ? arguments.http.host
                               : "[" + arguments.http.host + "]";
  const std::string url = fmt::format(
      "{}://{}:{}", arguments.http.tls_cert.empty() ? "http" : "https", host, http.port());
  if (!arguments.quiet) {
    write_note(fmt::format("{}: loading {}", url, fmt::join(arguments.models, ", ")));
  }
  std::optional<LoadingWatch> loading(std::in_place);
  vitrine::ServerOptions serving = server_options(arguments);
  serving.prefix_store.key = vitrine::prefix_store_keys(options.keys);
  if (events) serving.block_listener = &*events;
  vitrine::Server server(open_models(arguments, places, loading->flag()), serving);
  std::optional<vitrine::Model> embedder;
  if (arguments.embeddings) embedder.emplace(open_embedder(arguments, places, loading->flag()));
  loading.reset();
  if (events && !arguments.quiet) note_events(*events, places);
  const StopAtEnd stops(http);  // before the server goes, whatever happens
  http.serve(server, audit_options(arguments, places, server),
             {.model = embedder ? &*embedder : nullptr,
              .pooling = *vitrine::find_pooling(arguments.pooling)});
  if (!arguments.quiet) write_note(url + "/v1 answers; Ctrl-C ends it");
  while (interrupt_signal() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  http.stop(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(arguments.drain_seconds)));
  if (!arguments.quiet) {
    const vitrine::ServerTelemetry told = server.telemetry();
    write_note(
        fmt::format("ended by a signal: {} requests finished, {} failed, {} cancelled; {} "
                    "tokens",
                    told.finished, told.failed, told.cancelled, told.new_tokens));
    for (const std::string& note : server.store_notes()) write_note(note);
  }
  return 0;
}

}  // namespace cli
