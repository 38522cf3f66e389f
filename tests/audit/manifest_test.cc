// SPDX-License-Identifier: Apache-2.0
// A log's manifest: it fits its own log alone, and nothing in it can be changed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/audit/dsse.h"
#include "src/audit/manifest.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;
using nlohmann::json;

class ManifestTest : public VtrTest {
 protected:
  std::string make_log(const std::string& name = "run.vtr", int32_t tokens = 100) {
    VtrOptions options;
    options.seal = key_;
    options.page_tokens = 40;
    expected_ = write_log(at(name), four_layers(), tokens, options);
    return at(name);
  }
  /// verify_manifest()'s complaint, or "".
  std::string complaint(const std::string& log, const std::string& manifest) {
    try {
      verify_manifest(verify_vtr(log), log, manifest);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      EXPECT_EQ(std::string(error.what()).rfind(manifest, 0), 0u) << error.what();
      return error.what();
    }
  }
  /// The envelope around another statement, signed with the right key.
  std::string signed_again(const json& statement) {
    return audit::seal_envelope(audit::kStatementMediaType, statement.dump(), key_);
  }
  json statement_of(const std::string& manifest) {
    return json::parse(audit::parse_envelope(manifest, "manifest").payload);
  }

  SealKey key_ = SealKey::generate();
  std::vector<TokenRecord> expected_;
};

/// A part of the complaint that names what is wrong.
#define EXPECT_COMPLAINT(text, needle) EXPECT_NE((text).find(needle), std::string::npos) << (text)

TEST_F(ManifestTest, SaysWhatTheLogSays) {
  const std::string log = make_log();
  write_manifest(log, key_, manifest_path(log));
  EXPECT_EQ(complaint(log, manifest_path(log)), "");
  const std::string text = seal_manifest(log, key_);
  EXPECT_EQ(seal_manifest(log, key_), text) << "the same log and key, the same bytes";

  const json envelope = json::parse(text);
  EXPECT_EQ(envelope["payloadType"], "application/vnd.in-toto+json");
  EXPECT_EQ(envelope["signatures"][0]["keyid"], public_key_text(key_.public_key()));
  const json statement = statement_of(text);
  EXPECT_EQ(statement["_type"], "https://in-toto.io/Statement/v1");
  EXPECT_EQ(statement["subject"][0]["name"], "run.vtr");
  const json& run = statement["predicate"];
  const VtrReport report = verify_vtr(log);
  EXPECT_EQ(run["log"]["seal"], "complete");
  EXPECT_EQ(run["log"]["publicKey"], public_key_text(key_.public_key()));
  EXPECT_EQ(run["engine"]["build"], engine_build());
  EXPECT_EQ(run["run"]["stopReason"], "length");
  EXPECT_EQ(run["positions"]["captured"], expected_.size());
  EXPECT_EQ(run["counts"]["generated"], report.counts.generated);
  EXPECT_EQ(run["sampler"]["seed"], std::to_string(some_header().seed));
  for (const auto& [option, value] : some_header().sampler) {
    EXPECT_EQ(run["sampler"]["options"][option], value);
  }
  ASSERT_EQ(run["materials"].size(), some_header().hashes.size());
  for (size_t i = 0; i < run["materials"].size(); ++i) {
    EXPECT_EQ(run["materials"][i]["name"], some_header().hashes[i].first);
    EXPECT_EQ(run["materials"][i]["digest"]["sha256"], some_header().hashes[i].second);
  }
}

// The specification's own example.
TEST_F(ManifestTest, PreAuthenticationEncoding) {
  EXPECT_EQ(audit::pre_authentication_encoding("http://example.com/HelloWorld", "hello world"),
            "DSSEv1 29 http://example.com/HelloWorld 11 hello world");
  EXPECT_EQ(audit::pre_authentication_encoding("", ""), "DSSEv1 0  0 ");
}

TEST_F(ManifestTest, ReadsTheOtherBase64AndSeveralSignatures) {
  const std::string log = make_log();
  json envelope = json::parse(seal_manifest(log, key_));
  std::string signature = envelope["signatures"][0]["sig"];
  std::string payload = envelope["payload"];
  for (std::string* text : {&signature, &payload}) {
    std::replace(text->begin(), text->end(), '+', '-');
    std::replace(text->begin(), text->end(), '/', '_');
  }
  const std::string foreign =
      json::parse(audit::seal_envelope("x", "y", key_))["signatures"][0]["sig"];
  envelope["payload"] = payload;
  envelope["signatures"] = {{{"sig", foreign}}, {{"sig", signature}}, {{"sig", ""}}};
  write(at("m.json"), envelope.dump());
  EXPECT_EQ(complaint(log, at("m.json")), "");
  envelope["signatures"].erase(1);
  write(at("m.json"), envelope.dump());
  EXPECT_COMPLAINT(complaint(log, at("m.json")), "no signature is by the log's key");
}

TEST_F(ManifestTest, FitsItsOwnLogAlone) {
  const std::string log = make_log(), manifest = manifest_path(log);
  write_manifest(log, key_, manifest);
  const std::string other = make_log("other.vtr");
  EXPECT_COMPLAINT(complaint(other, manifest), "'subject[0].digest.");
  // A log under another name is the same log.
  std::filesystem::copy_file(log, at("renamed.vtr"));
  EXPECT_EQ(complaint(at("renamed.vtr"), manifest), "");
  // Redaction makes another file.
  redact_vtr(log, at("less.vtr"), {.groups = {"routing"}});
  EXPECT_COMPLAINT(complaint(at("less.vtr"), manifest), "'subject[0].digest.");
  write_manifest(at("less.vtr"), key_, manifest_path(at("less.vtr")));
  EXPECT_EQ(complaint(at("less.vtr"), manifest_path(at("less.vtr"))), "");
}

TEST_F(ManifestTest, EveryFieldCounts) {
  const std::string log = make_log();
  const json statement = statement_of(seal_manifest(log, key_));
  const auto changed = [&](const json::json_pointer& place, const json& value) {
    json other = statement;
    other[place] = value;
    write(at("m.json"), signed_again(other));
    return complaint(log, at("m.json"));
  };
  int fields = 0;
  const json leaves = statement.flatten();
  for (const auto& [place, value] : leaves.items()) {
    const json::json_pointer pointer(place);
    if (place == "/subject/0/name") {
      EXPECT_EQ(changed(pointer, "renamed"), "");
      continue;
    }
    ++fields;
    EXPECT_COMPLAINT(changed(pointer, value.is_string() ? json(value.get<std::string>() + "0")
                                                        : json("another")),
                     "the log's is");
    json less = statement;
    less[pointer.parent_pointer()].erase(pointer.back());
    write(at("m.json"), signed_again(less));
    EXPECT_COMPLAINT(complaint(log, at("m.json")), "the log's is");
  }
  EXPECT_GT(fields, 40);
  EXPECT_EQ(changed("/predicate/laterVersion"_json_pointer, {1, 2}), "") << "more is ignored";
  EXPECT_COMPLAINT(changed("/predicate/materials/-"_json_pointer, {{"name", "more"}}),
                   "'predicate.materials' is a list of");
  EXPECT_COMPLAINT(changed("/subject/-"_json_pointer, {{"name", "more"}}),
                   "'subject' is a list of 2");
}

TEST_F(ManifestTest, NoByteOfTheSignedPartsCanBeChanged) {
  const std::string log = make_log();
  const std::string text = seal_manifest(log, key_);
  json envelope = json::parse(text);
  Rng rng(3);
  for (int i = 0; i < 400; ++i) {
    json edited = envelope;
    const char* field = i % 2 == 0 ? "payload" : "sig";
    std::string& value =
        (i % 2 == 0 ? edited["payload"] : edited["signatures"][0]["sig"]).get_ref<std::string&>();
    const auto place = static_cast<size_t>(uniform(rng, 0, static_cast<int32_t>(value.size()) - 3));
    const char before = value[place];
    value[place] = before == 'A' ? 'B' : 'A';
    write(at("m.json"), edited.dump());
    EXPECT_NE(complaint(log, at("m.json")), "") << field << " " << place;
  }
  envelope["payloadType"] = "application/json";
  write(at("m.json"), envelope.dump());
  EXPECT_COMPLAINT(complaint(log, at("m.json")), "payloadType is 'application/json'");
}

TEST_F(ManifestTest, HostileFiles) {
  const std::string log = make_log();
  const std::string good = seal_manifest(log, key_);
  const auto refused = [&](const std::string& text) {
    write(at("m.json"), text);
    const std::string line = complaint(log, at("m.json"));
    EXPECT_NE(line, "");
    return line;
  };
  for (size_t size = 0; size < good.size() - 1; size += 97) refused(good.substr(0, size));
  EXPECT_COMPLAINT(refused(std::string(200000, '[')), "nested deeper");
  EXPECT_COMPLAINT(refused("{\"a\":" + std::string(100000, '{')), "JSON");
  EXPECT_COMPLAINT(refused("[1]"), "expected a JSON object");
  EXPECT_COMPLAINT(refused("{\"payload\":\"\",\"payload\":\"\"}"), "stands twice");
  std::string zeros = "{\"x\":[0";
  for (int i = 0; i < 100000; ++i) zeros += ",0";
  EXPECT_COMPLAINT(refused(zeros + "]}"), "more than 1024 values");
  EXPECT_COMPLAINT(refused(std::string((size_t{8} << 20) + 1, ' ')), "more than 8388608 bytes");
  EXPECT_COMPLAINT(refused(R"({"payloadType":"x","payload":"?","signatures":[]})"), "no base64");
  EXPECT_COMPLAINT(refused(R"({"payloadType":"x","payload":"","signatures":[]})"), "signatures");
  EXPECT_COMPLAINT(refused(R"({"payloadType":"x","payload":"","signatures":[1]})"), "signatures");
  EXPECT_COMPLAINT(refused(R"({"payloadType":"x","payload":"","signatures":[{}]})"), "sig");
  EXPECT_COMPLAINT(refused(R"({"payloadType":7})"), "payloadType is 7");
  // Signed, and still no statement.
  const auto signed_payload = [&](const std::string& payload) {
    return refused(audit::seal_envelope(audit::kStatementMediaType, payload, key_));
  };
  EXPECT_COMPLAINT(signed_payload("{}"), "'_type' is not there");
  EXPECT_COMPLAINT(signed_payload("7"), "expected a JSON object");
  EXPECT_COMPLAINT(signed_payload(std::string(100000, '[')), "nested deeper");
  EXPECT_COMPLAINT(signed_payload("\xff"), "invalid JSON");
}

TEST_F(ManifestTest, RefusesABrokenLogAndAnotherKey) {
  const std::string log = make_log();
  const auto error_of = [&](const SealKey& key) {
    try {
      write_manifest(log, key, at("m.json"));
    } catch (const Error& error) {
      EXPECT_FALSE(std::filesystem::exists(at("m.json")));
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_COMPLAINT(error_of(SealKey::generate()), "expected the log's own");
  std::string bytes = read(log);
  write_manifest(log, key_, manifest_path(log));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write(log, bytes);
  EXPECT_COMPLAINT(error_of(key_), "is broken and gets no manifest");
  EXPECT_COMPLAINT(complaint(log, manifest_path(log)), "the log itself is broken");
}

TEST_F(ManifestTest, OfAnOpenLogSaysSo) {
  const std::string log = make_log();
  const auto size = std::filesystem::file_size(log);
  std::filesystem::resize_file(log, size - 10);
  write_manifest(log, key_, manifest_path(log));
  EXPECT_EQ(complaint(log, manifest_path(log)), "");
  const json run = statement_of(seal_manifest(log, key_))["predicate"];
  EXPECT_EQ(run["log"]["seal"], "open");
  EXPECT_TRUE(run["run"]["stopReason"].is_null());
  EXPECT_TRUE(run["run"]["closed"].is_null());
}

TEST_F(ManifestTest, GoesWithItsLog) {
  const std::string log = make_log();
  write_manifest(log, key_, manifest_path(log));
  {
    // Another log of that name takes it away as soon as it has the name, and not before.
    VtrLog next(log, some_header(), overwriting({.seal = key_}));
    EXPECT_EQ(complaint(log, manifest_path(log)), "");
    next.sink().open(four_layers(), audit_record_bytes(four_layers(), 1, 1));
    EXPECT_EQ(complaint(log, manifest_path(log)), "");
    next.finish("length");
    EXPECT_FALSE(std::filesystem::exists(manifest_path(log)));
  }
  write_manifest(log, key_, manifest_path(log));
  make_log("more.vtr");
  redact_vtr(at("more.vtr"), log, {.groups = {"routing"}}, {}, true);
  EXPECT_FALSE(std::filesystem::exists(manifest_path(log)));
}

TEST_F(ManifestTest, AHashThatIsNone) {
  LogHeader header = some_header();
  header.hashes = {{"model.safetensors", "AB"}};
  VtrLog log(at("run.vtr"), header, overwriting({.seal = key_}));
  log.sink().open(four_layers(), audit_record_bytes(four_layers(), 1, 1));
  log.finish("length");
  try {
    seal_manifest(at("run.vtr"), key_);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_COMPLAINT(std::string(error.what()), "the hash of 'model.safetensors' is 'AB'");
  }
}

}  // namespace
}  // namespace vitrine
