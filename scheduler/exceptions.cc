// See exceptions.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/exceptions.h"

#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace fulcrum {
namespace {

constexpr std::string_view kNames[] = {"rpc",    "batch", "observer", "scheduler", "checker",
                                       "canary", "work",  "tls",      "scrape",    "watch"};
static_assert(std::size(kNames) == kAllThrowers.size());

// Memory that is short now is back in a moment; a loop that cannot take a step for so long is none.
constexpr int kThrowsInARow = 100;
constexpr absl::Duration kPause = absl::Milliseconds(10);
constexpr absl::Duration kCalm = absl::Seconds(10);  // without a throw: they start to count anew

// Made while there is memory: a copy of a status takes none.
const absl::Status& NoMemory() {
  static const auto* const status =
      new absl::Status(absl::StatusCode::kResourceExhausted,
                       "the node is out of memory; send less at a time, or try again later");
  return *status;
}
const absl::Status& Unnamed() {
  static const auto* const status =
      new absl::Status(absl::StatusCode::kInternal, "an exception that is none of std's");
  return *status;
}
[[maybe_unused]] const absl::Status& made_early = NoMemory();
[[maybe_unused]] const absl::Status& made_early_too = Unnamed();

absl::Status Rethrown() {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    return NoMemory();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("an exception: ", e.what()));
  } catch (...) {
    return Unnamed();
  }
}

}  // namespace

absl::Status StatusForNoMemory() noexcept { return NoMemory(); }

std::string_view Name(Thrower thrower) { return kNames[static_cast<size_t>(thrower)]; }

absl::Status StatusOfException() noexcept {
  try {
    return Rethrown();
  } catch (...) {  // no memory for the words
    return NoMemory();
  }
}

bool KeepRunning(absl::FunctionRef<void()> loop,
                 absl::FunctionRef<void(const absl::Status&)> caught) noexcept {
  absl::Time last = absl::InfinitePast();
  for (int throws = 0; throws < kThrowsInARow;) {
    const absl::Status thrown = Caught(loop);
    if (thrown.ok()) return true;
    const absl::Time now = absl::Now();
    throws = now - last > kCalm ? 1 : throws + 1;
    last = now;
    (void)Caught([&] { caught(thrown); });
    absl::SleepFor(kPause);
  }
  return false;
}

}  // namespace fulcrum
