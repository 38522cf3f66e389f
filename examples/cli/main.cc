// SPDX-License-Identifier: Apache-2.0
// vitrine: the command line tool. One file per command; only the public headers are used.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <new>
#include <string_view>
#include <utility>

#include "build_facts.h"
#include "closing_note.h"
#include "command_pages.h"
#include "command_words.h"
#include "common.h"
#include "completions.h"
#include "environment.h"
#include "option_names.h"
#include "suggestions.h"

namespace {

constexpr int kFailure = 1;
constexpr int kUserMistake = 2;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// What an option of the tool itself prints; it ends the command line.
struct Page {
  std::string text;
};

void add_pages(CLI::App& app) {
  app.add_flag_callback(
      "--version", [] { throw Page{cli::build_facts()}; }, "print what this build is");
  const auto complete = [&app](const std::string& shell) {
    const std::vector<cli::CommandInfo> tree = cli::command_tree(app);
    throw Page{shell == "zsh" ? cli::zsh_completion(tree) : cli::bash_completion(tree)};
  };
  app.add_option_function<std::string>("--completion", complete, "print a shell's completions")
      ->check(CLI::IsMember({"bash", "zsh"}));
  app.add_flag_callback(
      "--man", [&app] { throw Page{cli::man_page(cli::command_tree(app))}; }, "print the man page");
  app.add_flag_callback("--markdown",
                        [&app] { throw Page{cli::markdown_page(cli::command_tree(app))}; })
      ->group("");  // for docs/command-line.md
  app.footer(
      "vitrine COMMAND --help tells a command's options. Each has a twin in the environment:\n"
      "VITRINE_MAX_NEW_TOKENS for --max-new-tokens; the command line wins.");
}

/// What the words mean, as one line; what CLI11 says of them where that is all there is.
std::string mistake(CLI::App& app, const cli::CommandWords& words, const CLI::ParseError& error) {
  const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool is_missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  std::string line = first_line(error.what());
  if (is_extra || is_missing) {
    // What is missing is often what was misspelt.
    const std::string unknown = cli::unknown_words(app, words, app.remaining(true));
    const bool needs_command = words.command == nullptr;
    if (!unknown.empty()) line = is_extra || needs_command ? unknown : line + "; " + unknown;
  }
  return cli::with_variables(line) + " (see vitrine --help)";
}

/// Warns once of flags of llama.cpp's that do nothing here.
void warn_without_effect(const cli::CommandWords& words) {
  if (words.without_effect.empty()) return;
  const CLI::Option* device = words.command->get_option_no_throw("--device");
  const std::string name = device->count() > 0 ? device->as<std::string>() : "cpu";
  const std::string note = cli::without_effect_note(words, name);
  if (!note.empty()) cli::write_note(note);
}

int run(int argc, char** argv) {
  CLI::App app("Runs quantized mixture-of-experts language models and accounts for every token.",
               "vitrine");
  app.require_subcommand(1);
  cli::Command command;
  cli::add_generate(app, command);
  cli::add_chat(app, command);
  cli::add_embed(app, command);
  cli::add_batch(app, command);
  cli::add_serve(app, command);
  cli::add_score(app, command);
  cli::add_eval(app, command);
  cli::add_compare(app, command);
  cli::add_gate(app, command);
  cli::add_manifest(app, command);
  cli::add_perplexity(app, command);
  cli::add_samples(app, command);
  cli::add_tokenize(app, command);
  cli::add_inspect(app, command);
  cli::add_calibrate(app, command);
  cli::add_quantize(app, command);
  cli::add_bench(app, command);
  cli::add_audit(app, command);
  cli::add_constrain(app, command);
  cli::add_ledger(app, command);
  cli::add_federate(app, command);
  cli::add_model_signature(app, command);
  add_pages(app);
  const cli::CommandWords words =
      cli::read_words(app, std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  cli::take_environment(words);
  try {
    std::vector<std::string> reversed(words.words.rbegin(), words.words.rend());
    app.parse(reversed);
  } catch (const Page& page) {
    cli::write_out(page.text);
    return 0;
  } catch (const CLI::Success& success) {  // --help
    std::ostringstream out, ignored;
    app.exit(success, out, ignored);
    cli::write_out(out.str());
    return 0;
  } catch (const CLI::ParseError& error) {
    cli::write_note(mistake(app, words, error));
    return kUserMistake;
  }
  warn_without_effect(words);
  return command();
}

int run_guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const cli::OutputError& error) {
    // As of any tool in a pipe whose reader has what it wanted.
    if (cli::is_output_closed()) return 128 + SIGPIPE;
    cli::write_note(error.what());
    return kFailure;
  } catch (const vitrine::Error& error) {
    const int signal = cli::interrupt_signal();
    if (error.kind() == vitrine::ErrorKind::kCancelled && signal != 0) {
      const bool is_told = dynamic_cast<const cli::Interrupted*>(&error) != nullptr;
      cli::write_note(is_told ? error.what() : "cancelled before the end");
      return 128 + signal;
    }
    const bool is_mistake = error.is_user_error();
    const std::string message = cli::with_option_names(error.what());
    cli::write_note(is_mistake ? cli::with_variables(message) : message);
    return is_mistake ? kUserMistake : kFailure;
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
  // A reader that went away is an error of write(), so that logs are finished, not a sudden death.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its size limit: likewise
  cli::open_standard_streams();
  vitrine::set_log_callback([](vitrine::LogLevel level, std::string_view message) {
    if (level == vitrine::LogLevel::kWarning) cli::write_note("warning: " + std::string(message));
  });
  return run_guarded(argc, argv);
}
