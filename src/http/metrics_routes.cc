// SPDX-License-Identifier: Apache-2.0
// GET /metrics: what the server has done, as Prometheus reads it.
#include <algorithm>
#include <iterator>
#include <string>

#include "http/account.h"
#include "http/counts.h"
#include "http/route.h"

namespace vitrine::http {

namespace {

/// Writes families of metrics, each under this project's name and, where vLLM has one that means
/// the same, under that one, too, so that its dashboards work.
class Exposition {
 public:
  explicit Exposition(const std::string& model) : label_("model_name=\"" + escaped(model) + "\"") {}

  void counter(const std::string& name, const char* help, double value, const char* vllm = "") {
    for (const std::string& each : names(name, vllm)) {
      begin(each, help, "counter");
      sample(each, "", value);
    }
  }
  void gauge(const std::string& name, const char* help, double value, const char* vllm = "") {
    for (const std::string& each : names(name, vllm)) {
      begin(each, help, "gauge");
      sample(each, "", value);
    }
  }
  void histogram(const std::string& name, const char* help, const ServeHistogram& values,
                 const char* vllm = "") {
    for (const std::string& each : names(name, vllm)) {
      begin(each, help, "histogram");
      uint64_t below = 0;
      for (size_t i = 0; i < std::size(ServeHistogram::kLimits); ++i) {
        below += values.counts[i];
        sample(each + "_bucket", ",le=\"" + number(ServeHistogram::kLimits[i]) + "\"",
               static_cast<double>(below));
      }
      sample(each + "_bucket", ",le=\"+Inf\"", static_cast<double>(values.count));
      sample(each + "_sum", "", values.sum);
      sample(each + "_count", "", static_cast<double>(values.count));
    }
  }
  /// Adds a family whose samples differ in one further label.
  void by_label(const std::string& name, const char* help, const char* label,
                const std::vector<std::pair<std::string, double>>& values, const char* vllm = "") {
    for (const std::string& each : names(name, vllm)) {
      begin(each, help, "counter");
      for (const auto& [value, count] : values) {
        sample(each, std::string(",") + label + "=\"" + value + "\"", count);
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
  void sample(const std::string& name, const std::string& labels, double value) {
    text_ += name + "{" + label_ + labels + "} " + number(value) + "\n";
  }

  const std::string label_;
  std::string text_;
};

void add_requests(Exposition& out, const ServerTelemetry& told) {
  out.gauge("requests_running", "Requests that are being answered.",
            static_cast<double>(told.running), "num_requests_running");
  out.gauge("requests_waiting", "Requests that wait for a place.",
            static_cast<double>(told.waiting), "num_requests_waiting");
  out.by_label("requests_total", "Requests that have ended, by how.", "finished_reason",
               {{"stop", static_cast<double>(told.finished)},
                {"abort", static_cast<double>(told.cancelled)},
                {"error", static_cast<double>(told.failed)}},
               "request_success_total");
  out.counter("requests_refused_total", "Requests for which there was no place to wait.",
              static_cast<double>(told.refused));
  out.counter("preemptions_total", "Answers whose keys and values were given up.",
              static_cast<double>(told.preemptions), "num_preemptions_total");
  out.counter("client_stalls_total", "Times that an answer waited for its reader.",
              static_cast<double>(told.paused_readers));
  out.histogram("time_to_first_token_seconds", "From a request to its first token.",
                told.first_token_seconds, "time_to_first_token_seconds");
  out.histogram("inter_token_latency_seconds", "Between two tokens of an answer.", told.gap_seconds,
                "inter_token_latency_seconds");
  out.histogram("request_queue_time_seconds", "That a request waited, ready, for a place.",
                told.queue_seconds, "request_queue_time_seconds");
}

void add_work(Exposition& out, const ServerTelemetry& told) {
  out.counter("prompt_tokens_total", "Tokens of prompts that began.",
              static_cast<double>(told.prompt_tokens), "prompt_tokens_total");
  out.counter("generation_tokens_total", "Tokens that were generated.",
              static_cast<double>(told.new_tokens), "generation_tokens_total");
  out.counter("computed_prompt_tokens_total", "Tokens of prompts that steps computed.",
              static_cast<double>(told.computed_prompt_tokens));
  out.counter("steps_total", "Steps.", static_cast<double>(told.steps));
  out.histogram("step_seconds", "Of a step.", told.step_seconds);
  out.counter("scheduler_cpu_seconds_total", "Processor time within scheduler and prefix tree.",
              told.scheduler_seconds);
  out.counter("engine_seconds_total", "Within steps.", told.engine_seconds);
  out.counter("drafted_tokens_total", "Tokens that were guessed.",
              static_cast<double>(told.speculation.num_draft_tokens),
              "spec_decode_num_draft_tokens_total");
  out.counter("accepted_tokens_total", "Guesses that were right.",
              static_cast<double>(told.speculation.num_accepted_draft_tokens),
              "spec_decode_num_accepted_tokens_total");
  out.counter("masked_tokens_total", "Tokens that were chosen under a constraint's mask.",
              static_cast<double>(told.constraint.masks));
  out.counter("forced_tokens_total", "Tokens that a constraint left no choice of.",
              static_cast<double>(told.constraint.forced + told.constraint.jumped));
}

void add_cache(Exposition& out, const ServerTelemetry& told) {
  const double used = static_cast<double>(told.num_blocks - told.free_blocks);
  out.gauge(
      "kv_cache_usage", "Part of the blocks of keys and values that is taken, kept prefixes too.",
      told.num_blocks > 0 ? used / static_cast<double>(told.num_blocks) : 0, "kv_cache_usage_perc");
  out.gauge("kept_prefixes", "Prefixes that are kept.", static_cast<double>(told.kept_prefixes));
  out.gauge("prefix_record_bytes", "Bytes that the recorder said of kept prefixes.",
            static_cast<double>(told.record_bytes));
  out.counter("prefix_cache_queries_total", "Tokens of prompts that were looked for.",
              static_cast<double>(told.prompt_tokens), "prefix_cache_queries_total");
  out.counter("prefix_cache_hits_total", "Of these, tokens that were there.",
              static_cast<double>(told.cached_tokens), "prefix_cache_hits_total");
  out.counter("evicted_prefixes_total", "Prefixes that gave way to others.",
              static_cast<double>(told.evicted_prefixes));
  out.counter("evicted_tokens_total", "Tokens of these.", static_cast<double>(told.evicted_tokens));
  out.counter("evicted_age_seconds_total", "Since evicted prefixes were last used, all together.",
              told.evicted_age_seconds);
  out.counter("prompt_root_breaks_total", "Prompts that part from an earlier one and go on alike.",
              static_cast<double>(told.prompt_breaks));
  out.counter("prompt_root_broken_tokens_total", "Tokens that were computed again for it.",
              static_cast<double>(told.broken_tokens));
}

void add_network(Exposition& out, const HttpCounts& counts) {
  out.gauge("http_connections", "Connections that are open.",
            static_cast<double>(counts.connections));
  out.counter("http_requests_total", "Requests that were read.",
              static_cast<double>(counts.requests));
  out.counter("http_refused_total", "Replies of status 400 to 499.",
              static_cast<double>(counts.refused));
  out.counter("http_failed_total", "Replies of status 500 and more.",
              static_cast<double>(counts.failed));
  out.counter("http_disconnects_total", "Clients that went before their answer was whole.",
              static_cast<double>(counts.disconnects));
  out.counter("http_cut_off_total", "Clients that were cut off since they read nothing.",
              static_cast<double>(counts.stalls));
}

Reply metrics(const House& house, const Request& /*request*/) {
  if (!house.options.has_metrics) {
    throw HttpError(501, "this server tells no metrics; start it with --metrics");
  }
  const ServerTelemetry told = house.server->telemetry();
  Exposition out(house.model_names().front());
  add_requests(out, told);
  add_work(out, told);
  add_cache(out, told);
  add_network(out, *house.counts);
  out.counter("accounts_failed_total", "Logs that could not be ended as they should.",
              static_cast<double>(house.closer->num_failed()));
  Reply reply;
  reply.type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = out.text();
  return reply;
}

VITRINE_REGISTER_ROUTES({{"GET", "/metrics", Access::kKey, metrics}});

}  // namespace

}  // namespace vitrine::http
