// The node's one book of what is in flight: every RPC from its headers to its end, and every call
// that a stream carries from its message to its answer. The gauges, the drain's log and the drain's
// wait read it, so that they cannot disagree; its thread is the only clock by which an RPC expires
// (gRPC's own timers are off, transport.cc), so that a deadline has one owner and a call one
// answer. While a call waits for a launch the scheduler expires it, by the same deadline.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/clock.h"
#include "scheduler/indexed_heap.h"
#include "scheduler/observer.h"

namespace fulcrum::service {

enum class OpenKind : uint8_t {
  kProjection,  // a Project RPC, or a call of a ProjectStream
  kOther,       // an RPC of another unary method
  kStream,      // a stream, with or without calls, or a watch: it ends when it is told to
};
inline constexpr size_t kOpenKinds = 3;

// What the log says of a call that a stop cut off.
struct OpenFacts {
  std::string method, id, peer;
  std::string_view state;  // "receiving" its message, "queue", "running", "open" (a stream)
  absl::Time began;
};

// What the book lists. Everything but the virtual methods is the book's after Add.
class OpenCall : public std::enable_shared_from_this<OpenCall> {
 public:
  virtual ~OpenCall() = default;

  // Set before Add. `metric`: the method (Metrics::GrpcMethod) whose open RPCs it is one of; -1: it
  // is a call within one.
  OpenKind kind = OpenKind::kProjection;
  int metric = -1;
  absl::Time began, expires = absl::InfiniteFuture();

  // A stop began: a stream takes no new work from now on.
  virtual void StopBegan() {}
  // `expires` has passed. Once at most, on the book's thread.
  virtual void Expire() = 0;
  // Ends it with UNAVAILABLE unless it is answered already, or is being refused; nothing then.
  virtual std::optional<OpenFacts> CutOff() = 0;
  // What can be said at any time: an id that comes with a message is not among it.
  virtual OpenFacts Facts() const = 0;

 protected:
  // It came when a stop had begun.
  bool late() const { return late_; }

 private:
  friend class CallBook;
  struct EarlierEnd {
    bool operator()(const OpenCall& a, const OpenCall& b) const { return a.expires < b.expires; }
  };
  std::shared_ptr<OpenCall> share_;  // while it is listed
  OpenCall *before_ = nullptr, *after_ = nullptr;
  size_t place_ = 0;
  bool timed_ = false;  // in the heap
  std::atomic<bool> late_{false};
};

// Thread-safe.
class CallBook {
 public:
  // The observer hears of exceptions; both outlive the book.
  CallBook(const Clock& clock, Observer& observer);
  ~CallBook();  // nothing is listed any more

  // Lists it. False: the stop had begun, it is to be refused (and is listed all the same, until it
  // has ended).
  [[nodiscard]] bool Add(std::shared_ptr<OpenCall> call);
  // Returns the book's share, for the caller to let go when it is done with the call.
  std::shared_ptr<OpenCall> Remove(OpenCall& call);

  int64_t open(OpenKind kind) const;
  int64_t open(int metric) const;  // RPCs of one method

  struct Counts {
    int64_t projections = 0, others = 0, streams = 0;
  };
  // What comes from now on is late. Tells the streams, and tells `tell` of each. Returns what was
  // open when it began.
  Counts BeginStop(absl::FunctionRef<void(const OpenFacts&)> tell);
  // Until no call from before the stop is open, or `until`. Streams are not waited for.
  void AwaitCalls(absl::Time until);
  // Ends the calls, or the streams, that are still open; tells of each that this ended.
  void CutOffCalls(absl::FunctionRef<void(const OpenFacts&)> tell) { CutOff(false, tell); }
  void CutOffStreams(absl::FunctionRef<void(const OpenFacts&)> tell) { CutOff(true, tell); }

 private:
  void Loop();
  void CutOff(bool streams, absl::FunctionRef<void(const OpenFacts&)> tell);
  std::vector<std::shared_ptr<OpenCall>> All(bool streams) const;
  static bool Awaited(const OpenCall& call);
  void Untime(OpenCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock& clock_;
  Observer& observer_;
  mutable absl::Mutex mu_;
  OpenCall* first_ ABSL_GUARDED_BY(mu_) = nullptr;
  IndexedHeap<OpenCall, OpenCall::EarlierEnd, &OpenCall::place_> deadlines_ ABSL_GUARDED_BY(mu_);
  std::array<int64_t, kOpenKinds> open_ ABSL_GUARDED_BY(mu_){};
  std::vector<int64_t> by_method_ ABSL_GUARDED_BY(mu_);
  int64_t early_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;  // the node
  bool ended_ ABSL_GUARDED_BY(mu_) = false;     // the thread is to end
  absl::Time alarm_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::CondVar wake_;   // a deadline comes before the alarm
  absl::CondVar quiet_;  // `early_` became zero
  std::thread thread_;   // last
};

}  // namespace fulcrum::service
