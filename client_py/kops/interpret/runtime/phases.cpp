// Barriers that are objects, cuda::barrier: threads arrive, and wait for the end of a phase.
//
// When a phase ends, what was done before counts as ordered for the whole block, which overlooks races with threads
// that take no part in it.
#include "host.h"

#include <cstdio>

namespace
{

[[noreturn]] void misused(const char *text)
{
    kops::Report &report = kops::report_start(kops::DIVERGENT_BARRIER, kops::run.current);
    snprintf(report.text, sizeof report.text, "%s", text);
    kops::stop();
}

} // namespace

bool kops::awaits(const Fiber &fiber)
{
    return fiber.state == SPINNING && fiber.awaited && (fiber.awaited->phase & 1) == (fiber.value & 1);
}

void kops::report_awaiting()
{
    const Fiber *waiting = &run.fibers[0];
    while (!awaits(*waiting))
        waiting++;
    Report &report = report_start(DIVERGENT_BARRIER, waiting);
    report_place(report, waiting->place);
    snprintf(report.text, sizeof report.text, "%s waits for %u more to arrive, and no thread can", waiting->name,
             waiting->awaited->missing);
    stop();
}

extern "C" {

void kops_host_phase_init(kops_host_phase *state, unsigned expected)
{
    kops::access(state, 8, kops::WRITE, KOPS_PC);
    *state = {expected, expected, 0, 0};
}

unsigned kops_host_phase_arrive(kops_host_phase *state, unsigned n, int drop)
{
    kops::access(state, 8, kops::ATOMIC, KOPS_PC);
    unsigned phase = state->phase;
    if (n > state->missing)
        misused("more threads arrive at the barrier than it was initialised for");
    if (drop)
        state->expected -= n;
    state->missing -= n;
    if (!state->missing) {
        state->missing = state->expected;
        state->phase++;
        kops::run.epoch++;
    }
    return phase;
}

void kops_host_phase_wait(const kops_host_phase *state, unsigned phase, const char *name, const char *file,
                          unsigned line)
{
    kops::Fiber &fiber = *kops::run.current;
    kops::access(state, 8, kops::ATOMIC, KOPS_PC);
    fiber.name = name;
    fiber.place = {file, line, 0};
    fiber.awaited = state;
    fiber.value = phase;
    while ((state->phase & 1) == (phase & 1))
        kops::fiber_spin();
    fiber.awaited = nullptr;
    kops::copies_end_phase(state);
}
}
