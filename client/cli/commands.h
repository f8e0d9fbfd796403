// One maker per subcommand, each in its own cmd_*.cc; commands.cc is the table.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "client/cli/command.h"

namespace fulcrum::cli {

std::unique_ptr<Command> MakeProject();
std::unique_ptr<Command> MakeShards();
std::unique_ptr<Command> MakeLoad();
std::unique_ptr<Command> MakeReplace();
std::unique_ptr<Command> MakeUnload();
std::unique_ptr<Command> MakeLeversList();
std::unique_ptr<Command> MakeLeversSet();
std::unique_ptr<Command> MakeLeversWatch();
std::unique_ptr<Command> MakeLeversHistory();
std::unique_ptr<Command> MakeLeversPromote();
std::unique_ptr<Command> MakeLeversAbort();
std::unique_ptr<Command> MakeLadder();
std::unique_ptr<Command> MakeInfo();
std::unique_ptr<Command> MakeHealth();
std::unique_ptr<Command> MakeBench();
std::unique_ptr<Command> MakeStep();
std::unique_ptr<Command> MakeAb();
std::unique_ptr<Command> MakeVerify();
std::unique_ptr<Command> MakeReplay();
std::unique_ptr<Command> MakeInspect();
std::unique_ptr<Command> MakeQuantize();

}  // namespace fulcrum::cli
