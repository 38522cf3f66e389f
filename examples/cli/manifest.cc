// SPDX-License-Identifier: Apache-2.0
// vitrine manifest verify: a gate's signed verdict, checked without a model.
#include <fmt/format.h>

#include "common.h"
#include "vitrine/verdict_manifest.h"

namespace cli {

namespace {

struct ManifestArguments {
  std::string manifest, baseline, candidate, key;
  std::vector<std::string> noise;
};

int run_verify(const ManifestArguments& arguments) {
  std::optional<vitrine::PublicKey> key;
  if (!arguments.key.empty()) key = vitrine::load_public_key(arguments.key);
  const vitrine::VerifiedVerdict verified = vitrine::verify_verdict(
      arguments.manifest, arguments.baseline, arguments.candidate, arguments.noise, key);
  write_out(fmt::format(
      "{}: signed by {}{}\n", arguments.manifest, vitrine::public_key_text(verified.signer),
      verified.is_given_key ? ", the key that was given" : ", the key that it names itself"));
  write_out(verified.verdict.text());
  return verified.verdict.exit_code();
}

}  // namespace

void add_manifest(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<ManifestArguments>();
  CLI::App* manifest = app.add_subcommand("manifest", "Checks what `gate --seal` signed");
  manifest->require_subcommand(1);
  CLI::App* verify = manifest->add_subcommand(
      "verify",
      "Computes a verdict again from the records, without a model; exits as gate does, and with 1 "
      "where signature, files or verdict do not fit");
  verify->add_option("manifest", arguments->manifest, "what `gate --seal` wrote")
      ->required()
      ->check(not_empty());
  verify->add_option("baseline", arguments->baseline, "the baseline's results")
      ->required()
      ->check(not_empty());
  verify->add_option("candidate", arguments->candidate, "the candidate's results")
      ->required()
      ->check(not_empty());
  verify
      ->add_option("--noise", arguments->noise,
                   "results of noise, in the order in which the gate was given them")
      ->check(not_empty());
  verify
      ->add_option("--key", arguments->key,
                   "public key (KEYFILE.pub) that must have signed it; without, the key that it "
                   "names vouches for itself alone")
      ->check(not_empty());
  verify->callback(
      [arguments, &command] { command = [arguments] { return run_verify(*arguments); }; });
}

}  // namespace cli
