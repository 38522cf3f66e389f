// SPDX-License-Identifier: Apache-2.0
// The command line of `vitrine audit`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "audit.h"

namespace cli {

namespace {

/// The column groups that can be left out, by the names of VtrRedaction::groups.
const std::vector<std::string>& column_names() {
  static const std::vector<std::string> names = {
      "tokens",   "text",         "prediction",    "routing",    "norms",
      "digests",  "router_probs", "attribution",   "sampler",    "constraint",
      "failures", "drafts",       "hidden_states", "federation", "counters"};
  return names;
}

void add_log_path(CLI::App& to, AuditArguments& arguments) {
  to.add_option("run", arguments.run, "the log: .vtr or .json")->required();
}

void add_decryption(CLI::App& to, AuditArguments& arguments) {
  to.add_option("--decrypt", arguments.decrypt,
                "secret key of a recipient, for a log that is encrypted (generate --encrypt-for)");
  // A replay has a --strict of its model, which covers keys, too.
  if (to.get_name() != "replay") add_strict(to, arguments.is_strict);
}

void add_text_model(CLI::App& to, AuditArguments& arguments) {
  to.add_option("-m,--model", arguments.model,
                "folder of the model, for the tokens' text (default: the one the log names)");
}

void add_memory_limit(CLI::App& to, AuditArguments& arguments) {
  to.add_option("--max-memory", arguments.most_bytes,
                "refuse a .vtr log whose records take more memory (default: half of the "
                "machine's)")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_above_zero());
}

void add_keygen_options(CLI::App& to, AuditArguments& arguments) {
  to.add_option("keyfile", arguments.key,
                "the secret key's file; the public half goes to KEYFILE.pub")
      ->required();
}

void add_verify_options(CLI::App& to, AuditArguments& arguments) {
  add_log_path(to, arguments);
  add_decryption(to, arguments);
  to.add_option("--key", arguments.key, "the public key (KEYFILE.pub) it must be sealed with");
  to.add_option("-m,--model", arguments.model,
                "folder, .gguf or federation file whose hashes must be those in the log");
  to.add_flag("--require-unredacted", arguments.requires_unredacted,
              "exit code 1, too, where any column was left out, in whole or in part, or is "
              "encrypted and was not opened");
  to.add_option("--require", arguments.required,
                "the same of these columns alone, with commas, and where the log never had "
                "one of them; names as of audit redact --columns")
      ->delimiter(',')
      ->check(CLI::IsMember(column_names()));
  to.add_flag("--json", arguments.json, "one JSON object instead of text");
}

void add_manifest_options(CLI::App& to, AuditArguments& arguments) {
  to.add_option("run", arguments.run, "the log: .vtr")->required();
  to.add_option("--seal", arguments.key, "the secret key that sealed the log")->required();
  add_strict(to, arguments.is_strict);
  to.add_option("--out", arguments.out,
                "the file, or - for standard output (default: RUN.manifest.json)");
}

void add_show_options(CLI::App& to, AuditArguments& arguments) {
  add_log_path(to, arguments);
  add_decryption(to, arguments);
  add_memory_limit(to, arguments);
  add_text_model(to, arguments);
  to.add_option("--position", arguments.position, "the whole account of one position")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  to.add_option("-n,--limit", arguments.limit, "how many tokens at most; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
}

void add_top_options(CLI::App& to, AuditArguments& arguments) {
  add_log_path(to, arguments);
  add_decryption(to, arguments);
  add_memory_limit(to, arguments);
  add_text_model(to, arguments);
  arguments.limit = 10;
  to.add_option("--expert", arguments.expert, "only this one: LAYER:EXPERT");
  to.add_option("-n,--limit", arguments.limit, "how many")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
}

void add_stats_options(CLI::App& to, AuditArguments& arguments) {
  add_log_path(to, arguments);
  add_decryption(to, arguments);
  add_memory_limit(to, arguments);
  to.add_flag("--json", arguments.json, "one JSON object instead of text");
}

void add_diff_options(CLI::App& to, AuditArguments& arguments) {
  add_log_path(to, arguments);
  add_decryption(to, arguments);
  add_memory_limit(to, arguments);
  to.add_option("other", arguments.other, "the other log")->required();
  add_text_model(to, arguments);
}

void add_redact_options(CLI::App& to, AuditArguments& arguments) {
  to.add_option("run", arguments.run, "the log: .vtr")->required();
  to.add_option("out", arguments.out, "the log to make")->check(not_empty())->required();
  add_decryption(to, arguments);
  to.add_option("--columns", arguments.columns,
                fmt::format("what to leave out, with commas: {}", fmt::join(column_names(), ", ")))
      ->delimiter(',')
      ->required();
  to.add_flag("--overwrite", arguments.overwrite,
              "replace a log of that name, and its manifest; without, it is refused");
  to.add_option("--positions", arguments.positions, "only there: FIRST-LAST (default: everywhere)");
}

void add_replay_options(CLI::App& to, AuditArguments& arguments) {
  add_log_path(to, arguments);
  add_decryption(to, arguments);
  add_memory_limit(to, arguments);
  to.add_option("-m,--model", arguments.model,
                "folder or .gguf file of the model (default: the one the log names)");
  to.add_flag("--force-routes", arguments.force_routes,
              "run the recorded experts in place of the router's choice; with --model also "
              "on another model, to tell routing drift from weight drift");
  arguments.device.device.clear();  // empty: as the log says
  arguments.device.rope_frequencies.clear();
  arguments.device.kv_type.clear();
  arguments.device.activation_type.clear();
  arguments.device.add_to(to);
  to.add_flag("--json", arguments.json, "one JSON object instead of text");
}

void add_export_options(CLI::App& to, AuditArguments& arguments) {
  add_log_path(to, arguments);
  add_decryption(to, arguments);
  add_memory_limit(to, arguments);
  add_text_model(to, arguments);
  to.add_flag("--json", arguments.json, "JSON, schema vitrine.audit/1");
  to.add_flag("--html", arguments.html, "one page that needs no network");
  to.add_flag("--parquet", arguments.parquet, "tables in the folder --out, for SQL and pandas");
  to.add_option("--out", arguments.out, "the file (default: standard output), or the folder");
  to.add_option("--parquet-key", arguments.parquet_key,
                "encrypt the tables with the AES key in this file (32, 48 or 64 hexadecimal "
                "digits)");
  to.add_option("--parquet-text-key", arguments.parquet_text_key,
                "… and the columns that tell the text with this one instead");
}

}  // namespace

void add_audit(CLI::App& app, Command& command) {
  CLI::App* audit = app.add_subcommand("audit", "Shows, checks and exports recorded runs");
  audit->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const AuditArguments&),
                       void (*add_options)(CLI::App&, AuditArguments&)) {
    auto arguments = std::make_shared<AuditArguments>();
    CLI::App* subcommand = audit->add_subcommand(name, help);
    add_options(*subcommand, *arguments);
    subcommand->callback([arguments, run, &command] {
      command = [arguments, run] {
        if (arguments->is_strict || arguments->device.strict) {
          require_private_key("--decrypt", arguments->decrypt);
        }
        return run(*arguments);
      };
    });
  };
  add("keygen", "Makes an Ed25519 key pair that seals logs", run_audit_keygen, add_keygen_options);
  add("verify", "Checks seal and completeness; exit code 0 only where both are whole",
      run_audit_verify, add_verify_options);
  add("manifest", "Makes a sealed log's manifest: an in-toto statement in a DSSE envelope",
      run_audit_manifest, add_manifest_options);
  add("show",
      "The run token by token: probability, alternatives, experts; exit code 1 where verify has it",
      run_audit_show, add_show_options);
  add("top",
      "The generated tokens that hang most on one expert, by its term of the logit, "
      "or where nothing was attributed by its gate weight",
      run_audit_top, add_top_options);
  add("stats", "Use of experts, surprise, bytes a token", run_audit_stats, add_stats_options);
  add("diff", "Compares two runs token by token; exit code 1 where they differ", run_audit_diff,
      add_diff_options);
  add("redact", "Copies a sealed log without some of its columns; the seal still holds",
      run_audit_redact, add_redact_options);
  add("replay",
      "Reruns the log with its model and compares bit for bit; exit code 1 where it differs",
      run_audit_replay, add_replay_options);
  add("export", "The run in another format", run_audit_export, add_export_options);
}

}  // namespace cli
