// SPDX-License-Identifier: Apache-2.0
// fuzz_requests SECONDS [SEED]: mutates requests as bytes and as bodies, and reads them.
//
// A request is read to its end or refused with a status from 400 on; a body becomes requests or an
// Error with one line. Bytes that come in pieces are read as those that come at once.
#include "http/message.h"
#include "http/wire.h"
#include "tests/support/fuzz.h"
#include "tests/support/mutator.h"
#include "vitrine/openai.h"

namespace {

using namespace vitrine;

std::vector<std::string> bodies() {
  return {
      R"({"model":"m","prompt":"Once","max_tokens":5,"logprobs":2,"echo":true,"stop":["a","b"],"n":2})",
      R"({"prompt":[[1,2],[3]],"seed":-1,"logit_bias":{"5":-100},"stream":true,"stream_options":{"include_usage":true}})",
      R"({"messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"x":{"type":"integer"}}}}}],"tool_choice":{"type":"function","function":{"name":"f"}}})",
      R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object"}}},"chat_template_kwargs":{"enable_thinking":false},"logprobs":true,"top_logprobs":3})",
      R"({"prompt":"x","structured_outputs":{"regex":"a+"},"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,"presence_penalty":1,"stop_token_ids":[1],"priority":3,"prompt_logprobs":1,"return_token_ids":true})"};
}

std::vector<std::string> hostile_strings() {
  return {R"("messages")", R"("tools")",   R"("json_schema")", R"("\ud800")",
          R"("\u0000")",   "\"\xff\"",     R"("user")",        R"("function")",
          R"("")",         R"("<|end|>")", R"("text")",        R"("required")"};
}

bool read_body(const std::string& body) {
  bool is_read = false;
  for (const OpenAiRoute route : {OpenAiRoute::kChatCompletions, OpenAiRoute::kCompletions}) {
    try {
      const OpenAiRequest read = read_openai_request(route, body);
      if (read.requests.empty()) throw std::runtime_error("a body without requests was read");
      is_read = true;
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(std::string(error.what()) + " of " + body);
    } catch (const Error& error) {
      testing::check_message(error);
      if (openai_status(error) < 400 || openai_status(error) > 501) {
        throw std::runtime_error("a status that is no client's mistake: " +
                                 std::string(error.what()));
      }
    }
  }
  return is_read;
}

/// What reading the bytes in pieces of that size comes to: the request, or the status.
std::string read_bytes(std::string_view bytes, size_t piece) {
  http::RequestReader reader(4096, 65536);
  try {
    std::string left;
    for (size_t begin = 0; begin < bytes.size() && !reader.is_whole(); begin += piece) {
      left += bytes.substr(begin, piece);
      while (!left.empty() && !reader.is_whole()) {
        const size_t used = reader.take(left);
        left.erase(0, used);
        if (used == 0) break;
      }
    }
    if (!reader.is_whole()) return "unfinished";
    const http::Request request = reader.head();
    return request.method + " " + request.path + "?" + request.query + "\n" + reader.take_body();
  } catch (const http::HttpError& error) {
    if (error.failure().status < 400 || error.failure().message.empty()) {
      throw std::runtime_error("a refusal that is none");
    }
    return std::to_string(error.failure().status);
  }
}

std::string request_text(const std::string& body, size_t kind) {
  const std::string head = kind % 3 == 0   ? "POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
                           : kind % 3 == 1 ? "POST /v1/%61udit/x?y=1 HTTP/1.0\r\n"
                                           : "GET /health HTTP/1.1\r\nExpect: 100-continue\r\n";
  if (kind % 2 == 0) {
    return head + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  return head + "Transfer-Encoding: chunked\r\n\r\n" + http::chunk(body.substr(0, 9)) +
         http::chunk(body.substr(9)) + std::string(http::kLastChunk);
}

void damage(std::string& bytes, testing::Mutator& mutator) {
  for (size_t count = 1 + mutator.below(4); count > 0 && !bytes.empty(); --count) {
    const size_t place = mutator.below(bytes.size());
    switch (mutator.below(4)) {
      case 0: bytes[place] = static_cast<char>(mutator.below(256)); break;
      case 1: bytes.erase(place, 1 + mutator.below(8)); break;
      case 2: bytes.insert(place, 1 + mutator.below(6000), "a\r\n: "[mutator.below(5)]); break;
      default: bytes.insert(place, bytes.substr(mutator.below(bytes.size()), 40)); break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_fuzz(argc, argv, "fuzz_requests", "requests", [](uint64_t seed) {
    const auto healthy = bodies();
    const auto run = [healthy, mutator = testing::Mutator(seed, hostile_strings())](
                         long iteration) mutable -> std::optional<bool> {
      const auto kind = static_cast<size_t>(iteration);
      testing::Files files = {{"body.json", healthy[kind % healthy.size()]}};
      const bool is_mutated = iteration >= static_cast<long>(healthy.size());
      if (is_mutated) mutator.mutate(files);
      if (files.empty()) return std::nullopt;
      const std::string& body = files.begin()->second;
      std::string bytes = request_text(body, kind);
      const bool is_damaged = is_mutated && mutator.one_in(2);
      if (is_damaged) damage(bytes, mutator);
      const std::string whole = read_bytes(bytes, bytes.size());
      if (!is_damaged && whole.ends_with("unfinished")) throw std::runtime_error("not finished");
      // How a refused head is told, and whether one is too long, hangs on what had come by then.
      const std::string parts = read_bytes(bytes, 1 + mutator.below(7));
      const bool are_refused = whole[0] == '4' || whole[0] == '5' || parts == "431";
      if (!are_refused && whole != parts) throw std::runtime_error("pieces are read otherwise");
      const bool is_read = read_body(body);
      if (!is_mutated && !is_read) throw std::runtime_error("a healthy body was refused");
      return is_read;
    };
    return testing::FuzzTarget{run, static_cast<long>(healthy.size())};
  });
}
