/* The emulator's scheduler: the threads of a block take turns, each runs until its next barrier. */
#include "emulator.h"

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

#include "emulator.hpp"

enum { MAX_THREADS = 1024, STACK_BYTES = 64 << 10, WARP = 32 };

emulated_place emulated_thread, emulated_block, emulated_block_size, emulated_grid_size;
emulated_lane emulated_lanes[MAX_THREADS];
float emulated_given[MAX_THREADS];

/* What a thread waits for. */
enum state { READY, AT_WARP_BARRIER, AT_BLOCK_BARRIER, ENDED };

/* Where each goes on. A context, whose change takes two system calls, only begins a thread. */
static jmp_buf scheduler, threads[MAX_THREADS];
static bool begun[MAX_THREADS];
static enum state states[MAX_THREADS];
static unsigned char *stacks;
static const emulated_kernel *running;
static const void *running_params;

static void wait_for(enum state barrier)
{
    const unsigned me = emulated_thread.x;

    states[me] = barrier;
    if (_setjmp(threads[me]) == 0)
        _longjmp(scheduler, 1);
}

void emulated_block_barrier()
{
    wait_for(AT_BLOCK_BARRIER);
}

void emulated_warp_barrier()
{
    wait_for(AT_WARP_BARRIER);
}

/* Of one block after the other. */
static void thread_main()
{
    for (;;) {
        running->call(running->kernel, running_params);
        wait_for(ENDED);
    }
}

static void begin(unsigned i)
{
    static ucontext_t context;

    begun[i] = true;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + (size_t)i * STACK_BYTES;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, thread_main, 0);
    setcontext(&context);
}

/* Runs a thread until it waits for something. */
static void resume(unsigned i)
{
    emulated_thread.x = i;
    if (_setjmp(scheduler) != 0)
        return;
    if (begun[i])
        _longjmp(threads[i], 1);
    begin(i);
}

/* Sets the threads [first, first + n) ready if all of them stand at `barrier`; returns whether it did. */
static bool release(unsigned first, unsigned n, enum state barrier)
{
    for (unsigned i = first; i < first + n; i++)
        if (states[i] != barrier)
            return false;
    for (unsigned i = first; i < first + n; i++)
        states[i] = READY;
    return true;
}

/* Runs one block to its end; false where its threads wait for different things. */
static bool run_block(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        states[i] = READY;
    for (;;) {
        bool progress = false;
        for (unsigned first = 0; first < n; first += WARP) {
            do {
                for (unsigned i = first; i < first + WARP; i++) {
                    if (states[i] != READY)
                        continue;
                    progress = true;
                    resume(i);
                }
            } while (release(first, WARP, AT_WARP_BARRIER));
        }
        if (release(0, n, ENDED))
            return true;
        if (!release(0, n, AT_BLOCK_BARRIER) && !progress) {
            std::memset(begun, 0, sizeof(begun)); /* those that wait are left in the middle of the kernel */
            return false;
        }
    }
}

static const emulated_kernel *find(const emulated_kernel *table, const char *name)
{
    for (; table->name; table++)
        if (std::strcmp(table->name, name) == 0)
            return table;
    return nullptr;
}

int emulate(enum emulated_arch arch, const char *kernel, unsigned grid, unsigned block, const void *params,
            size_t params_size)
{
    running = arch == EMULATED_SM_75 ? find(emulated_sm75, kernel) : nullptr;
    if (!running)
        running = find(emulated_sm80, kernel);
    if (!running || running->params_size != params_size || block > MAX_THREADS || block % WARP != 0)
        return -1;
    if (!stacks)
        stacks = static_cast<unsigned char *>(std::aligned_alloc(4096, (size_t)MAX_THREADS * STACK_BYTES));
    if (!stacks)
        return -1;
    running_params = params;
    emulated_grid_size.x = grid;
    emulated_block_size.x = block;
    for (emulated_block.x = 0; emulated_block.x < grid; emulated_block.x++)
        if (!run_block(block))
            return -1;
    return 0;
}
