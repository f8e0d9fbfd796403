// The table of subcommands, in the order of the help.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands.h"

namespace fulcrum::cli {
namespace {

constexpr CommandRow kCommands[] = {
    {"project", "One call: activations in, outputs and provenance out", &MakeProject},
    {"shards", "The weights the node holds", &MakeShards},
    {"load", "Load a tensor as a shard", &MakeLoad},
    {"replace", "Load a new version of a shard; the old one serves until it is ready",
     &MakeReplace},
    {"unload", "Drain a shard and free its memory", &MakeUnload},
    {"levers list", "All levers, their values and where those came from", &MakeLeversList},
    {"levers set", "Change levers, all or none, or for a share of traffic (--canary)",
     &MakeLeversSet},
    {"levers watch", "The canary that runs, side by side, or every change as it happens",
     &MakeLeversWatch},
    {"levers history", "Past changes: who, when, why, from, to, on what evidence",
     &MakeLeversHistory},
    {"levers promote", "Make the canary's values everybody's", &MakeLeversPromote},
    {"levers abort", "End the canary: everybody runs the old values", &MakeLeversAbort},
    {"ladder", "Which arm runs at every M, and why the others do not", &MakeLadder},
    {"info", "The node, its devices and limits", &MakeInfo},
    {"health", "grpc.health.v1 of the node or a shard; exit 1 unless SERVING", &MakeHealth},
    {"bench",
     "Load the node; latency, throughput, batching, and whether replies are right; exit 1 if a "
     "call failed or a reply was wrong",
     &MakeBench},
    {"step", "Decode steps of a whole model: time of each phase, and what ran", &MakeStep},
    {"ab", "Lever sets against each other over decode steps, with intervals", &MakeAb},
    {"verify", "Offline: judge a product of a weight file against expected values", &MakeVerify},
    {"replay", "Offline: run a bundle of wrong outputs again", &MakeReplay},
    {"inspect", "Offline: what is in a checkpoint and what a node would serve", &MakeInspect},
    {"quantize", "Offline: convert safetensors to FP8 blocks or Q2_0", &MakeQuantize},
};

}  // namespace

std::span<const CommandRow> Commands() { return kCommands; }

}  // namespace fulcrum::cli
