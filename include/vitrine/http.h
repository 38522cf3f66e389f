// SPDX-License-Identifier: Apache-2.0
// The room `http`: a Server behind OpenAI's interface. A library of its own, libvitrine_http.so.
//
//     HttpServer http({.port = 8080, .keys = read_api_keys("keys.txt")});
//     http.start();                                    // answers /health with 503 until then
//     Server server(Model::open(path, options));
//     http.serve(server);
//     …
//     http.stop();
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "vitrine/audit_log.h"
#include "vitrine/embed.h"
#include "vitrine/kv_events.h"
#include "vitrine/serve.h"

namespace vitrine {

/// A key that lets a client in.
struct ApiKey {
  std::string key = {};      ///< the secret, as the client sends it
  std::string tenant = {};   ///< whose requests come with it; empty: a name made of the key's hash
  bool reads_audit = false;  ///< it reads accounts of all tenants, and does nothing else
};

/// Reads a file of keys, one a line: the key, or a tenant's name, a blank and the key; after the
/// word "auditor" an auditor's key. Lines that begin with # and empty ones are left out. Throws
/// kIo, and kBadFile for a line of more words, a key below 8 characters or one given twice.
VITRINE_API std::vector<ApiKey> read_api_keys(const std::string& path);

/// Returns PrefixStoreOptions::key for tenants who come with these: a secret that is made of the
/// tenant's first key, so files of a tenant can be read by nobody who has not got it. A tenant
/// without a key has files that are not encrypted.
VITRINE_API std::function<std::string(const std::string& tenant)> prefix_store_keys(
    const std::vector<ApiKey>& keys);

/// What one client may ask for.
struct HttpLimits {
  size_t header_bytes = 64 << 10;               ///< a request's line and headers
  size_t body_bytes = size_t{32} << 20;         ///< a request's body
  uint64_t all_body_bytes = uint64_t{1} << 30;  ///< bodies of all clients that are being read
  int connections = 4096;                       ///< open at once
  int answers = 16;                             ///< to one body: prompts times "n"
  int embeddings = 64;                          ///< bodies of all clients that wait to be embedded
  int64_t max_tokens = 0;      ///< of one answer; more is cut down to it. 0: what the context holds
  double header_seconds = 30;  ///< until a request's headers are there, from their first byte
  double body_seconds = 120;   ///< until its body is there
  double idle_seconds = 75;    ///< between two requests of a connection
  double stall_seconds = 30;   ///< a client that reads nothing for so long is cut off
  double request_seconds = 0;  ///< an answer that is not whole by then is cancelled; 0: none is
  double ping_seconds = 15;    ///< between two comments in a stream that says nothing
};

/// Where an HTTP server listens, whom it lets in and what it may say.
struct HttpOptions {
  std::string host = "127.0.0.1";  ///< the address that it listens on
  uint16_t port = 8080;            ///< 0: one that is free
  std::vector<ApiKey> keys = {};   ///< empty: whoever reaches it is let in
  /// Names that clients may call this machine by, where there are no keys: others are refused, so
  /// that no web page can reach it by a name of its own (DNS rebinding). Addresses, "localhost" and
  /// `host` may always.
  std::vector<std::string> hosts = {};
  std::vector<std::string> cors_origins = {};  ///< web pages that may ask; "*": any
  std::string tls_cert = {};                   ///< a certificate chain, PEM; empty: no TLS
  std::string tls_key = {};                    ///< its key, PEM
  std::string model_name = {};                 ///< what the first model is called; empty: "vitrine"
  /// A model that there is not is refused (404), not the first. Of several models it always is.
  bool strict_model = false;
  bool has_metrics = false;  ///< GET /metrics
  bool has_slots = false;    ///< GET /slots
  HttpLimits limits = {};    ///< what one client may ask for
};

/// Where accounts of requests go, a sealed log each, under a random id that the reply's header
/// `x-vitrine-audit-id` names. `GET /v1/audit/ID` has it for whoever asked, and for auditors.
struct HttpAudit {
  std::string folder = {};  ///< empty: there are no logs
  LogHeader header = {};    ///< the model's facts; sampler and constraint are each request's own
  /// Those of further models, by what requests call them; `header` is all others'.
  std::map<std::string, LogHeader> headers = {};
  VtrOptions log = {};          ///< key, recipients and what is left out
  bool redacts_prompt = false;  ///< what would tell the prompt is left out (redact_prompt)
  std::string drafter = {};     ///< ServerOptions::drafter
};

/// What answers requests for embeddings.
struct EmbeddingModel {
  Model* model = nullptr;            ///< opened with embedding_options(); null: nobody does
  Pooling pooling = Pooling::kMean;  ///< what becomes of a text's hidden states
};

namespace http {
class HttpLoop;
}  // namespace http

/// Answers HTTP requests for a Server. One thread reads and writes, two others read bodies and
/// write prompts. A request whose client has gone ends within a step. Thread-safe.
class VITRINE_API HttpServer {
 public:
  /// Throws kInvalidArgument for options out of range, kIo and kBadFile for what `tls_cert` and
  /// `tls_key` name.
  explicit HttpServer(HttpOptions options);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  /// Stops at once.
  ~HttpServer();

  /// Listens. All but the page answers 503 until serve() was called. Throws kUnavailable where the
  /// address cannot be had.
  void start();
  /// The port that it listens on.
  uint16_t port() const;
  /// Answers from now on. `server` and the model of `embeddings`, which nobody else steps, stay
  /// until stop() has returned (not owned). Accounts need an engine that records
  /// (EngineOptions::audit_mode).
  void serve(Server& server, HttpAudit audit = {}, const EmbeddingModel& embeddings = {});
  /// Takes no more requests, waits for those under way until the deadline, cuts off the rest and
  /// ends.
  void stop(std::chrono::steady_clock::time_point deadline = {});

 private:
  std::unique_ptr<http::HttpLoop> loop_;
};

/// Where events about blocks go, and how (vLLM's kv_events_config).
struct KvEventOptions {
  /// Where subscribers connect to: tcp://ADDRESS:PORT (*: a port that is free) or ipc://PATH. Of
  /// several models the second one's port is one higher, and so on, as vLLM has it for ranks; a
  /// path gets "_dp1" behind it.
  std::string endpoint = "tcp://127.0.0.1:5557";
  /// Where who missed some asks for them, in the same form; empty: nowhere.
  std::string replay_endpoint = {};
  /// What subscribers choose messages by; "{model}" in it stands for the model's name.
  std::string topic = {};
  /// Others than this machine's may connect. They learn the ids of everybody's prompts and answers.
  bool is_public = false;
  /// Events are arrays, as up to vLLM 0.23, and not maps.
  bool as_arrays = false;
  int buffer_steps = 10000;     ///< messages that are kept for who missed them, 64 MiB at most
  int hwm = 100000;             ///< messages that wait for one slow subscriber
  int max_queue_size = 100000;  ///< messages that wait to be sent, of 4 million ids at most
};

/// Publishes a server's blocks to routers of fleets, over ZeroMQ and in vLLM's form. Each model has
/// a socket, a topic and sequence numbers of its own. Thread-safe.
///
///     KvEventPublisher events({.endpoint = "tcp://127.0.0.1:5557", .topic = "kv"}, {"tiny"});
///     Server server(Model::open(path, options), {.block_listener = &events});
class VITRINE_API KvEventPublisher final : public KvBlockListener {
 public:
  /// `models`: what the server's are called, the first one's first. Throws kInvalidArgument for
  /// options out of range, kUnavailable where an endpoint cannot be bound, and in a build without
  /// ZeroMQ.
  KvEventPublisher(KvEventOptions options, std::vector<std::string> models);
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;
  /// Sends what waits, and that no block is left, within a second.
  ~KvEventPublisher() override;

  bool on_blocks(const std::string& model, std::vector<KvBlockEvent> events) noexcept override;
  /// The endpoints of the models, with their ports.
  const std::vector<std::string>& endpoints() const;
  /// Where each model's are asked for again; empty where nowhere.
  const std::vector<std::string>& replay_endpoints() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
