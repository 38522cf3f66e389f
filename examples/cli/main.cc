// SPDX-License-Identifier: Apache-2.0
// vitrine: the command line tool. One file per command; only the public headers are used.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>

#include "common.h"
#include "vitrine/version.h"

namespace {

constexpr int kFailure = 1;
constexpr int kUserMistake = 2;

/// Flags that users of llama.cpp try, and what does it here.
constexpr std::pair<std::string_view, std::string_view> kOtherFlags[] = {
    {"-ngl", "--device cuda"},
    {"--n-gpu-layers", "--device cuda"},
    {"--gpu-layers", "--device cuda"},
    {"--temp", "--temperature"},
    {"-f", "-p - and the file on standard input"},
    {"--file", "-p - and the file on standard input"},
    {"-sys", "--system"},
    {"--system-prompt", "--system"},
    {"-cnv", "--chat, or the command chat"},
    {"--conversation", "--chat, or the command chat"},
    {"-no-cnv", "generate without --chat"},
    {"--n-predict", "-n"},
    {"--ctx-size", "-c"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"--no-mmap", "nothing: files are mapped with --mmap alone"},
    {"--mlock", "nothing: weights are packed in memory"},
    {"-fa", "nothing: attention is always fused"},
    {"-ctk", "--kv-type"},
    {"-ctv", "--kv-type"},
    {"-b", "nothing: a prompt's steps are as large as the engine's"},
    {"-ub", "nothing: a prompt's steps are as large as the engine's"},
};

/// Of a mistake in the arguments: '; … is llama.cpp's' where one of these stands among them.
std::string hint_of_other_flags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    for (const auto& [flag, here] : kOtherFlags) {
      if (argument == flag) return fmt::format("; '{}' is llama.cpp's, here it is {}", flag, here);
    }
  }
  return "";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int run(int argc, char** argv) {
  CLI::App app("Runs quantized mixture-of-experts language models and accounts for every token.",
               "vitrine");
  app.set_version_flag("--version", VITRINE_VERSION);
  app.require_subcommand(1);
  cli::Command command;
  cli::add_generate(app, command);
  cli::add_chat(app, command);
  cli::add_score(app, command);
  cli::add_tokenize(app, command);
  cli::add_inspect(app, command);
  cli::add_quantize(app, command);
  cli::add_bench(app, command);
  cli::add_audit(app, command);
  cli::add_constrain(app, command);
  cli::add_ledger(app, command);
  cli::add_federate(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream out, ignored;
    app.exit(success, out, ignored);
    cli::write_out(out.str());
    return 0;
  } catch (const CLI::RequiredError& error) {
    // What is missing is often what was misspelt.
    const std::vector<std::string> extras = app.remaining(true);
    const std::string hint = hint_of_other_flags(argc, argv);
    cli::write_note(
        first_line(error.what()) +
        (!hint.empty() || extras.empty() ? hint : "; '" + extras.front() + "' is unknown") +
        " (see vitrine --help)");
    return kUserMistake;
  } catch (const CLI::ParseError& error) {
    cli::write_note(first_line(error.what()) + hint_of_other_flags(argc, argv) +
                    " (see vitrine --help)");
    return kUserMistake;
  }
  return command();
}

int run_guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const vitrine::Error& error) {
    cli::write_note(error.what());
    if (error.kind() == vitrine::ErrorKind::kCancelled && cli::interrupt_signal() != 0) {
      return 128 + cli::interrupt_signal();
    }
    return error.is_user_error() ? kUserMistake : kFailure;
  } catch (const std::bad_alloc&) {
    cli::write_note("out of memory; use a smaller model, a shorter context or a lower -n");
    return kFailure;
  } catch (const std::exception& error) {
    cli::write_note(std::string("unexpected failure: ") + error.what());
    return kFailure;
  } catch (...) {
    cli::write_note("unexpected failure of an unknown kind");
    return kFailure;
  }
}

}  // namespace

int main(int argc, char** argv) {
  // A reader that went away is an error of write(), told in one line, not a silent death.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its size limit: likewise
  cli::open_standard_streams();
  vitrine::set_log_callback([](vitrine::LogLevel level, std::string_view message) {
    if (level == vitrine::LogLevel::kWarning) cli::write_note("warning: " + std::string(message));
  });
  const int code = run_guarded(argc, argv);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return code;  // they look for leaks, and set their own code, behind main()
#else
  // Everything of ours is closed; libtorch would take its operators apart one by one for 0.1 s.
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}
