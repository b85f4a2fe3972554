// Fibers: stacks, and changing from one to another.
//
// A stack belongs to a fiber from its start to its end; stacks of fibers that ended are reused, the latest first, so
// that a kernel without barriers runs in one stack. Each has a page without access below it. They are kept between
// runs.
#include "host.h"

#include <cstring>
#include <sys/mman.h>

extern "C" {
// Saves the registers that a call preserves on the stack, stores the stack pointer at `save` and continues at `to`.
void kops_host_switch(void **save, void *to);
void kops_host_start();
void kops_host_fiber_main();
}

#if defined(__x86_64__)
asm(R"(
    .text
    .globl kops_host_switch
    .hidden kops_host_switch
    .type kops_host_switch, @function
kops_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size kops_host_switch, .-kops_host_switch
    .globl kops_host_start
    .hidden kops_host_start
    .type kops_host_start, @function
kops_host_start:
    xorl %ebp, %ebp
    call kops_host_fiber_main@PLT
    ud2
    .size kops_host_start, .-kops_host_start
)");
enum { SAVED_WORDS = 7, START_WORD = 6 };
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl kops_host_switch
    .hidden kops_host_switch
    .type kops_host_switch, %function
kops_host_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size kops_host_switch, .-kops_host_switch
    .globl kops_host_start
    .hidden kops_host_start
    .type kops_host_start, %function
kops_host_start:
    mov x29, xzr
    bl kops_host_fiber_main
    brk #1
    .size kops_host_start, .-kops_host_start
)");
enum { SAVED_WORDS = 20, START_WORD = 11 };
#else
#error "the interpreter runs on x86-64 and AArch64"
#endif

namespace kops
{

namespace
{
uintptr_t stacks[MAX_THREADS]; // every stack there is
unsigned n_stacks;
uintptr_t idle[MAX_THREADS];
unsigned n_idle;

uintptr_t stack_take()
{
    if (n_idle)
        return idle[--n_idle];
    if (n_stacks == MAX_THREADS)
        return 0;
    void *memory = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    mprotect(memory, GUARD_BYTES, PROT_NONE);
    uintptr_t stack = reinterpret_cast<uintptr_t>(memory) + GUARD_BYTES;
    stacks[n_stacks++] = stack;
    return stack;
}
} // namespace

void fiber_prepare(Fiber &fiber)
{
    fiber.stack = stack_take();
    if (!fiber.stack) {
        Report &report = report_start(UNSUPPORTED, &fiber);
        strncpy(report.text, "there is no memory for the stacks of the block's threads", sizeof report.text - 1);
        stop();
    }
    // Stacks begin at different offsets in a page: equal ones would fall on the same lines of the cache.
    uintptr_t top = fiber.stack + STACK_BYTES - (fiber.index % 16) * 64;
    void **words = reinterpret_cast<void **>(top) - SAVED_WORDS;
    memset(words, 0, SAVED_WORDS * sizeof *words);
    words[START_WORD] = reinterpret_cast<void *>(kops_host_start);
    fiber.sp = words;
}

void fiber_release(Fiber &fiber)
{
    if (fiber.stack)
        idle[n_idle++] = fiber.stack;
    fiber.stack = 0;
}

void fiber_resume(Fiber &fiber)
{
    fiber.state = RUNNING;
    run.current = &fiber;
    kops_host_switch(&run.scheduler, fiber.sp);
    run.current = nullptr;
}

void fiber_yield()
{
    kops_host_switch(&run.current->sp, run.scheduler);
}

void fiber_exit()
{
    run.current->state = EXITED;
    fiber_yield();
    __builtin_unreachable();
}

int fiber_of_address(uintptr_t address, bool *guard)
{
    for (unsigned i = 0; i < run.n_threads; i++) {
        const Fiber &fiber = run.fibers[i];
        if (fiber.stack && address - (fiber.stack - GUARD_BYTES) < GUARD_BYTES + STACK_BYTES) {
            *guard = address < fiber.stack;
            return int(i);
        }
    }
    return -1;
}

} // namespace kops
