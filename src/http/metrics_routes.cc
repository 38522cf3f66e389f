// SPDX-License-Identifier: Apache-2.0
// GET /metrics: what the server has done, as Prometheus reads it.
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "http/account.h"
#include "http/counts.h"
#include "http/metrics_routes.json.h"
#include "http/route.h"

namespace vitrine::http {

namespace {

/// A model by its name, and what the server has done with it.
struct ToldModel {
  std::string name;
  ServerTelemetry told;
};

/// Writes families of metrics with a sample for each model, each family under this project's name
/// and, where vLLM has one that means the same, under that one, too, so that its dashboards work.
class Exposition {
 public:
  explicit Exposition(std::vector<ToldModel> models) : models_(std::move(models)) {
    for (ToldModel& each : models_) each.name = "model_name=\"" + escaped(each.name) + "\"";
  }

  template <typename Value>
  void counter(const std::string& name, const char* help, Value value, const char* vllm = "") {
    add(name, help, "counter", value, vllm);
  }
  template <typename Value>
  void gauge(const std::string& name, const char* help, Value value, const char* vllm = "") {
    add(name, help, "gauge", value, vllm);
  }
  /// Adds a counter or gauge of the whole server, which stands beside the first model's name.
  void of_server(const std::string& name, const char* help, double value,
                 const char* type = "counter") {
    begin("vitrine_" + name, help, type);
    sample("vitrine_" + name, models_.front(), "", value);
  }
  void histogram(const std::string& name, const char* help, ServeHistogram ServerTelemetry::*values,
                 const char* vllm = "") {
    for (const std::string& each : names(name, vllm)) {
      begin(each, help, "histogram");
      for (const ToldModel& model : models_) add_histogram(each, model, model.told.*values);
    }
  }
  /// Adds a family whose samples differ in one further label.
  void by_label(const std::string& name, const char* help, const char* label,
                const std::vector<std::pair<std::string, uint64_t ServerTelemetry::*>>& values,
                const char* vllm = "") {
    for (const std::string& each : names(name, vllm)) {
      begin(each, help, "counter");
      for (const ToldModel& model : models_) {
        for (const auto& [value, count] : values) {
          sample(each, model, std::string(",") + label + "=\"" + value + "\"",
                 static_cast<double>(model.told.*count));
        }
      }
    }
  }
  const std::string& text() const { return text_; }

 private:
  static std::vector<std::string> names(const std::string& name, const std::string& vllm) {
    std::vector<std::string> all = {"vitrine_" + name};
    if (!vllm.empty()) all.push_back("vllm:" + vllm);
    return all;
  }
  static std::string number(double value) { return Json(value).dump(); }
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '\n') {
        out += "\\n";
        continue;
      }
      if (c == '\\' || c == '"') out += '\\';
      out += c;
    }
    return out;
  }
  void begin(const std::string& name, const char* help, const char* type) {
    text_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void sample(const std::string& name, const ToldModel& model, const std::string& labels,
              double value) {
    text_ += name + "{" + model.name + labels + "} " + number(value) + "\n";
  }
  // `value`: a member of ServerTelemetry, or a function of one.
  template <typename Value>
  void add(const std::string& name, const char* help, const char* type, Value value,
           const char* vllm) {
    for (const std::string& each : names(name, vllm)) {
      begin(each, help, type);
      for (const ToldModel& model : models_) {
        sample(each, model, "", static_cast<double>(std::invoke(value, model.told)));
      }
    }
  }
  void add_histogram(const std::string& name, const ToldModel& model,
                     const ServeHistogram& values) {
    uint64_t below = 0;
    for (size_t i = 0; i < std::size(ServeHistogram::kLimits); ++i) {
      below += values.counts[i];
      sample(name + "_bucket", model, ",le=\"" + number(ServeHistogram::kLimits[i]) + "\"",
             static_cast<double>(below));
    }
    sample(name + "_bucket", model, ",le=\"+Inf\"", static_cast<double>(values.count));
    sample(name + "_sum", model, "", values.sum);
    sample(name + "_count", model, "", static_cast<double>(values.count));
  }

  std::vector<ToldModel> models_;
  std::string text_;
};

using Told = ServerTelemetry;

void add_requests(Exposition& out) {
  out.gauge("requests_running", "Requests that are being answered.", &Told::running,
            "num_requests_running");
  out.gauge("requests_paused", "Requests whose readers are behind, and whose place others had.",
            &Told::paused);
  out.gauge("requests_waiting", "Requests that wait for a place.", &Told::waiting,
            "num_requests_waiting");
  out.by_label("requests_total", "Requests that have ended, by how.", "finished_reason",
               {{"stop", &Told::finished}, {"abort", &Told::cancelled}, {"error", &Told::failed}},
               "request_success_total");
  out.counter("requests_refused_total", "Requests for which there was no place to wait.",
              &Told::refused);
  out.counter("preemptions_total", "Answers whose keys and values were given up.",
              &Told::preemptions, "num_preemptions_total");
  out.counter("client_stalls_total", "Times that an answer waited for its reader.",
              &Told::paused_readers);
  out.histogram("time_to_first_token_seconds", "From a request to its first token.",
                &Told::first_token_seconds, "time_to_first_token_seconds");
  out.histogram("inter_token_latency_seconds", "Between two tokens of an answer.",
                &Told::gap_seconds, "inter_token_latency_seconds");
  out.histogram("request_queue_time_seconds", "That a request waited, ready, for a place.",
                &Told::queue_seconds, "request_queue_time_seconds");
}

void add_work(Exposition& out) {
  out.counter("prompt_tokens_total", "Tokens of prompts that began.", &Told::prompt_tokens,
              "prompt_tokens_total");
  out.counter("generation_tokens_total", "Tokens that were generated.", &Told::new_tokens,
              "generation_tokens_total");
  out.counter("computed_prompt_tokens_total", "Tokens of prompts that steps computed.",
              &Told::computed_prompt_tokens);
  out.counter("steps_total", "Steps.", &Told::steps);
  out.histogram("step_seconds", "Of a step.", &Told::step_seconds);
  out.counter("scheduler_cpu_seconds_total", "Processor time within scheduler and prefix tree.",
              &Told::scheduler_seconds);
  out.counter("engine_seconds_total", "Within steps.", &Told::engine_seconds);
  out.counter(
      "drafted_tokens_total", "Tokens that were guessed.",
      [](const Told& told) { return told.speculation.num_draft_tokens; },
      "spec_decode_num_draft_tokens_total");
  out.counter(
      "accepted_tokens_total", "Guesses that were right.",
      [](const Told& told) { return told.speculation.num_accepted_draft_tokens; },
      "spec_decode_num_accepted_tokens_total");
  out.counter("masked_tokens_total", "Tokens that were chosen under a constraint's mask.",
              [](const Told& told) { return told.constraint.masks; });
  out.counter("forced_tokens_total", "Tokens that a constraint left no choice of.",
              [](const Told& told) { return told.constraint.forced + told.constraint.jumped; });
}

void add_cache(Exposition& out) {
  out.gauge(
      "kv_cache_usage", "Part of the blocks of keys and values that is taken, kept prefixes too.",
      [](const Told& told) {
        const auto used = static_cast<double>(told.num_blocks - told.free_blocks);
        return told.num_blocks > 0 ? used / static_cast<double>(told.num_blocks) : 0;
      },
      "kv_cache_usage_perc");
  out.gauge("kept_prefixes", "Prefixes that are kept.", &Told::kept_prefixes);
  out.gauge("prefix_record_bytes", "Bytes that the recorder said of kept prefixes.",
            &Told::record_bytes);
  out.counter("prefix_cache_queries_total", "Tokens of prompts that were looked for.",
              &Told::prompt_tokens, "prefix_cache_queries_total");
  out.counter("prefix_cache_hits_total", "Of these, tokens that were there.", &Told::cached_tokens,
              "prefix_cache_hits_total");
  out.counter("evicted_prefixes_total", "Prefixes that gave way to others.",
              &Told::evicted_prefixes);
  out.counter("evicted_tokens_total", "Tokens of these.", &Told::evicted_tokens);
  out.counter("evicted_age_seconds_total", "Since evicted prefixes were last used, all together.",
              &Told::evicted_age_seconds);
  out.counter("prompt_root_breaks_total", "Prompts that part from an earlier one and go on alike.",
              &Told::prompt_breaks);
  out.counter("prompt_root_broken_tokens_total", "Tokens that were computed again for it.",
              &Told::broken_tokens);
}

void add_network(Exposition& out, const HttpCounts& counts) {
  out.of_server("http_connections", "Connections that are open.",
                static_cast<double>(counts.connections), "gauge");
  out.of_server("http_requests_total", "Requests that were read.",
                static_cast<double>(counts.requests));
  out.of_server("http_refused_total", "Replies of status 400 to 499.",
                static_cast<double>(counts.refused));
  out.of_server("http_failed_total", "Replies of status 500 and more.",
                static_cast<double>(counts.failed));
  out.of_server("http_disconnects_total", "Clients that went before their answer was whole.",
                static_cast<double>(counts.disconnects));
  out.of_server("http_cut_off_total", "Clients that were cut off since they read nothing.",
                static_cast<double>(counts.stalls));
}

Reply metrics(const House& house, const Request& /*request*/) {
  if (!house.options.has_metrics) {
    throw HttpError(501, "this server tells no metrics; start it with --metrics");
  }
  // Adapters are counted with their model.
  std::vector<ToldModel> models;
  const std::vector<std::string> names = house.model_names();
  for (size_t i = 0; i < house.server->num_models(); ++i) {
    models.push_back({names[i], house.server->telemetry(house.find_model(names[i]))});
  }
  Exposition out(std::move(models));
  add_requests(out);
  add_work(out);
  add_cache(out);
  add_network(out, *house.counts);
  out.of_server("accounts_failed_total", "Logs that could not be ended as they should.",
                static_cast<double>(house.closer->num_failed()));
  Reply reply;
  reply.type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = out.text();
  return reply;
}

VITRINE_REGISTER_ROUTES(kMetricsRoutesJson, {{"GET", "/metrics", Access::kKey, metrics}});

}  // namespace

}  // namespace vitrine::http
