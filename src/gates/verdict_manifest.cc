// SPDX-License-Identifier: Apache-2.0
#include "vitrine/verdict_manifest.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "audit/dsse.h"
#include "core/json_text.h"
#include "evaluation/result_file.h"

namespace vitrine {

namespace {

using Json = nlohmann::ordered_json;

constexpr char kStatementMediaType[] = "application/vnd.in-toto+json";
constexpr char kStatementType[] = "https://in-toto.io/Statement/v1";
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
      {"_type", kStatementType},
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

/// A statement's fields, by their paths.
class Statement {
 public:
  Statement(nlohmann::json json, std::string file)
      : json_(std::move(json)), file_(std::move(file)) {}

  std::string text(const std::string& pointer) const {
    const nlohmann::json& value = at(pointer);
    if (!value.is_string()) refuse(pointer, found_text(value), "a text");
    return value.get<std::string>();
  }
  const nlohmann::json& at(const std::string& pointer) const {
    const nlohmann::json::json_pointer place(pointer);
    if (!json_.contains(place)) refuse(pointer, "nothing", "a value");
    return json_.at(place);
  }
  void expect(const std::string& pointer, const std::string& expected) const {
    const std::string found = text(pointer);
    if (found != expected) refuse(pointer, quote_text(found), quote_text(expected));
  }
  [[noreturn]] void refuse(const std::string& pointer, const std::string& found,
                           const std::string& expected) const {
    throw Error(ErrorKind::kBadFile,
                file_ + ": '" + pointer + "' is " + found + "; expected " + expected);
  }

 private:
  const nlohmann::json json_;
  const std::string file_;
};

void expect_evaluation(const Statement& statement, const std::string& pointer,
                       const Evaluation& evaluation) {
  const std::string digest = statement.text(pointer + "/digest/sha256");
  if (digest == evaluation.sha256) return;
  statement.refuse(pointer + "/digest/sha256", digest,
                   evaluation.sha256 + ", which " + evaluation.path + " has");
}

/// Reads the key that a statement names, in hexadecimal.
PublicKey named_key(const Statement& statement) {
  const std::string text = statement.text("/predicate/publicKey");
  PublicKey key{};
  const bool is_hex = text.size() == 2 * key.size() &&
                      text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex) {
    statement.refuse("/predicate/publicKey", quote_text(text), "64 hexadecimal digits");
  }
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return key;
}

}  // namespace

std::string seal_verdict(const GateFile& gate, const Evaluation& baseline,
                         const Evaluation& candidate, std::span<const Evaluation> noise,
                         const SealKey& key) {
  const std::string payload = statement(gate, baseline, candidate, noise, key)
                                  .dump(-1, ' ', false, Json::error_handler_t::replace);
  return audit::seal_envelope(kStatementMediaType, payload, key) + "\n";
}

VerifiedVerdict verify_verdict(const std::string& manifest, const std::string& baseline,
                               const std::string& candidate, std::span<const std::string> noise,
                               const std::optional<PublicKey>& key) {
  const std::string text = evaluation::read_whole_file(manifest);
  if (text.size() > kMostManifestBytes) {
    throw Error(ErrorKind::kBadFile, manifest + ": has " + std::to_string(text.size()) +
                                         " bytes; expected a manifest of 8 MiB at most");
  }
  const audit::Envelope envelope = audit::parse_envelope(text, manifest);
  if (envelope.payload_type != kStatementMediaType) {
    throw Error(ErrorKind::kBadFile, manifest + ": 'payloadType' is " +
                                         quote_text(envelope.payload_type) + "; expected " +
                                         kStatementMediaType);
  }
  const Statement statement(parse_json_object(envelope.payload, manifest), manifest);
  statement.expect("/_type", kStatementType);
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
  const size_t num_noise = statement.at("/predicate/noise").size();
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
  const nlohmann::json found = statement.at("/predicate/verdict");
  if (found != nlohmann::json::parse(verdict_json(verified.verdict))) {
    statement.refuse(
        "/predicate/verdict", "another one than the records give",
        std::string(gate_outcome_name(verified.verdict.outcome)) + ", computed again from them");
  }
  return verified;
}

}  // namespace vitrine
