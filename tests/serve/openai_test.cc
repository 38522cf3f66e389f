// SPDX-License-Identifier: Apache-2.0
// Bodies as OpenAI's clients write them, and what is answered.
#include "vitrine/openai.h"

#include <nlohmann/json.hpp>

#include "tests/engine/model_fixture.h"

namespace vitrine::testing {
namespace {

using nlohmann::json;

OpenAiRequest chat(const std::string& fields) {
  return read_openai_request(OpenAiRoute::kChatCompletions,
                             R"({"messages":[{"role":"user","content":"hi"}])" +
                                 (fields.empty() ? "" : "," + fields) + "}");
}
OpenAiRequest completion(const std::string& fields) {
  return read_openai_request(OpenAiRoute::kCompletions, "{" + fields + "}");
}

TEST(OpenAiRequestTest, ReadsWhatClientsWrite) {
  const OpenAiRequest read = chat(
      R"("model":"m","temperature":0.5,"top_p":0.9,"max_tokens":7,"n":2,"seed":-1,
         "stop":["a","b"],"logprobs":true,"top_logprobs":3,"frequency_penalty":0.5,
         "logit_bias":{"5":-100,"7":1.5},"unknown":{"x":1},"user":"somebody")");
  EXPECT_EQ(read.model, "m");
  ASSERT_EQ(read.requests.size(), 2u);
  const ServeRequest& request = read.requests[1];
  EXPECT_EQ(request.branch, 1u);
  EXPECT_EQ(request.messages[0].content, "hi");
  EXPECT_EQ(request.sampler.temperature, 0.5F);
  EXPECT_EQ(request.sampler.seed, UINT64_MAX);
  EXPECT_EQ(request.max_new_tokens, 7);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.logprobs, 3);
  EXPECT_TRUE(std::isinf(request.sampler.logit_bias[0].second));
  EXPECT_EQ(request.tenant, "");
}

TEST(OpenAiRequestTest, ReadsPartsAndFurtherFieldsOfMessages) {
  const OpenAiRequest read = read_openai_request(
      OpenAiRoute::kChatCompletions,
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":null,"tool_calls":[{"id":"c"}]}]})");
  EXPECT_EQ(read.requests[0].messages[0].content, "ab");
  EXPECT_EQ(json::parse(read.requests[0].messages[1].fields_json)["tool_calls"][0]["id"], "c");
}

TEST(OpenAiRequestTest, ReadsPrompts) {
  EXPECT_EQ(completion(R"("prompt":"a")").requests[0].text, "a");
  EXPECT_EQ(completion(R"("prompt":"a")").requests[0].max_new_tokens, 16);
  EXPECT_EQ(completion(R"("prompt":[1,2])").requests[0].tokens, (std::vector<int32_t>{1, 2}));
  const OpenAiRequest both = completion(R"("prompt":["a",[3,4]],"n":3)");
  ASSERT_EQ(both.requests.size(), 6u);
  EXPECT_EQ(both.requests[2].text, "a");
  EXPECT_EQ(both.requests[3].tokens, (std::vector<int32_t>{3, 4}));
}

TEST(OpenAiRequestTest, ReadsConstraints) {
  using Kind = ServeConstraint::Kind;
  const std::pair<const char*, Kind> cases[] = {
      {R"("response_format":{"type":"text"})", Kind::kNone},
      {R"("response_format":{"type":"json_object"})", Kind::kJsonSchema},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{}}})",
       Kind::kJsonSchema},
      {R"("structured_outputs":{"regex":"a+"})", Kind::kRegex},
      {R"("structured_outputs":{"choice":["a","b"]})", Kind::kChoices},
      {R"("grammar":"root ::= \"a\"")", Kind::kGrammar},
      {R"("json_schema":{"type":"integer"})", Kind::kJsonSchema}};
  for (const auto& [fields, kind] : cases) {
    EXPECT_EQ(chat(fields).requests[0].constraint.kind, kind) << fields;
  }
}

TEST(OpenAiRequestTest, RefusesWithTheFieldsName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature":"hot")", "'temperature' is \"hot\"; expected a number from"},
      {R"("temperature":-1)", "'temperature' is -1"},
      {R"("n":0)", "'n' is 0"},
      {R"("n":129)", "'n' is 129"},
      {R"("top_logprobs":21,"logprobs":true)", "'top_logprobs' is 21"},
      {R"("top_logprobs":2)", "'top_logprobs' is 2; expected 'logprobs': true"},
      {R"("stop":[""])", "'stop' is"},
      {R"("stream_options":{})", "'stream_options' is"},
      {R"("response_format":{"type":"xml"})", "'response_format.type' is \"xml\""},
      {R"("response_format":{"type":"json_object"},"grammar":"root ::= \"a\"")", "'grammar' comes"},
      {R"("parallel_tool_calls":1)", "'parallel_tool_calls' is 1"},
      {R"("tool_choice":"required")", "'tool_choice' is \"required\"; expected 'tools'"},
      {R"("logit_bias":{"x":1})", "'logit_bias' is"},
      {R"("seed":1.5)", "'seed' is 1.5"},
      {R"("tools":[{"type":"function"}])", "tools"}};
  for (const auto& [fields, expected] : cases) {
    try {
      chat(fields);
      ADD_FAILURE() << fields;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
      EXPECT_EQ(openai_status(error), 400);
    }
  }
  for (const char* body : {"", "[]", "{", "{\"messages\":[]}", "{\"messages\":[{}]}",
                           "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "{}"}) {
    EXPECT_THROW(read_openai_request(OpenAiRoute::kChatCompletions, body), Error) << body;
  }
  EXPECT_THROW(completion(R"("prompt":[])"), Error);
  EXPECT_THROW(completion(R"("prompt":[-1])"), Error);
  try {
    read_openai_request(OpenAiRoute::kChatCompletions,
                        R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(openai_status(error), 501);
    const json body = json::parse(openai_error_body(error));
    EXPECT_EQ(body["error"]["param"], "messages[0].content");
    EXPECT_EQ(body["error"]["type"], "not_supported_error");
  }
}

// Bodies that are cut, or of which bytes are others: an error, never a signal.
TEST(OpenAiRequestTest, HostileBodiesEndInErrors) {
  const std::string whole =
      R"({"model":"m","messages":[{"role":"user","content":"hi"}],"n":2,"stop":["a"],"seed":3,)"
      R"("logit_bias":{"5":1},"tools":[{"type":"function","function":{"name":"f"}}]})";
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(read_openai_request(OpenAiRoute::kChatCompletions, whole.substr(0, length)),
                 Error);
  }
  std::mt19937 random(4);
  for (int i = 0; i < 20000; ++i) {
    std::string body = whole;
    for (int j = 0; j < 3; ++j) body[random() % body.size()] = static_cast<char>(random());
    try {
      read_openai_request(OpenAiRoute::kChatCompletions, body);
    } catch (const Error& error) {
      EXPECT_TRUE(json::accept(openai_error_body(error)));
    }
  }
  EXPECT_THROW(read_openai_request(OpenAiRoute::kChatCompletions, std::string(100000, '[')), Error);
}

TEST(OpenAiResponseTest, AnswersBothRoutes) {
  ModelOptions options;
  options.engine.threads = 1;
  options.engine.max_context = 128;
  options.engine.keep_logits = true;
  options.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}";
  prepare_for_serving(options, 4);
  Server server(Model::open(shipped_model(), options));
  for (const auto& [route, fields] :
       {std::pair(OpenAiRoute::kChatCompletions,
                  R"({"messages":[{"role":"user","content":"Once"}],"max_tokens":5,"n":2,
                      "logprobs":true,"top_logprobs":2,"return_token_ids":true})"),
        std::pair(OpenAiRoute::kCompletions,
                  R"({"prompt":["Once","Then"],"max_tokens":5,"echo":true,
                      "return_token_ids":true})")}) {
    const OpenAiRequest request = read_openai_request(route, fields);
    OpenAiResponse response(request, server.model().tokenizer(), "shipped", "id-1", 17);
    for (size_t i = 0; i < request.requests.size(); ++i) {
      ServedRequest served = server.submit(request.requests[i]);
      for (const ServeEvent& event : served) response.add(i, event);
    }
    ASSERT_EQ(response.error(), nullptr);
    const json body = json::parse(response.body());
    ASSERT_EQ(body["choices"].size(), 2u);
    EXPECT_EQ(body["model"], "shipped");
    EXPECT_EQ(body["usage"]["completion_tokens"], 10);
    for (const json& choice : body["choices"]) {
      EXPECT_EQ(choice["finish_reason"], "length");
      const auto ids = choice["token_ids"].get<std::vector<int32_t>>();
      ASSERT_EQ(ids.size(), 5u);
      if (route == OpenAiRoute::kChatCompletions) {
        EXPECT_EQ(choice["message"]["role"], "assistant");
        ASSERT_EQ(choice["logprobs"]["content"].size(), 5u);
        EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
      } else {
        const std::string prompt = choice["index"] == 0 ? "Once" : "Then";
        EXPECT_EQ(choice["text"], prompt + server.model().tokenizer().decode(ids));
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::testing
