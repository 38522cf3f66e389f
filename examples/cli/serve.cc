// SPDX-License-Identifier: Apache-2.0
// vitrine serve: a model behind OpenAI's interface.
#include "serve.h"

#include "option_section.h"
#include "vitrine/serve.h"

namespace cli {

namespace {

void add_limits(CLI::App& serve, vitrine::HttpLimits& limits) {
  const OptionSection section(serve, "Limits of one client");
  serve.add_option("--max-body", limits.body_bytes, "bytes of a request's body")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("32MB");
  serve.add_option("--max-answers", limits.answers, "answers to one body: prompts times n")
      ->check(CLI::Range(1, 2048))
      ->capture_default_str();
  serve
      .add_option("--max-answer-tokens", limits.max_tokens,
                  "tokens of one answer; more is cut down to it (0: what the context holds)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  serve.add_option("--max-connections", limits.connections, "connections that are open at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  serve
      .add_option("--request-seconds", limits.request_seconds,
                  "an answer that is not whole by then is cancelled (0: none is)")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  serve
      .add_option("--stall-seconds", limits.stall_seconds,
                  "a client that reads nothing for so long is cut off")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
}

void add_network(CLI::App& serve, ServeArguments& arguments) {
  const OptionSection section(serve, "Network");
  vitrine::HttpOptions& http = arguments.http;
  serve.add_option("--host", http.host, "address to listen on")->capture_default_str();
  serve.add_option("--port", http.port, "port; 0: one that is free")->capture_default_str();
  serve.add_option("--api-key-file", arguments.key_file,
                   "file of keys, a line each: KEY, TENANT KEY, or auditor KEY");
  serve.add_option("--api-key", arguments.api_keys,
                   "a key; others on this machine can see it (may be given again)");
  serve.add_option("--allowed-host", http.hosts,
                   "a name that clients may call this machine by (without keys others are refused; "
                   "may be given again)");
  serve.add_option("--cors-origin", http.cors_origins,
                   "an origin whose pages may ask; *: any (may be given again)");
  serve.add_option("--tls-cert", http.tls_cert, "certificate chain, PEM");
  serve.add_option("--tls-key", http.tls_key, "its key, PEM");
  serve.add_flag("--metrics", http.has_metrics, "answer GET /metrics (Prometheus)");
  serve.add_flag("--slots", http.has_slots, "answer GET /slots");
}

void add_audit(CLI::App& serve, ServeArguments& arguments) {
  const OptionSection section(serve, "Accounts");
  serve.add_option("--audit-dir", arguments.audit_dir,
                   "folder for a sealed log of each request, named by a random id that the reply's "
                   "header x-vitrine-audit-id tells");
  serve
      .add_option("--audit-mode", arguments.audit_mode,
                  "none: nothing is recorded; deferred: for logs, and for replies that tell of it")
      ->check(CLI::IsMember({"none", "deferred"}))
      ->capture_default_str();
  serve.add_option("--seal", arguments.seal, "Ed25519 secret key that signs the logs");
  serve.add_option("--encrypt-for", arguments.encrypt_for,
                   "encrypt the logs for this public key, or only some columns of them "
                   "(KEYFILE.pub:COLUMNS); may be given again");
  serve
      .add_option("--redact", arguments.redact,
                  "never write these, with commas: prompt, or whole columns of the logs")
      ->delimiter(',');
  serve.add_flag("--durable", arguments.durable, "sync each page of a log to the disk");
  serve
      .add_option("--audit-when-behind", arguments.when_behind,
                  "a log that falls behind: wait, drop (and count what is lost) or spill")
      ->check(CLI::IsMember({"wait", "drop", "spill"}))
      ->capture_default_str();
  serve
      .add_option("--audit-on-error", arguments.on_error,
                  "a log that cannot be written: fail (its request), or degrade (count what is "
                  "lost)")
      ->check(CLI::IsMember({"fail", "degrade"}))
      ->capture_default_str();
}

}  // namespace

void add_serve(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* serve =
      app.add_subcommand("serve", "Answers HTTP requests as OpenAI's interface has them");
  serve
      ->add_option("model,-m,--model", arguments->models,
                   "folder of a model, a .gguf file or a federation's .json file, or NAME=PATH; "
                   "further ones are answered for by their names, and each has an equal part of "
                   "--kv-bytes (-m may be given again)")
      ->required()
      ->check(not_empty());
  serve
      ->add_option("--streams", arguments->streams,
                   "requests that are answered at once, by each model")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  serve
      ->add_option("-c,--context", arguments->context,
                   "positions of a prompt and its answer (default: the model's own limit, at most "
                   "8192)")
      ->check(CLI::Range(1, 1 << 24));
  serve->add_option(
      "--alias", arguments->alias,
      "what the first model is called (default: NAME, or its file's or folder's name)");
  serve->add_flag(
      "--strict-model", arguments->http.strict_model,
      "refuse requests for a model of another name; so does a server of several models");
  serve
      ->add_option(
          "--chat-template", arguments->chat_template,
          "a chat template in place of the first model's own: a file (Jinja), the name of a "
          "built-in one (chatml, llama3, gemma, …), or the template itself")
      ->check(not_empty());
  serve->add_option(
      "--adapter", arguments->adapters,
      "folder of an adapter (PEFT) of the first model that requests may name as their "
      "model by the folder's name; may be given again");
  serve->add_option("--policy", arguments->policy, "who goes next of those that wait")
      ->check(CLI::IsMember(vitrine::serve_policy_names()))
      ->capture_default_str();
  serve
      ->add_option("--step-ms", arguments->step_ms,
                   "gap between two tokens that prompts of others may cause (default: twice a "
                   "step without prompts, or 20 ms)")
      ->check(CLI::Range(0.0, 1e6));
  std::vector<std::string> drafters = vitrine::drafter_names();
  drafters.insert(drafters.begin(), "auto");
  serve
      ->add_option("--speculate", arguments->drafter,
                   "who guesses ahead; auto: suffix, where a step has room for guesses")
      ->check(CLI::IsMember(drafters));
  serve->add_flag("--no-cache", arguments->no_cache, "keep no prefixes");
  CLI::Option* store =
      serve
          ->add_option("--prefix-store", arguments->prefix_store,
                       "folder for computed beginnings of prompts, which the next server begins "
                       "with; a tenant's are encrypted with its key")
          ->check(not_empty());
  serve
      ->add_option("--prefix-store-bytes", arguments->prefix_store_bytes,
                   "bytes of its files; those that were used least recently give way")
      ->transform(size_above_zero())
      ->transform(CLI::AsSizeValue(false))
      ->default_str("4GiB")
      ->needs(store);
  serve->add_flag("--no-logprobs", arguments->no_logprobs,
                  "refuse requests for log-probabilities; steps copy no logits then");
  CLI::Option* embeddings =
      serve->add_flag("--embeddings", arguments->embeddings,
                      "answer /v1/embeddings, for which the first model is opened a second time");
  serve
      ->add_option("--pooling", arguments->pooling,
                   "what becomes of a text's hidden states: none keeps each token's")
      ->check(CLI::IsMember({"none", "mean", "last", "cls"}))
      ->needs(embeddings)
      ->capture_default_str();
  serve
      ->add_option("--drain-seconds", arguments->drain_seconds,
                   "how long answers under way may go on after SIGTERM or Ctrl-C")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  serve->add_flag("-q,--quiet", arguments->quiet, "nothing on standard error");
  add_audit(*serve, *arguments);
  add_network(*serve, *arguments);
  arguments->events.add_to(*serve);
  add_limits(*serve, arguments->http.limits);
  arguments->device.add_to(*serve);
  serve->callback(
      [arguments, &command] { command = [arguments] { return run_serve(*arguments); }; });
}

}  // namespace cli
