// Who looks at finished batches off the latency path.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum {

class Auditor;
class Shadow;

// Either may be null; both outlive who holds this.
struct Checkers {
  Auditor* auditor = nullptr;
  Shadow* shadow = nullptr;
};

}  // namespace fulcrum
