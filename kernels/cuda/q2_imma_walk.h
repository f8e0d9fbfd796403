// How q2_imma_kernel.cuh finds a virtual thread's chunks in a tile: what it would otherwise work
// out at every chunk, made once a launch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/q2_layout.h"

namespace fulcrum::cuda {

// Slabs before the last are full and lie alike; so only the last, where it is not the first too,
// has places of its own.
struct Q2ImmaWalk {
  int first_chunks = 0;    // of the first slab
  int further_chunks = 0;  // virtual threads below this one have more than a chunk
  int last_chunks = 0;     // of the last slab; 0 where that is the first
  int full_slabs = 1;      // before the last, or the only one
  int slab_bytes = 0;      // of a full slab
  // Of the first slab: from one pair of rows to the next, and where the scales begin.
  int code_pitch = 0, scale_pitch = 0, scales_at = 0;
  int scale_step = 0;  // bytes of 32 chunks' scales
  // From a chunk's place in the first slab to that of the same number in the last: for pair 0, and
  // how much more for each further pair (less, as a rule).
  int last_codes = 0, last_code_pitch = 0, last_scales = 0, last_scale_pitch = 0;

  Q2ImmaWalk() = default;
  explicit Q2ImmaWalk(const Q2Layout& layout)
      : first_chunks(layout.SlabChunks(0)),
        slab_bytes(layout.SlabBytes(first_chunks)),
        code_pitch(Q2Layout::CodePitch(first_chunks)),
        scale_pitch(layout.ScalePitch(first_chunks)),
        scales_at(kQ2Pairs * code_pitch),
        scale_step((32 >> layout.scale_shift) * 4) {
    if (layout.slabs == 1) return;
    full_slabs = layout.slabs - 1;
    last_chunks = layout.SlabChunks(full_slabs);
    further_chunks = full_slabs > 1 ? kQ2SlabChunks : last_chunks;
    const int at = layout.SlabOffset(full_slabs), pitch = Q2Layout::CodePitch(last_chunks);
    last_codes = at;
    last_code_pitch = pitch - code_pitch;
    last_scales = at + kQ2Pairs * pitch - scales_at;
    last_scale_pitch = layout.ScalePitch(last_chunks) - scale_pitch;
  }
};

}  // namespace fulcrum::cuda
