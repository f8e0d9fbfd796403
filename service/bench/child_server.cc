// See child_server.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/bench/child_server.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

namespace fulcrum::service {

std::string SpawnServer(std::string_view name, std::string_view arguments) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::string command = "exec '" + self + "' --serve=";
  command.append(name).append(" ").append(arguments);
  FILE* const out = popen(command.c_str(), "r");
  std::string address;
  for (int c; out != nullptr && (c = std::fgetc(out)) != EOF && c != '\n';) {
    address += static_cast<char>(c);
  }
  return address;
}

void EndWithParent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

void ServeForever(const std::string& address) {
  std::printf("%s\n", address.c_str());
  std::fflush(stdout);
  for (;;) pause();
}

}  // namespace fulcrum::service
