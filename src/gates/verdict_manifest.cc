// SPDX-License-Identifier: Apache-2.0
#include "vitrine/verdict_manifest.h"

#include <sodium.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "audit/dsse.h"
#include "audit/manifest.h"
#include "core/json_text.h"
#include "core/sha256.h"
#include "gates/statement_fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

namespace {

using Json = nlohmann::ordered_json;
using gates::StatementFields;

/// A type needs a URI that nobody else can mean; the UUID is of this major version.
constexpr char kPredicateType[] =
    "urn:uuid:6b1f3a52-2c0e-4d7e-9b8e-5f0c7a91d3e4#vitrine-verdict-v1";
constexpr size_t kMostManifestBytes = size_t{8} << 20;

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

Json bound_evaluation(const Evaluation& evaluation) {
  return {{"name", file_name(evaluation.path)},
          {"digest", {{"sha256", evaluation.sha256}}},
          {"items", evaluation.items.size()},
          {"target", Json::parse(evaluation.target_json)}};
}

/// The candidate's results, and the files of its model where they are known.
Json subjects(const Evaluation& candidate) {
  Json list = Json::array();
  list.push_back({{"name", file_name(candidate.path)}, {"digest", {{"sha256", candidate.sha256}}}});
  const Json target = Json::parse(candidate.target_json);
  const auto files = target.find("sha256");
  if (files == target.end() || !files->is_object()) return list;
  for (const auto& [name, hash] : files->items()) {
    if (hash.is_string()) list.push_back({{"name", name}, {"digest", {{"sha256", hash}}}});
  }
  return list;
}

Json statement(const GateFile& gate, const Evaluation& baseline, const Evaluation& candidate,
               std::span<const Evaluation> noise, const SealKey& key) {
  const Verdict verdict = run_gate(gate, baseline, candidate, noise);
  Json perturbed = Json::array();
  for (const Evaluation& one : noise) perturbed.push_back(bound_evaluation(one));
  return {
      {"_type", audit::kStatementType},
      {"subject", subjects(candidate)},
      {"predicateType", kPredicateType},
      {"predicate",
       {{"schema", "vitrine.verdict/1"},
        {"publicKey", public_key_text(key.public_key())},
        {"engine", {{"build", engine_build()}}},
        {"suite",
         {{"name", baseline.suite},
          {"version", baseline.suite_version},
          {"digest", {{"sha256", baseline.suite_digest}}}}},
        {"gate", {{"name", gate.name}, {"digest", {{"sha256", gate.sha256}}}, {"text", gate.text}}},
        {"baseline", bound_evaluation(baseline)},
        {"candidate", bound_evaluation(candidate)},
        {"noise", perturbed},
        {"verdict", Json::parse(verdict_json(verdict))}}}};
}

void expect_evaluation(const StatementFields& statement, const std::string& pointer,
                       const Evaluation& evaluation) {
  const std::string digest = statement.text(pointer + "/digest/sha256");
  if (digest == evaluation.sha256) return;
  statement.refuse(pointer + "/digest/sha256", digest,
                   evaluation.sha256 + ", which " + evaluation.path + " has");
}

/// Reads the key that a statement names, in hexadecimal.
PublicKey named_key(const StatementFields& statement) {
  const std::string& text = statement.text("/predicate/publicKey");
  if (!is_hex_of_32_bytes(text)) {
    statement.refuse("/predicate/publicKey", quote_text(text), "64 hexadecimal digits");
  }
  PublicKey key{};
  sodium_hex2bin(key.data(), key.size(), text.data(), text.size(), nullptr, nullptr, nullptr);
  return key;
}

}  // namespace

std::string seal_verdict(const GateFile& gate, const Evaluation& baseline,
                         const Evaluation& candidate, std::span<const Evaluation> noise,
                         const SealKey& key) {
  const std::string payload = statement(gate, baseline, candidate, noise, key)
                                  .dump(-1, ' ', false, Json::error_handler_t::replace);
  return audit::seal_envelope(audit::kStatementMediaType, payload, key) + "\n";
}

VerifiedVerdict verify_verdict(const std::string& manifest, const std::string& baseline,
                               const std::string& candidate, std::span<const std::string> noise,
                               const std::optional<PublicKey>& key) {
  const std::string text = read_text_file(manifest, kMostManifestBytes);
  const audit::Envelope envelope = audit::parse_envelope(text, manifest);
  if (envelope.payload_type != audit::kStatementMediaType) {
    throw Error(ErrorKind::kBadFile, manifest + ": 'payloadType' is " +
                                         quote_text(envelope.payload_type) + "; expected " +
                                         audit::kStatementMediaType);
  }
  const nlohmann::json payload = parse_json_object(envelope.payload, manifest);
  const StatementFields statement(payload, manifest, /*root=*/"/");
  statement.expect("/_type", audit::kStatementType);
  statement.expect("/predicateType", kPredicateType);
  VerifiedVerdict verified;
  verified.is_given_key = key.has_value();
  verified.signer = key ? *key : named_key(statement);
  if (!envelope.is_signed_by(verified.signer)) {
    throw Error(ErrorKind::kBadFile, manifest + ": 'signatures' has none by " +
                                         public_key_text(verified.signer) +
                                         "; expected one over the statement as it stands");
  }
  const Evaluation base = read_evaluation(baseline), cand = read_evaluation(candidate);
  expect_evaluation(statement, "/predicate/baseline", base);
  expect_evaluation(statement, "/predicate/candidate", cand);
  const size_t num_noise = statement.list("/predicate/noise").size();
  if (num_noise != noise.size()) {
    statement.refuse("/predicate/noise", "a list of " + std::to_string(num_noise),
                     std::to_string(noise.size()) + ", as many as were given");
  }
  std::vector<Evaluation> perturbed;
  for (size_t i = 0; i < noise.size(); ++i) {
    perturbed.push_back(read_evaluation(noise[i]));
    expect_evaluation(statement, "/predicate/noise/" + std::to_string(i), perturbed.back());
  }
  verified.gate = GateFile::parse(statement.text("/predicate/gate/text"), manifest);
  statement.expect("/predicate/gate/digest/sha256", verified.gate.sha256);
  verified.verdict = run_gate(verified.gate, base, cand, perturbed);
  const nlohmann::json& found = statement.at("/predicate/verdict", "a verdict");
  if (found != nlohmann::json::parse(verdict_json(verified.verdict))) {
    statement.refuse(
        "/predicate/verdict", "another one than the records give",
        std::string(gate_outcome_name(verified.verdict.outcome)) + ", computed again from them");
  }
  return verified;
}

}  // namespace vitrine
