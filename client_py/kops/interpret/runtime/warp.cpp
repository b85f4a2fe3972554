// Votes, shuffles, matches and reductions of a warp, and what is wrong when threads cannot go on.
//
// A collective is complete when every lane of its mask that has not returned waits in the same collective with the same
// mask. Only __syncwarp orders accesses of memory; the others exchange registers.
#include "host.h"

#include <cstdio>
#include <cstring>

namespace kops
{

namespace
{

Fiber *lane_of(unsigned warp, unsigned lane)
{
    return &run.fibers[warp * WARP + lane];
}

// The lanes of the mask that are in the warp.
template <typename F> void for_lanes(uint32_t mask, F f)
{
    for (; mask; mask &= mask - 1)
        f(unsigned(__builtin_ctz(mask)));
}

void synchronise(Warp &warp, uint32_t lanes)
{
    uint32_t joined[WARP] = {};
    for_lanes(lanes, [&](unsigned a) {
        for (unsigned b = 0; b < WARP; b++)
            joined[b] = warp.clock[a][b] > joined[b] ? warp.clock[a][b] : joined[b];
    });
    for_lanes(lanes, [&](unsigned a) {
        memcpy(warp.clock[a], joined, sizeof joined);
        warp.clock[a][a]++;
    });
}

[[noreturn]] void report_source(const Fiber &fiber, int source, const char *why)
{
    Report &report = report_start(DIVERGENT_WARP, &fiber);
    report_place(report, fiber.place);
    snprintf(report.text, sizeof report.text, "%s reads lane %d, which %s", fiber.name, source, why);
    stop();
}

uint64_t reduce(Collective op, uint64_t a, uint64_t b)
{
    int64_t i = int64_t(a), j = int64_t(b);
    switch (op) {
    case ADD_SIGNED:
        return a + b;
    case MIN_SIGNED:
        return i < j ? a : b;
    case MAX_SIGNED:
        return i > j ? a : b;
    case MIN_UNSIGNED:
        return a < b ? a : b;
    case MAX_UNSIGNED:
        return a > b ? a : b;
    case AND:
        return a & b;
    case OR:
        return a | b;
    default:
        return a ^ b;
    }
}

uint64_t result_of(const Fiber &fiber, uint32_t lanes)
{
    uint64_t result = 0;
    switch (fiber.op) {
    case SYNC:
        return 0;
    case SHUFFLE:
        if (fiber.source < 0 || fiber.source == fiber.lane)
            return fiber.value;
        if (!(fiber.mask >> fiber.source & 1))
            report_source(fiber, fiber.source, "is not in the mask");
        if (!(lanes >> fiber.source & 1))
            report_source(fiber, fiber.source,
                          unsigned(fiber.warp * WARP + fiber.source) < run.n_threads ? "has returned"
                                                                                     : "the block does not have");
        return lane_of(fiber.warp, unsigned(fiber.source))->value;
    case BALLOT:
        for_lanes(lanes, [&](unsigned lane) { result |= uint64_t(lane_of(fiber.warp, lane)->value != 0) << lane; });
        return result;
    case MATCH_ANY:
    case MATCH_ALL:
        for_lanes(lanes,
                  [&](unsigned lane) { result |= uint64_t(lane_of(fiber.warp, lane)->value == fiber.value) << lane; });
        return fiber.op == MATCH_ANY || result == lanes ? result : 0;
    case ACTIVE:
        return lanes;
    default:
        break;
    }
    bool first = true;
    for_lanes(lanes, [&](unsigned lane) {
        uint64_t value = lane_of(fiber.warp, lane)->value;
        result = first ? value : reduce(fiber.op, result, value);
        first = false;
    });
    return result;
}

// Completes the collective for `lanes`, which all wait in it; `running` needs no waking.
void complete(unsigned warp, uint32_t lanes, const Fiber *running)
{
    for_lanes(lanes, [&](unsigned lane) {
        Fiber &fiber = *lane_of(warp, lane);
        fiber.result = result_of(fiber, lanes);
    });
    if (lane_of(warp, unsigned(__builtin_ctz(lanes)))->op == SYNC)
        synchronise(run.warps[warp], lanes);
    for_lanes(lanes, [&](unsigned lane) {
        Fiber &fiber = *lane_of(warp, lane);
        if (&fiber != running)
            ready(fiber);
    });
}

// Whether every living lane of the fiber's mask is in its collective. The last one first: it comes last.
bool is_complete(const Fiber &fiber, uint32_t lanes)
{
    while (lanes) {
        unsigned lane = 31u - unsigned(__builtin_clz(lanes));
        lanes &= ~(1u << lane);
        const Fiber &other = *lane_of(fiber.warp, lane);
        if (other.state != AT_COLLECTIVE || other.op != fiber.op || other.mask != fiber.mask)
            return false;
    }
    return true;
}

bool same_place(const Place &a, const Place &b)
{
    return a.line == b.line && strcmp(a.file, b.file) == 0;
}

void describe(const Fiber &fiber, char *text, size_t size)
{
    if (fiber.state == EXITED)
        snprintf(text, size, "has returned");
    else
        snprintf(text, size, "waits in %s", fiber.name);
}

[[noreturn]] void report_missing_in_tile(const Fiber &fiber)
{
    Report &report = report_start(DIVERGENT_BARRIER, &fiber);
    report_place(report, fiber.place);
    snprintf(report.text, sizeof report.text, "%s is not reached by all %u threads of the tile", fiber.name,
             fiber.mask);
    stop();
}

// Why the collective in which the fiber waits cannot complete.
[[noreturn]] void report_missing(const Fiber &fiber)
{
    if (fiber.op == TILE)
        report_missing_in_tile(fiber);
    const Fiber *missing = nullptr;
    for_lanes(fiber.mask & run.warps[fiber.warp].alive, [&](unsigned lane) {
        const Fiber &other = *lane_of(fiber.warp, lane);
        if (!missing && !(other.state == AT_COLLECTIVE && other.op == fiber.op && other.mask == fiber.mask))
            missing = &other;
    });
    Report &report = report_start(DIVERGENT_WARP, &fiber);
    report_place(report, fiber.place);
    char does[128];
    describe(missing ? *missing : fiber, does, sizeof does);
    if (missing && missing->state == AT_COLLECTIVE && missing->op == fiber.op)
        snprintf(does, sizeof does, "calls it with mask 0x%08x", missing->mask);
    if (missing)
        report_other(report, *missing);
    snprintf(report.text, sizeof report.text, "%s with mask 0x%08x waits for lane %u, which %s", fiber.name, fiber.mask,
             missing ? missing->lane : 0u, does);
    stop();
}

} // namespace

uint64_t collective(Collective op, uint32_t mask, uint64_t value, int source, const char *name, Place place)
{
    Fiber &fiber = *run.current;
    fiber.op = op;
    fiber.mask = mask;
    fiber.value = value;
    fiber.source = source;
    fiber.name = name;
    fiber.place = place;
    fiber.state = AT_COLLECTIVE;
    if (op < ACTIVE) {
        if (!(mask >> fiber.lane & 1)) {
            Report &report = report_start(DIVERGENT_WARP, &fiber);
            report_place(report, place);
            snprintf(report.text, sizeof report.text, "%s with mask 0x%08x is called by lane %u, which is not in it",
                     name, mask, fiber.lane);
            stop();
        }
        uint32_t lanes = mask & run.warps[fiber.warp].alive;
        if (is_complete(fiber, lanes)) {
            complete(fiber.warp, lanes, &fiber);
            fiber.state = RUNNING;
            return fiber.result;
        }
    }
    fiber_yield();
    return fiber.result;
}

void warp_left(Fiber &fiber)
{
    Warp &warp = run.warps[fiber.warp];
    warp.alive &= ~(1u << fiber.lane);
    uint32_t waiting = warp.alive;
    while (waiting) {
        Fiber &other = *lane_of(fiber.warp, unsigned(__builtin_ctz(waiting)));
        waiting &= waiting - 1;
        if (other.state != AT_COLLECTIVE || other.op >= ACTIVE || !(other.mask >> fiber.lane & 1))
            continue;
        uint32_t lanes = other.mask & warp.alive;
        waiting &= ~lanes;
        if (is_complete(other, lanes))
            complete(fiber.warp, lanes, nullptr);
    }
}

// Completes the exchange in a tile of several warps if all threads that have not returned are in it. What they did
// before counts as ordered for the whole block, which overlooks races between tiles.
static void try_tile(const Fiber &fiber)
{
    unsigned first = fiber.index / fiber.mask * fiber.mask;
    unsigned end = first + fiber.mask < run.n_threads ? first + fiber.mask : run.n_threads;
    for (unsigned i = first; i < end; i++) {
        const Fiber &other = run.fibers[i];
        if (other.state != EXITED && (other.state != AT_COLLECTIVE || other.op != TILE || other.mask != fiber.mask))
            return;
    }
    bool sync = false;
    for (unsigned i = first; i < end; i++) {
        Fiber &other = run.fibers[i];
        unsigned source = first + unsigned(other.source);
        sync = sync || other.source < 0;
        if (other.state == EXITED || other.source < 0)
            continue;
        if (source >= end || run.fibers[source].state == EXITED)
            report_source(other, other.source, "is not there");
        other.result = run.fibers[source].value;
    }
    for (unsigned i = first; i < end; i++) {
        if (run.fibers[i].state == AT_COLLECTIVE)
            ready(run.fibers[i]);
    }
    if (sync)
        run.epoch++;
}

static bool release_tiles()
{
    bool released = false;
    for (unsigned i = 0; i < run.n_threads; i++) {
        const Fiber &fiber = run.fibers[i];
        if (fiber.state != AT_COLLECTIVE || fiber.op != TILE)
            continue;
        try_tile(fiber);
        released = released || fiber.state == READY;
    }
    return released;
}

// Threads of a warp that ask at the same place which lanes are active are those, once no other of the warp can go on.
bool release_active()
{
    bool released = release_tiles();
    for (unsigned w = 0; w < run.n_warps; w++) {
        uint32_t lanes = 0;
        const Fiber *first = nullptr;
        bool moving = false;
        for_lanes(run.warps[w].alive, [&](unsigned lane) {
            const Fiber &fiber = *lane_of(w, lane);
            moving = moving || (fiber.state != AT_COLLECTIVE && fiber.state != AT_BARRIER && fiber.state != SPINNING);
            if (fiber.state != AT_COLLECTIVE || fiber.op != ACTIVE)
                return;
            if (!first)
                first = &fiber;
            if (same_place(fiber.place, first->place))
                lanes |= 1u << lane;
        });
        if (lanes && !moving) {
            complete(w, lanes, nullptr);
            released = true;
        }
    }
    return released;
}

void report_divergence()
{
    const Fiber *waiting = nullptr, *other = nullptr;
    for (unsigned i = 0; i < run.n_threads; i++) {
        if (run.fibers[i].state == AT_COLLECTIVE)
            report_missing(run.fibers[i]);
        if (run.fibers[i].state == AT_BARRIER && !waiting)
            waiting = &run.fibers[i];
    }
    for (unsigned i = 0; i < run.n_threads && !other; i++) {
        const Fiber &fiber = run.fibers[i];
        if (fiber.state == EXITED ? !run.launch->exited_pass : !same_place(fiber.place, waiting->place))
            other = &fiber;
    }
    Report &report = report_start(DIVERGENT_BARRIER, waiting);
    report_place(report, waiting->place);
    report_other(report, *other);
    char does[128];
    describe(*other, does, sizeof does);
    snprintf(report.text, sizeof report.text, "%s is not reached by all threads of the block: thread (%u,%u,%u) %s%s",
             waiting->name, other->thread.x, other->thread.y, other->thread.z, does,
             other->state == EXITED ? " (from sm_70 on a barrier waits only for those that have not: "
                                      "exited_threads=\"allow\" does so here)"
                                    : "");
    stop();
}

} // namespace kops

extern "C" {

unsigned long long kops_host_collective(unsigned op, unsigned mask, unsigned long long value, int source,
                                        const char *name, const char *file, unsigned line)
{
    return kops::collective(kops::Collective(op), mask, value, source, name, {file, line, 0});
}

unsigned long long kops_host_exchange_in_tile(unsigned size, int rank, unsigned long long value, const char *name,
                                              const char *file, unsigned line)
{
    return kops::collective(kops::TILE, size, value, rank, name, {file, line, 0});
}

void kops_host_show(const void *what, const char *name, const char *file, unsigned line)
{
    kops::run.current->shown = what;
    kops::collective(kops::SYNC, ~0u, 0, -1, name, {file, line, 0});
}

void kops_host_look(unsigned lane, void *to, size_t size)
{
    const kops::Fiber &fiber = *kops::run.current;
    unsigned index = fiber.warp * kops::WARP + lane;
    if (index >= kops::run.n_threads || kops::run.fibers[index].state == kops::EXITED)
        kops::report_source(fiber, int(lane), "is not there");
    memcpy(to, kops::run.fibers[index].shown, size);
}

unsigned kops_host_lane()
{
    return kops::run.current->lane;
}
}
