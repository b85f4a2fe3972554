// Which threads have used each byte of shared memory since the last barrier.
//
// Memory is watched in words of four bytes; a word that is used in parts in a block is watched byte by byte from then
// on. For each the last accesses by up to four threads are kept. Two accesses are in order if a barrier of the block
// lies between them (their epochs differ) or, in a warp, if the later lane has learnt of the earlier one's time through
// __syncwarp. Nothing is cleared between blocks: what is older than the block's first epoch does not count.
#include "host.h"

#include <cstring>
#include <sys/mman.h>

namespace kops
{

namespace
{

enum { SLOTS = 4 };

struct Slot {
    uint32_t epoch;
    uint32_t pc; // distance from the start of the kernel's object
    uint32_t clock;
    uint16_t thread;
    Access access;
};

struct Cell {
    Slot slots[SLOTS];
};

// All by offset in shared memory.
struct Shadow {
    Cell *words, *bytes;
    uint32_t *split;   // per word: the block in which it is watched byte by byte
    uint32_t *written; // per byte: the last block that wrote it
    size_t size;
} shadow;

template <typename T> bool make(T *&array, size_t n)
{
    void *memory =
        mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    array = memory == MAP_FAILED ? nullptr : static_cast<T *>(memory);
    return array != nullptr;
}

template <typename T> void drop(T *&array, size_t n)
{
    if (array)
        munmap(array, n * sizeof(T));
    array = nullptr;
}

bool ordered(const Slot &before, const Fiber &fiber)
{
    unsigned lane = before.thread % WARP;
    return before.thread / WARP == fiber.warp && run.warps[fiber.warp].clock[fiber.lane][lane] >= before.clock;
}

[[noreturn]] void report_race(const Slot &before, size_t offset, size_t size, Access access, uintptr_t pc)
{
    Report &report = report_start(RACE, run.current);
    report_other(report, run.fibers[before.thread]);
    size_t dynamic = (run.n_statics + 15) & ~size_t(15);
    report.where = offset < run.n_statics ? SHARED_STATIC : SHARED_DYNAMIC;
    report.address = offset < run.n_statics ? offset : offset - dynamic;
    report.size = size;
    report.access = access;
    report.other_access = before.access;
    report.pc = pc;
    report.other_pc = run.image + before.pc;
    stop();
}

void note(Cell &cell, size_t offset, size_t size, Access access, uintptr_t pc)
{
    const Fiber &fiber = *run.current;
    uint32_t clock = run.warps[fiber.warp].clock[fiber.lane][fiber.lane];
    Slot *own = nullptr;
    unsigned live = 0;
    for (unsigned i = 0; i < SLOTS; i++) {
        Slot &slot = cell.slots[i];
        if (slot.epoch != run.epoch)
            continue;
        live |= 1u << i;
        if (slot.thread == fiber.index) {
            if (slot.access >= access && slot.access == WRITE && slot.clock == clock)
                return;
            own = &slot;
            continue;
        }
        bool conflict = (access != READ || slot.access != READ) && !(access == ATOMIC && slot.access == ATOMIC);
        if (conflict && !ordered(slot, fiber))
            report_race(slot, offset, size, access, pc);
    }
    // A write that comes after everything before makes it irrelevant: what is not ordered after the write is reported.
    if (access == WRITE) {
        for (Slot &slot : cell.slots)
            slot.epoch = 0;
        own = &cell.slots[0];
    } else if (own && own->access > access && own->clock == clock) {
        return;
    }
    unsigned victim = (~live & 15u) ? unsigned(__builtin_ctz(~live)) : (clock + fiber.index) % SLOTS;
    if (!own && live == 15u) {
        // Writes and atomics stay: losing one of several reads loses less.
        for (unsigned i = 0; i < SLOTS && cell.slots[victim].access != READ; i++)
            victim = (victim + 1) % SLOTS;
    }
    Slot &slot = own ? *own : cell.slots[victim];
    slot = {run.epoch, uint32_t(pc - run.image), clock, fiber.index, access};
}

void check_written(size_t offset, size_t size, Access access, uintptr_t pc)
{
    for (size_t i = 0; i < size; i++) {
        if (shadow.written[offset + i] == run.serial)
            return;
    }
    Report &report = report_start(UNINITIALISED, run.current);
    size_t dynamic = (run.n_statics + 15) & ~size_t(15);
    report.where = offset < run.n_statics ? SHARED_STATIC : SHARED_DYNAMIC;
    report.address = offset < run.n_statics ? offset : offset - dynamic;
    report.size = size;
    report.access = access;
    report.pc = pc;
    stop();
}

} // namespace

bool races_prepare(size_t bytes)
{
    for (unsigned w = 0; w < MAX_WARPS; w++) {
        for (unsigned lane = 0; lane < WARP; lane++) {
            if (!run.warps[w].clock[lane][lane])
                run.warps[w].clock[lane][lane] = 1;
        }
    }
    bytes = (bytes + 4095) & ~size_t(4095);
    if (bytes <= shadow.size)
        return true;
    drop(shadow.words, shadow.size / 4);
    drop(shadow.bytes, shadow.size);
    drop(shadow.split, shadow.size / 4);
    drop(shadow.written, shadow.size);
    bool made = make(shadow.words, bytes / 4) && make(shadow.bytes, bytes) && make(shadow.split, bytes / 4) &&
                make(shadow.written, bytes);
    shadow.size = made ? bytes : 0;
    return made;
}

void races_check(size_t offset, size_t size, Access access, uintptr_t pc)
{
    if (run.launch->checks & CHECK_UNINITIALISED) {
        if (access == READ || access == ATOMIC)
            check_written(offset, size, access, pc);
        for (size_t i = 0; access != READ && i < size; i++)
            shadow.written[offset + i] = run.serial;
    }
    if (access == ATOMIC_STORE)
        access = ATOMIC;
    if (!(run.launch->checks & CHECK_RACE))
        return;
    for (size_t at = offset, end = offset + size; at < end;) {
        size_t word = at / 4, next = word * 4 + 4;
        if (shadow.split[word] != run.serial) {
            if (at % 4 == 0 && next <= end) {
                note(shadow.words[word], offset, size, access, pc);
                at = next;
                continue;
            }
            shadow.split[word] = run.serial;
            for (size_t i = 0; i < 4; i++)
                shadow.bytes[word * 4 + i] = shadow.words[word];
        }
        for (; at < next && at < end; at++)
            note(shadow.bytes[at], offset, size, access, pc);
    }
}

} // namespace kops
