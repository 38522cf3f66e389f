// SPDX-License-Identifier: Apache-2.0
#include "kv_event_options.h"

#include <fmt/format.h>

#include "option_section.h"

namespace cli {

namespace {

[[noreturn]] void refuse_event_field(const std::string& name, const nlohmann::json& value,
                                     const std::string& expected) {
  refuse(fmt::format("--kv-events-config: '{}' is {}; expected {}", name, value.dump(), expected));
}

void read_event_text(const std::string& name, const nlohmann::json& value, std::string& text) {
  if (!value.is_string()) refuse_event_field(name, value, "a text");
  text = value.get<std::string>();
}

void read_event_count(const std::string& name, const nlohmann::json& value, int& count) {
  constexpr int kMost = 1 << 30;
  const bool is_count =
      value.is_number_integer() && value.get<double>() >= 1 && value.get<double>() <= double{kMost};
  if (!is_count) refuse_event_field(name, value, fmt::format("a number from 1 to {}", kMost));
  count = value.get<int>();
}

/// What vLLM's --kv-events-config says; nothing where it says that there are none.
std::optional<vitrine::KvEventOptions> read_event_config(const std::string& text) {
  const nlohmann::json config =
      nests_deeper_than(text, 8) ? nlohmann::json()
                                 : nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    refuse("--kv-events-config: is no JSON object; expected one as vLLM has it, with 'endpoint'");
  }
  vitrine::KvEventOptions options;
  options.endpoint = "tcp://*:5557";
  bool is_enabled = false;
  std::string publisher = "zmq";
  for (const auto& [name, value] : config.items()) {
    if (value.is_null() && name != "enable_kv_cache_events") continue;
    if (name == "enable_kv_cache_events") {
      if (!value.is_boolean()) refuse_event_field(name, value, "true or false");
      is_enabled = value.get<bool>();
    } else if (name == "publisher") {
      read_event_text(name, value, publisher);
      if (publisher != "zmq" && publisher != "null") refuse_event_field(name, value, "zmq or null");
    } else if (name == "endpoint") {
      read_event_text(name, value, options.endpoint);
    } else if (name == "replay_endpoint") {
      read_event_text(name, value, options.replay_endpoint);
    } else if (name == "topic") {
      read_event_text(name, value, options.topic);
    } else if (name == "buffer_steps") {
      read_event_count(name, value, options.buffer_steps);
    } else if (name == "hwm") {
      read_event_count(name, value, options.hwm);
    } else if (name == "max_queue_size") {
      read_event_count(name, value, options.max_queue_size);
    } else {
      refuse(
          fmt::format("--kv-events-config: there is no '{}'; expected enable_kv_cache_events, "
                      "publisher, endpoint, replay_endpoint, topic, buffer_steps, hwm or "
                      "max_queue_size",
                      name));
    }
  }
  if (!is_enabled || publisher == "null") return std::nullopt;
  return options;
}

}  // namespace

void KvEventArguments::add_to(CLI::App& command) {
  const OptionSection section(command, "Events for routers");
  CLI::Option* events =
      command
          .add_option("--kv-events", endpoint,
                      "publish which blocks of ids are kept, in vLLM's form over ZeroMQ, at "
                      "tcp://127.0.0.1:5557 or ipc://PATH; they tell the ids of everybody's "
                      "prompts and answers (default: nowhere)")
          ->check(not_empty());
  command
      .add_option("--kv-events-topic", topic,
                  "what subscribers choose messages by; {model} in it is the model's name")
      ->needs(events);
  command
      .add_option("--kv-events-replay", replay,
                  "where subscribers ask for messages that they missed, as tcp://127.0.0.1:5558")
      ->check(not_empty())
      ->needs(events);
  command
      .add_option("--kv-events-config", config,
                  "the same as a JSON object, with the fields of vLLM's option of this name")
      ->check(not_empty())
      ->excludes(events);
  command
      .add_option("--kv-events-encoding", encoding,
                  "map, as vLLM has it, or array, as vLLM had it up to 0.23")
      ->check(CLI::IsMember({"map", "array"}))
      ->capture_default_str();
  command.add_flag("--kv-events-public", is_public,
                   "let an endpoint be one that other machines reach: who connects reads what "
                   "everybody asks and is answered");
}

std::optional<vitrine::KvEventOptions> KvEventArguments::read() const {
  std::optional<vitrine::KvEventOptions> options;
  if (!config.empty()) {
    options = read_event_config(config);
  } else if (!endpoint.empty()) {
    options.emplace();
    options->endpoint = endpoint;
    options->replay_endpoint = replay;
    options->topic = topic;
  }
  if (!options) return std::nullopt;
  options->is_public = is_public;
  options->as_arrays = encoding == "array";
  return options;
}

}  // namespace cli
