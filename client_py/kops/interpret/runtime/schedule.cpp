// Running a grid: the blocks in order, in each the threads until all have returned.
//
// A thread runs until it waits or returns. Those that may go on come first, so that warps finish one by one; then
// threads that have not begun; then those that spin. When none of these is left, what the waiting threads wait for is
// complete, or cannot happen any more and is reported.
#include "host.h"

#include <cstring>
#include <ctime>

#define BUILT_IN __attribute__((section("kops_built_in")))

extern "C" {
BUILT_IN kops_uint3 threadIdx, blockIdx, kops_host_block_size, kops_host_grid_size;
}

namespace kops
{

Run run;

namespace
{

enum { BUDGET = 1 << 14, MARGIN = 256 };

// Indices of fibers, first in first out. Each fiber is at most once in one of them.
struct Queue {
    uint16_t items[MAX_THREADS];
    unsigned first, n;

    void push(uint16_t item)
    {
        items[(first + n++) % MAX_THREADS] = item;
    }

    uint16_t pop()
    {
        uint16_t item = items[first];
        first = (first + 1) % MAX_THREADS;
        n--;
        return item;
    }
};

Queue runnable, spinning;
unsigned n_begun;
double deadline;

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// In the scheduler's own stack, because it calls Python.
void look_at_clock()
{
    run.budget = BUDGET;
    const Fiber *fiber = spinning.n ? &run.fibers[spinning.items[spinning.first]] : nullptr;
    static unsigned turns;
    if (++turns % 256 == 0 || run.full) {
        run.full = false;
        output_flush();
    }
    if (now() > deadline) {
        report_start(TIMEOUT, fiber);
        stop();
    }
}

// Threads wait at a barrier of the block and no other can go on: lets them pass if all are there.
bool release_barrier()
{
    const Fiber *first = nullptr;
    for (unsigned i = 0; i < run.n_threads; i++) {
        const Fiber &fiber = run.fibers[i];
        if (fiber.state == EXITED && run.launch->exited_pass)
            continue;
        if (fiber.state != AT_BARRIER)
            return false;
        if (!first)
            first = &fiber;
        if (fiber.place.line != first->place.line || strcmp(fiber.place.file, first->place.file) != 0)
            return false;
    }
    races_end_phase();
    uint64_t count = 0;
    for (unsigned i = 0; i < run.n_threads; i++)
        count += run.fibers[i].state == AT_BARRIER ? run.fibers[i].value : 0;
    for (unsigned i = 0; i < run.n_threads; i++) {
        if (run.fibers[i].state != AT_BARRIER)
            continue;
        run.fibers[i].result = count;
        ready(run.fibers[i]);
    }
    run.epoch++;
    return true;
}

void begin_block()
{
    run.block = {blockIdx.x, blockIdx.y, blockIdx.z};
    run.epoch++;
    run.serial++;
    run.n_live = run.n_threads;
    run.overflow.sign = 0;
    n_begun = 0;
    runnable.n = spinning.n = 0;
    const uint32_t *size = run.launch->block;
    for (unsigned i = 0; i < run.n_threads; i++) {
        Fiber &fiber = run.fibers[i];
        fiber.thread = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
        fiber.index = uint16_t(i);
        fiber.warp = uint16_t(i / WARP);
        fiber.lane = uint8_t(i % WARP);
        fiber.state = NEW;
        fiber.awaited = nullptr;
    }
    for (unsigned w = 0; w < run.n_warps; w++) {
        unsigned lanes = run.n_threads - w * WARP;
        run.warps[w].alive = lanes >= WARP ? ~0u : (1u << lanes) - 1;
    }
    // What a block finds in shared memory is anything; as numbers, NaN.
    memset(reinterpret_cast<void *>(run.statics), 0xff, run.n_statics);
    memset(run.launch->dynamic, 0xff, run.launch->shared);
    races_begin_block();
    copies_begin_block();
}

void run_thread(Fiber &fiber)
{
    if (fiber.state == NEW)
        fiber_prepare(fiber);
    threadIdx = {fiber.thread.x, fiber.thread.y, fiber.thread.z};
    fiber_resume(fiber);
    races_settle();
    if (fiber.state == EXITED) {
        copies_end_thread(fiber.index);
        fiber_release(fiber);
        run.n_live--;
        warp_left(fiber);
    } else if (fiber.state == SPINNING) {
        spinning.push(fiber.index);
        look_at_clock();
    }
}

// Looked at once while all that spin have a turn: whether none of the threads can ever go on.
bool is_stuck()
{
    static unsigned turns;
    if (++turns < spinning.n)
        return false;
    turns = 0;
    bool any = false;
    for (unsigned i = 0; i < run.n_threads; i++) {
        const Fiber &fiber = run.fibers[i];
        if (fiber.state == SPINNING && !awaits(fiber))
            return false;
        any = any || fiber.state == SPINNING;
    }
    return any;
}

void run_block()
{
    begin_block();
    while (run.n_live) {
        if (runnable.n)
            run_thread(run.fibers[runnable.pop()]);
        else if (n_begun < run.n_threads)
            run_thread(run.fibers[n_begun++]);
        else if (release_active())
            continue;
        else if (spinning.n && is_stuck())
            report_awaiting();
        else if (spinning.n)
            run_thread(run.fibers[spinning.pop()]);
        else if (!release_barrier())
            report_divergence();
    }
    races_end_phase();
    if (run.budget <= 0)
        look_at_clock();
}

void run_grid()
{
    const uint32_t *grid = run.launch->grid;
    for (uint32_t z = 0; z < grid[2]; z++) {
        for (uint32_t y = 0; y < grid[1]; y++) {
            for (uint32_t x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                run_block();
                run.budget -= 64; // blocks without a loop count as well
                if (run.launch->only_first)
                    return;
            }
        }
    }
}

} // namespace

void ready(Fiber &fiber)
{
    fiber.state = READY;
    runnable.push(fiber.index);
}

void fiber_spin()
{
    run.current->state = SPINNING;
    fiber_yield();
}

void fiber_settle()
{
    if (run.budget < MARGIN)
        fiber_spin();
}

int run_launch(const Launch *launch, Report *report)
{
    run.launch = launch;
    run.report = report;
    *report = Report{};
    run.current = nullptr;
    run.has_unwritten = run.has_suspect = false;
    run.budget = BUDGET;
    run.n_threads = launch->block[0] * launch->block[1] * launch->block[2];
    run.n_warps = (run.n_threads + WARP - 1) / WARP;
    kops_host_block_size = {launch->block[0], launch->block[1], launch->block[2]};
    kops_host_grid_size = {launch->grid[0], launch->grid[1], launch->grid[2]};
    deadline = now() + launch->timeout;
    bool signals = signals_take();
    if (!sigsetjmp(run.stopped, 1))
        run_grid();
    run.current = nullptr;
    if (signals)
        signals_give_back();
    for (unsigned i = 0; i < run.n_threads; i++)
        fiber_release(run.fibers[i]);
    output_flush();
    return report->kind;
}

} // namespace kops

extern "C" {

void kops_host_fiber_main()
{
    kops::run.launch->entry(kops::run.launch->args);
    kops::fiber_exit();
}

unsigned kops_host_barrier(unsigned value, const char *name, const char *file, unsigned line)
{
    kops::Fiber &fiber = *kops::run.current;
    fiber.state = kops::AT_BARRIER;
    fiber.value = value;
    fiber.name = name;
    fiber.place = {file, line, 0};
    kops::fiber_yield();
    return unsigned(fiber.result);
}

// Called at each basic block of the kernel.
void __sanitizer_cov_trace_pc()
{
    if (kops::run.current && --kops::run.budget <= 0)
        kops::fiber_spin();
}

long long kops_host_clock()
{
    return (long long)(kops::now() * 1e9);
}

clock_t __wrap_clock()
{
    return clock_t(unsigned(kops_host_clock())); // a counter of 32 bits
}

unsigned kops_host_thread_index()
{
    return kops::run.current->index;
}
}
