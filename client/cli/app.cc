// Builds the command line from the table of subcommands, runs the one that was asked for.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/app.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <ostream>
#include <utility>

#include "client/cli/command.h"

namespace fulcrum::cli {
namespace {

void DeclareGlobals(CLI::App& app, Globals& globals) {
  Options options(&app);
  options.Add("--target", &globals.target, "Node: host:port or unix:PATH");
  options.Flag("--json", &globals.json, "One JSON document on standard output");
  options.Add("--tls-ca", &globals.tls_ca, "PEM file: CA of the node's certificate; turns TLS on");
  options.Add("--tls-cert", &globals.tls_cert, "PEM file: this client's certificate (mutual TLS)");
  options.Add("--tls-key", &globals.tls_key, "PEM file: its key");
  app.add_option("--timeout", globals.timeout_s, "Seconds a call may take (default: the command's)")
      ->check(CLI::PositiveNumber);
}

// "--name=" with nothing behind it, for which the parser would take the next argument.
std::string WithoutValue(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) return argument;
  }
  return "";
}

// The app of a row: a child of `app`, or of the group named by the row's first word.
CLI::App* AddRow(CLI::App& app, std::map<std::string, CLI::App*>& groups, const CommandRow& row) {
  const std::string name = row.name;
  const size_t space = name.find(' ');
  if (space == std::string::npos) return app.add_subcommand(name, row.summary)->fallthrough();
  CLI::App*& parent = groups[name.substr(0, space)];
  if (parent == nullptr) {
    parent = app.add_subcommand(name.substr(0, space), "Live switches: list, set, watch, canaries");
    parent->fallthrough()->require_subcommand(1);
  }
  return parent->add_subcommand(name.substr(space + 1), row.summary)->fallthrough();
}

// A full disk behind `fulcrum ... > FILE` is an error of the command like any other.
int Written(int exit, std::ostream& out, std::ostream& err) {
  out.flush();
  if (out) return exit;
  err << "fulcrum: standard output cannot be written; what arrived there is not all\n";
  return exit == kOk ? kBadInput : exit;
}

}  // namespace

int RunApp(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  CLI::App app("The command of a Fulcrum node: call it, measure it, judge it, steer it", "fulcrum");
  app.set_version_flag("--version", "fulcrum " FULCRUM_VERSION);
  app.require_subcommand(1);
  Globals globals;
  DeclareGlobals(app, globals);
  std::map<std::string, CLI::App*> groups;
  std::vector<std::pair<CLI::App*, std::unique_ptr<Command>>> commands;
  for (const CommandRow& row : Commands()) {
    CLI::App* const sub = AddRow(app, groups, row);
    commands.emplace_back(sub, row.make());
    Options options(sub);
    commands.back().second->Declare(options);
  }
  if (const std::string option = WithoutValue(arguments); !option.empty()) {
    err << "fulcrum: " << option << ": the value is empty; leave it out to get the default\n";
    return kBadInput;
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" of status 0.
    return Written(app.exit(error, out, err) == 0 ? kOk : kBadInput, out, err);
  }
  const Context context(globals, out, err);
  const auto asked = std::find_if(commands.begin(), commands.end(),
                                  [](const auto& command) { return command.first->parsed(); });
  int exit = kFailed;
  try {
    exit = asked->second->Run(context);
  } catch (const std::bad_alloc&) {
    err << "fulcrum: out of memory; ask for less at a time\n";
  } catch (const std::exception& error) {
    err << "fulcrum: an error that should not be: " << error.what() << "\n";
  }
  return Written(exit, out, err);
}

}  // namespace fulcrum::cli
