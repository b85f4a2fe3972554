// The state of one run of a kernel on the CPU, shared by the parts of the runtime.
//
// A run executes the blocks of a grid one after another in the calling thread; the threads of a block are fibers, which
// change only where they wait for each other (and, now and then, where a thread spins). There is one run at a time in a
// process: the Python side holds a lock. The runtime is compiled without instrumentation and owns all memory that it
// uses; the kernel's object is compiled with hooks before each access of memory and knows only what the headers
// declare.
#ifndef KOPS_HOST_H
#define KOPS_HOST_H

#include "../include/kops_host/interface.h"

#include <csetjmp>
#include <cstddef>
#include <cstdint>

namespace kops
{

enum { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP, MAX_REGIONS = 64 };

enum Access : uint8_t { READ, WRITE, ATOMIC, ATOMIC_STORE, COPY };

// What went wrong; the Python side has the same list, in the same order.
enum Kind : int32_t {
    NOTHING,
    OUT_OF_BOUNDS,
    RACE,
    DIVERGENT_BARRIER,
    DIVERGENT_WARP,
    UNINITIALISED,
    MISALIGNED,
    READ_ONLY,
    WILD_ACCESS,
    TIMEOUT,
    INTERRUPTED,
    ASSERTION,
    TRAP,
    DIVISION_BY_ZERO,
    STACK_OVERFLOW,
    UNSUPPORTED,
};

enum Check : uint32_t { CHECK_RACE = 1, CHECK_UNINITIALISED = 2 };

struct Place {
    const char *file;
    uint32_t line;
    uint32_t column;
};

// A type as the compilers write it into the object.
struct Type {
    uint16_t kind, info; // info of integers: twice the logarithm of the bits, and 1 for signed ones; of others the bits
    char name[1];
};

// An integer that did not fit, at its last.
struct Overflow {
    const char *type;
    int64_t a, b, wrapped;
    char sign; // of the operation; 0: there was none
    uint16_t fiber;
    Place place;
};

// Memory of a tensor, and the addresses around it that are attributed to it.
struct Region {
    uintptr_t start, end, low, high;
    uint32_t writable;
    uint32_t reserved;
};

struct Launch {
    void (*entry)(void **);
    void **args;
    uint32_t grid[3], block[3];
    uint64_t shared; // dynamic bytes
    double timeout;  // seconds
    uint32_t checks;
    uint32_t n_regions;
    uint32_t only_first;  // block of the grid
    uint32_t exited_pass; // a barrier waits only for threads that have not returned
    uint32_t keeps;       // the kernel's variables are as the launch before left them, and not new
    const Region *regions;
    const uint64_t *guards; // offsets of marks of initialisation in static shared memory, which are always set
    uint64_t n_guards;
    char *dynamic;                               // where the kernel's object keeps its dynamic shared memory
    int (*progress)(const char *text, size_t n); // called now and then; non-zero ends the run
};

enum Where : int32_t { NOWHERE, TENSOR, SHARED_STATIC, SHARED_DYNAMIC, LOCAL_ARRAY, OTHER_STACK, CODE };

struct Report {
    Kind kind;
    uint32_t block[3], thread[3], other[3];
    int32_t has_thread, has_other;
    int32_t access, other_access;
    Where where;
    int32_t region;
    uint64_t address, size; // where is SHARED_*: the offset in that memory
    uint64_t pc, other_pc;  // 0: see the lines
    uint64_t image;         // where the kernel's object begins
    uint32_t line, other_line;
    char file[256], other_file[256], text[512];
    char overflow[160]; // an integer of the same thread that did not fit before
    int64_t wrapped;    // and what became of it
};

struct Uint3 {
    uint32_t x, y, z;
};

enum State : uint8_t { NEW, RUNNING, READY, SPINNING, AT_BARRIER, AT_COLLECTIVE, EXITED };

enum Collective : uint32_t {
    SYNC,
    SHUFFLE,
    BALLOT,
    MATCH_ANY,
    MATCH_ALL,
    ADD_SIGNED,
    MIN_SIGNED,
    MAX_SIGNED,
    MIN_UNSIGNED,
    MAX_UNSIGNED,
    AND,
    OR,
    XOR,
    ACTIVE,
    TILE, // of several warps: `mask` is its size, `source` a rank in it
};

struct Fiber {
    void *sp;
    uintptr_t stack; // lowest address, 0: none now
    Uint3 thread;
    uint16_t index, warp;
    uint8_t lane;
    State state;
    Collective op;
    uint32_t mask;
    int32_t source; // lane that a shuffle reads, -1: one that does not exist
    uint64_t value, result;
    const void *shown;              // see kops_host_show
    const kops_host_phase *awaited; // the barrier object whose phase `value` it waits for, or NULL
    const char *name;               // the barrier or collective where the fiber waits
    Place place;
    uint32_t groups; // of copies that the thread has committed
};

struct Warp {
    uint32_t alive;             // lanes that exist and have not returned
    uint32_t clock[WARP][WARP]; // [a][b]: the time of lane b that lane a knows of
};

enum : size_t { STACK_BYTES = 256 << 10, GUARD_BYTES = 4096 };

struct Run {
    const Launch *launch;
    Report *report;
    Fiber *current; // NULL: no kernel code runs
    int32_t budget; // basic blocks until the next look at the clock
    bool full;      // there is no room for more printed text
    uint32_t n_threads, n_live, n_warps;
    Uint3 block;
    uint32_t epoch;  // counts barriers over all blocks: older accesses are ordered before newer ones
    uint32_t serial; // counts blocks: marks what this block has written
    uintptr_t statics, n_statics, dynamics;
    uintptr_t image, image_end; // the kernel's object
    sigjmp_buf stopped;
    void *scheduler;
    // A read of shared memory that nobody had written: reported when the phase ends, unless somebody writes it till
    // then, which makes it a race. And two writes that conflict unless both write the same: `bytes` is the first one's.
    Overflow overflow;
    size_t n_in_flight; // bytes of shared memory that copies go to
    bool has_unwritten, has_suspect;
    Report unwritten, suspect;
    const char *suspect_at;
    char suspect_bytes[16];
    Fiber fibers[MAX_THREADS];
    Warp warps[MAX_WARPS];
};

extern Run run;

// fiber.cpp
void fiber_prepare(Fiber &fiber); // takes a stack
void fiber_release(Fiber &fiber); // gives it back
void fiber_resume(Fiber &fiber);
void fiber_yield();
[[noreturn]] void fiber_exit();
int fiber_of_address(uintptr_t address, bool *guard); // index of the fiber whose stack it is in, or -1

// schedule.cpp
void fiber_spin();   // lets all others go on first
void fiber_settle(); // makes sure that the thread is not interrupted for a while
void ready(Fiber &fiber);
int run_launch(const Launch *launch, Report *report);

// warp.cpp
uint64_t collective(Collective op, uint32_t mask, uint64_t value, int source, const char *name, Place place);
void warp_left(Fiber &fiber);
bool release_active();
void report_divergence();

// phases.cpp
bool awaits(const Fiber &fiber); // it waits for a phase that is not over
[[noreturn]] void report_awaiting();

// memory.cpp
void check(uintptr_t address, size_t size, Access access, uintptr_t pc);
size_t shared_offset(uintptr_t address); // in the shadow; SIZE_MAX: it is not of shared memory

// copies.cpp
void copies_begin_block();
void copies_end_thread(unsigned thread);
void copies_end_phase(const kops_host_phase *barrier);
uintptr_t copies_place(unsigned thread, const char *at); // of the call that copies to there

// heap.cpp
bool heap_check(uintptr_t address, size_t size, Access access, uintptr_t pc); // false: it is not of the heap
void heap_renew();

// races.cpp
bool races_prepare(size_t bytes);
// `at` is where the bytes are, `offset` their place in the shadow.
void races_check(const char *at, size_t offset, size_t size, Access access, uintptr_t pc);
void races_in_flight(const char *at, size_t size, uint16_t copier); // a thread's number from 1; 0: no longer
void races_begin_block();
void races_settle();    // a write has happened since it was found suspect
void races_end_phase(); // all threads are at a barrier, or have returned

// report.cpp
[[noreturn]] void stop(); // ends the run; what the report says is the caller's
Report &report_start(Kind kind, const Fiber *fiber);
void report_place(Report &report, const Place &place);
void report_other(Report &report, const Fiber &fiber);
void output_flush();
bool signals_take();
void signals_give_back();

inline void access(const void *pointer, size_t size, Access kind, uintptr_t pc)
{
    Fiber *fiber = run.current;
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (fiber && address - fiber->stack >= STACK_BYTES)
        check(address, size, kind, pc);
}

// In words as large as its place allows.
inline void access_range(const void *p, size_t size, Access kind, uintptr_t pc)
{
    const char *at = static_cast<const char *>(p);
    for (size_t n; size; at += n, size -= n) {
        n = size >= 8 && uintptr_t(at) % 8 == 0 ? 8 : size >= 4 && uintptr_t(at) % 4 == 0 ? 4 : 1;
        access(at, n, kind, pc);
    }
}

} // namespace kops

#define KOPS_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

#endif
