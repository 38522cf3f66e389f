// SPDX-License-Identifier: Apache-2.0
// vitrine model sign and verify: who vouches for a model's files, as PyPI's model-signing has it.
#include "vitrine/model_signature.h"

#include <fmt/format.h>

#include "audit_run.h"
#include "closing_note.h"
#include "common.h"

namespace cli {

namespace {

constexpr uint64_t kNotedModelBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxPassphraseBytes = 4096;
constexpr size_t kShownFiles = 5;

struct ModelArguments {
  std::string model, key, signature, passphrase_file;
  std::vector<std::string> ignored;
  bool counts_git = false, allows_links = false, ignores_unsigned = false;
  bool is_strict = false, json = false;
};

/// The first line of a file.
std::string read_passphrase(const std::string& path) {
  if (path.empty()) return "";
  const std::string text = vitrine::read_text_file(path, kMaxPassphraseBytes);
  const std::string line = text.substr(0, text.find_first_of("\r\n"));
  if (line.empty()) refuse("--passphrase-file " + path + ": is empty; expected a passphrase");
  return line;
}

vitrine::ModelSignatureOptions signature_options(const ModelArguments& arguments) {
  vitrine::ModelSignatureOptions options;
  options.ignored = arguments.ignored;
  options.ignores_git = !arguments.counts_git;
  options.allows_links = arguments.allows_links;
  options.ignores_unsigned = arguments.ignores_unsigned;
  options.passphrase = read_passphrase(arguments.passphrase_file);
  options.on_file = [](const std::string& path, uint64_t bytes) {
    if (bytes < kNotedModelBytes) return;
    write_remark(fmt::format("reading {} ({}) for its SHA-256", path, format_bytes(bytes)));
  };
  options.cancelled = &interrupt_flag();
  return options;
}

nlohmann::ordered_json model_json(const vitrine::SignedModel& model) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const vitrine::SignedFile& file : model.files) files[file.name] = file.sha256;
  return {{"name", model.name},
          {"root_sha256", model.root},
          {"key_sha256", model.key},
          {"curve", model.curve},
          {"sha256", files},
          {"ignored", model.ignored},
          {"unsigned", model.unsigned_files}};
}

std::string files_text(const vitrine::SignedModel& model) {
  return fmt::format("{} file{}, digest {}", model.files.size(), model.files.size() == 1 ? "" : "s",
                     model.root);
}

/// What is in a model beside what was signed, or empty.
std::string unsigned_text(const vitrine::SignedModel& model) {
  if (model.unsigned_files.empty()) return "";
  std::string text = fmt::format("{} not signed:", model.unsigned_files.size());
  for (size_t i = 0; i < model.unsigned_files.size() && i < kShownFiles; ++i) {
    text += (i == 0 ? " " : ", ") + plain(model.unsigned_files[i]);
  }
  return text + (model.unsigned_files.size() > kShownFiles ? " …\n" : "\n");
}

int run_sign(const ModelArguments& arguments) {
  if (arguments.is_strict) require_private_key("--key", arguments.key);
  catch_interrupts();
  const vitrine::SignedModel model = vitrine::sign_model(
      arguments.model, arguments.key, arguments.signature, signature_options(arguments));
  if (arguments.json) {
    write_json(model_json(model));
    return 0;
  }
  write_out(fmt::format("{}: the signature of {}\n{}\nkey {} ({})\n", arguments.signature,
                        arguments.model, files_text(model), model.key, model.curve));
  return 0;
}

int run_verify(const ModelArguments& arguments) {
  catch_interrupts();
  const vitrine::SignedModel model = vitrine::verify_model(
      arguments.model, arguments.signature, arguments.key, signature_options(arguments));
  if (arguments.json) {
    write_json(model_json(model));
    return 0;
  }
  write_out(
      fmt::format("{}: as it was signed under the name {}\n{}\n{}signed with the key {} ({})\n",
                  arguments.model, plain(model.name), files_text(model), unsigned_text(model),
                  model.key, model.curve));
  return 0;
}

void add_shared_options(CLI::App& to, ModelArguments& arguments) {
  to.add_option("--ignore-path", arguments.ignored,
                "leave out this file or folder, relative to the model; may be given several times")
      ->allow_extra_args(false);
  to.add_flag("--no-ignore-git-paths", arguments.counts_git,
              "count .git, .github, .gitattributes and .gitignore of the model's folder, too");
  to.add_flag("--allow-symlinks", arguments.allows_links,
              "read the files that symbolic links lead to, which are refused otherwise");
  to.add_flag("--json", arguments.json, "one JSON object instead of text");
  add_quiet(to);
}

void add_sign_options(CLI::App& to, ModelArguments& arguments) {
  add_model(to, arguments.model, "folder of the model, or a .gguf file");
  to.add_option("--key", arguments.key,
                "the private key: PEM, on the curve P-256, P-384 or P-521, as openssl makes it")
      ->required();
  to.add_option("--out", arguments.signature, "the signature's file")
      ->check(not_empty())
      ->required();
  to.add_option("--passphrase-file", arguments.passphrase_file,
                "file whose first line opens a key that is encrypted");
  add_strict(to, arguments.is_strict);
  add_shared_options(to, arguments);
}

void add_verify_options(CLI::App& to, ModelArguments& arguments) {
  add_model(to, arguments.model, "folder of the model, or a .gguf file");
  to.add_option("--signature", arguments.signature, "the signature's file")->required();
  to.add_option("--key", arguments.key, "the public key it must be signed with: PEM")->required();
  to.add_flag("--ignore-unsigned-files", arguments.ignores_unsigned,
              "files that were not signed are named and no error");
  add_shared_options(to, arguments);
}

}  // namespace

void add_model_signature(CLI::App& app, Command& command) {
  CLI::App* model = app.add_subcommand(
      "model", "Signs a model's files and checks a signature (OpenSSF Model Signing)");
  model->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const ModelArguments&),
                       void (*add_options)(CLI::App&, ModelArguments&)) {
    auto arguments = std::make_shared<ModelArguments>();
    CLI::App* subcommand = model->add_subcommand(name, help);
    add_options(*subcommand, *arguments);
    subcommand->callback(
        [arguments, run, &command] { command = [arguments, run] { return run(*arguments); }; });
  };
  add("sign", "Signs a model's folder or file with a private key", run_sign, add_sign_options);
  add("verify", "Checks a model against its signature; exit code 0 only where all of it fits",
      run_verify, add_verify_options);
}

}  // namespace cli
