// See interrupt.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

namespace fulcrum::cli {
namespace {

constexpr int kEnds = 3;
constexpr char kEnded[] =
    "\nfulcrum: ended before levers were turned back: they may still be turned; "
    "`fulcrum levers history` shows what to set back\n";

// All that a handler may touch: any thread may be the one it interrupts.
std::atomic<int> g_counted = 0;
std::atomic<int64_t> g_apart_ns = 0;
std::atomic<int64_t> g_last_ns = 0;  // of the last signal that counted
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// Async-signal-safe.
int64_t NowNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void Note(int signal) {
  const int before = errno;
  const int64_t now = NowNs();
  int64_t last = g_last_ns;
  // Of handlers that run on two threads at once, one counts.
  if (now - last >= g_apart_ns && g_last_ns.compare_exchange_strong(last, now) &&
      ++g_counted >= kEnds) {
    // Nothing is left to do for a standard error that cannot be written.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kEnded, sizeof kEnded - 1);
    // Blocked while the handler runs: it ends the process when this returns.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(signal, &usual, nullptr);
    ::raise(signal);
  }
  errno = before;
}

}  // namespace

Interrupt::Interrupt(absl::Duration apart) {
  g_counted = 0;
  g_apart_ns = absl::ToInt64Nanoseconds(apart);
  g_last_ns = -g_apart_ns;
  struct sigaction note {};
  note.sa_handler = &Note;
  note.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &note, &int_);
  ::sigaction(SIGTERM, &note, &term_);
  ::sigaction(SIGHUP, nullptr, &hup_);
  if (hup_.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &note, nullptr);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_);
}

Interrupt::~Interrupt() {
  ::sigaction(SIGINT, &int_, nullptr);
  ::sigaction(SIGTERM, &term_, nullptr);
  ::sigaction(SIGHUP, &hup_, nullptr);
  ::sigaction(SIGPIPE, &pipe_, nullptr);
}

bool Interrupt::asked() const { return g_counted > 0; }

}  // namespace fulcrum::cli
