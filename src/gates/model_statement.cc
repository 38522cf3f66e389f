// SPDX-License-Identifier: Apache-2.0
#include "model_statement.h"

#include <sodium.h>

#include <filesystem>
#include <set>

#include "audit/dsse.h"
#include "audit/manifest.h"
#include "core/json_text.h"
#include "core/sha256.h"
#include "model_files.h"
#include "statement_fields.h"

namespace vitrine::gates {

namespace {

using Json = nlohmann::ordered_json;
using Pointer = nlohmann::json::json_pointer;
using Fields = StatementFields;

constexpr char kBundleMediaType[] = "application/vnd.dev.sigstore.bundle.v0.3+json";
constexpr char kPredicateType[] = "https://model_signing/signature/v1.0";
constexpr char kMethod[] = "files";
constexpr char kHash[] = "sha256";
constexpr size_t kMaxValues = size_t{4} << 20;  // about a million files

/// The digest over the files' digests, as bytes.
std::string root_digest(const std::vector<SignedFile>& files) {
  Sha256 hash;
  for (const SignedFile& file : files) {
    Sha256Digest digest;
    sodium_hex2bin(digest.data(), digest.size(), file.sha256.data(), file.sha256.size(), nullptr,
                   nullptr, nullptr);
    hash.update(digest);
  }
  return hex(hash.finish());
}

/// Whether a name is one that stays within the model, in the one form that it has.
bool is_name(const std::string& name) {
  if (name == kOnlyFile) return true;
  if (name.empty() || name.front() == '/' || name.back() == '/') return false;
  if (name.find('\0') != std::string::npos) return false;
  for (const std::filesystem::path& part : std::filesystem::path(name)) {
    if (part == "." || part == "..") return false;
  }
  return name.find("//") == std::string::npos;
}

void expect_digest(const Fields& fields, const std::string& path) {
  const std::string& digest = fields.text(path);
  if (!is_hex_of_32_bytes(digest)) {
    fields.refuse(path, quote_text(digest), "64 lower-case hexadecimal digits");
  }
}

void read_files(const Fields& fields, SignedModel& model) {
  const std::string path = "/predicate/resources";
  const size_t count = fields.list(path).size();
  if (count == 0) fields.refuse(path, "empty", "one entry a file");
  std::set<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    const std::string place = path + "/" + std::to_string(i);
    const std::string& name = fields.text(place + "/name");
    if (!is_name(name)) {
      fields.refuse(place + "/name", quote_text(name), "a path within the model");
    }
    if (!names.insert(name).second) {
      fields.refuse(place + "/name", quote_text(name) + " for the second time", "each file once");
    }
    fields.expect(place + "/algorithm", kHash);
    expect_digest(fields, place + "/digest");
    model.files.push_back({name, fields.text(place + "/digest")});
  }
  if (count > 1 && names.contains(kOnlyFile)) {
    fields.refuse(path, "a list of " + std::to_string(count) + " with '.'",
                  "'.' alone, which is a model of one file");
  }
}

void read_serialization(const Fields& fields, SignedModel& model) {
  const std::string path = "/predicate/serialization";
  fields.expect(path + "/method", kMethod);
  fields.expect(path + "/hash_type", kHash);
  const nlohmann::json& links = fields.at(path + "/allow_symlinks", "true or false");
  if (!links.is_boolean()) {
    fields.refuse(path + "/allow_symlinks", found_text(links), "true or false");
  }
  const Pointer place(path);
  if (!fields.at(path, "an object").contains("ignore_paths")) return;
  const size_t count = fields.list(path + "/ignore_paths").size();
  IgnoredPaths ignored;
  for (size_t i = 0; i < count; ++i) {
    const std::string entry = path + "/ignore_paths/" + std::to_string(i);
    const std::string& name = fields.text(entry);
    if (!ignored.add(name)) fields.refuse(entry, quote_text(name), "a path within the model");
  }
  model.ignored = ignored.paths();
}

SignedModel read_statement(const nlohmann::json& json, const std::string& file) {
  const Fields fields(json, file);
  fields.expect("/_type", audit::kStatementType);
  fields.expect("/predicateType", kPredicateType);
  const size_t subjects = fields.list("/subject").size();
  if (subjects != 1) {
    fields.refuse("/subject", "a list of " + std::to_string(subjects), "one subject, the model");
  }
  SignedModel model;
  model.name = fields.text("/subject/0/name");
  expect_digest(fields, "/subject/0/digest/sha256");
  model.root = fields.text("/subject/0/digest/sha256");
  read_serialization(fields, model);
  read_files(fields, model);
  if (const std::string root = root_digest(model.files); root != model.root) {
    fields.refuse("/subject/0/digest/sha256", model.root,
                  root + ", the digest over those of 'predicate/resources'");
  }
  return model;
}

/// Checks that the bundle is signed with a bare key, and which.
void check_material(const Fields& fields, const std::string& hint) {
  const std::string path = "/verificationMaterial";
  const nlohmann::json& material = fields.at(path, "an object");
  for (const char* name : {"certificate", "x509CertificateChain"}) {
    if (!material.is_object() || !material.contains(name)) continue;
    fields.refuse(path, std::string("of the kind ") + name,
                  "of the kind publicKey: what an identity or a certificate signed is checked by "
                  "PyPI's model-signing");
  }
  const nlohmann::json& key = fields.at(path + "/publicKey", "an object");
  // Older versions of model-signing do not say which key it is.
  if (!key.is_object() || !key.contains("hint") || key["hint"].is_null()) return;
  const std::string& found = fields.text(path + "/publicKey/hint");
  if (!found.empty() && found != hint) {
    fields.refuse(path + "/publicKey/hint", quote_text(found),
                  "'" + hint + "', the SHA-256 of the public key given");
  }
}

}  // namespace

std::string model_statement(SignedModel& model, bool allows_links) {
  Json resources = Json::array();
  for (const SignedFile& file : model.files) {
    resources.push_back({{"name", file.name}, {"algorithm", kHash}, {"digest", file.sha256}});
  }
  model.root = root_digest(model.files);
  Json serialization = {
      {"method", kMethod}, {"hash_type", kHash}, {"allow_symlinks", allows_links}};
  if (!model.ignored.empty()) serialization["ignore_paths"] = model.ignored;
  const Json subject = {{"name", model.name}, {"digest", {{kHash, model.root}}}};
  const Json statement = {
      {"_type", audit::kStatementType},
      {"subject", Json::array({subject})},
      {"predicateType", kPredicateType},
      {"predicate", {{"serialization", serialization}, {"resources", resources}}}};
  return statement.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sign_statement(const std::string& statement, const EcKey& key) {
  const std::string message =
      audit::pre_authentication_encoding(audit::kStatementMediaType, statement);
  const std::string envelope =
      audit::envelope_text(audit::kStatementMediaType, statement, "", key.sign(message));
  const Json bundle = {{"mediaType", kBundleMediaType},
                       {"verificationMaterial",
                        {{"publicKey", {{"hint", key.hint()}}}, {"tlogEntries", Json::array()}}},
                       {"dsseEnvelope", Json::parse(envelope)}};
  return bundle.dump() + "\n";
}

SignedModel read_signed_model(const std::string& bundle, const EcKey& key,
                              const std::string& file) {
  const nlohmann::json json = parse_json_object(bundle, file, kMaxValues);
  const Fields fields(json, file);
  fields.expect("/mediaType", kBundleMediaType);
  check_material(fields, key.hint());
  const nlohmann::json& inner = fields.at("/dsseEnvelope", "an object");
  if (!inner.is_object()) fields.refuse("/dsseEnvelope", found_text(inner), "an object");
  const audit::Envelope envelope = audit::parse_envelope(inner.dump(), file);
  if (envelope.payload_type != audit::kStatementMediaType)
    fields.expect("/dsseEnvelope/payloadType", audit::kStatementMediaType);
  if (envelope.signatures.size() != 1) {
    fields.refuse("/dsseEnvelope/signatures",
                  "a list of " + std::to_string(envelope.signatures.size()), "one signature");
  }
  // Nothing in the payload counts before this.
  if (!key.is_signature(
          audit::pre_authentication_encoding(audit::kStatementMediaType, envelope.payload),
          envelope.signatures[0])) {
    fields.refuse("/dsseEnvelope/signatures/0/sig", "no signature over the payload as it stands",
                  "one by the key " + key.hint());
  }
  SignedModel model = read_statement(parse_json_object(envelope.payload, file, kMaxValues), file);
  model.key = key.hint();
  model.curve = key.curve();
  return model;
}

bool is_bundle(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() && json.contains("mediaType") && json["mediaType"] == kBundleMediaType;
}

}  // namespace vitrine::gates
