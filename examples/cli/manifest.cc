// SPDX-License-Identifier: Apache-2.0
// vitrine manifest verify: a gate's signed verdict, or a signed folder, checked without a model.
#include <fmt/format.h>

#include <ctime>
#include <filesystem>

#include "common.h"
#include "manifest_drift.h"
#include "vitrine/compression_manifest.h"
#include "vitrine/verdict_manifest.h"

namespace cli {

namespace {

struct ManifestArguments {
  std::string manifest, baseline, candidate, key;
  std::vector<std::string> noise;
};

constexpr int kExpired = 3;  // exit code, as of a gate that refuses

std::string signer_text(const vitrine::PublicKey& signer, bool is_given) {
  return fmt::format("signed by {}{}", vitrine::public_key_text(signer),
                     is_given ? ", the key that was given" : ", the key that it names itself");
}

int verify_folder(const std::string& folder, const std::optional<vitrine::PublicKey>& key) {
  const vitrine::VerifiedCompression verified =
      vitrine::verify_compression(folder, key, std::time(nullptr));
  write_out(fmt::format("{}: {}; {} files are as they were signed\n", folder,
                        signer_text(verified.signer, verified.is_given_key),
                        verified.files.size()));
  if (verified.is_expired) {
    write_note(fmt::format("{}: expired: it held until {}; expected one calibrated anew", folder,
                           verified.expires));
    return kExpired;
  }
  if (!verified.expires.empty()) write_out(fmt::format("expires: {}\n", verified.expires));
  return 0;
}

int run_verify(const ManifestArguments& arguments) {
  std::optional<vitrine::PublicKey> key;
  if (!arguments.key.empty()) key = vitrine::load_public_key(arguments.key);
  std::error_code error;
  if (std::filesystem::is_directory(arguments.manifest, error)) {
    if (!arguments.baseline.empty() || !arguments.noise.empty()) {
      refuse("a folder is verified by itself; expected no results beside it");
    }
    return verify_folder(arguments.manifest, key);
  }
  if (arguments.candidate.empty()) {
    refuse(
        fmt::format("{}: a verdict is verified with its results; expected baseline and "
                    "candidate, or a folder that `quantize --seal` made",
                    arguments.manifest));
  }
  const vitrine::VerifiedVerdict verified = vitrine::verify_verdict(
      arguments.manifest, arguments.baseline, arguments.candidate, arguments.noise, key);
  write_out(fmt::format("{}: {}\n", arguments.manifest,
                        signer_text(verified.signer, verified.is_given_key)));
  write_out(verified.verdict.text());
  return verified.verdict.exit_code();
}

}  // namespace

void add_manifest(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<ManifestArguments>();
  CLI::App* manifest = app.add_subcommand(
      "manifest", "Checks what `gate --seal` and `quantize --seal` signed, and whether it holds");
  manifest->require_subcommand(1);
  add_manifest_drift(*manifest, command);
  CLI::App* verify = manifest->add_subcommand(
      "verify",
      "Computes a verdict again from the records, without a model; exits as gate does, and with 2 "
      "where signature, files or verdict do not fit. Of a folder that was quantized: checks the "
      "signature and each file, and exits with 3 where it has expired");
  verify
      ->add_option("manifest", arguments->manifest,
                   "what `gate --seal` wrote, or a folder that `quantize --seal` made")
      ->required()
      ->check(not_empty());
  verify->add_option("baseline", arguments->baseline, "the baseline's results, of a verdict")
      ->check(not_empty());
  verify->add_option("candidate", arguments->candidate, "the candidate's results, of a verdict")
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
