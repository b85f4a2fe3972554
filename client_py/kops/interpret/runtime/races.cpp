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
    uint16_t *copier;  // per byte: the thread, from 1, whose copy to it is not over
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

struct Use {
    const char *at;
    size_t offset, size;
    Access access;
    uintptr_t pc;
};

void place_in(Report &report, const Use &use)
{
    size_t dynamic = (run.n_statics + 15) & ~size_t(15);
    report.where = use.offset < run.n_statics ? SHARED_STATIC : SHARED_DYNAMIC;
    report.address = use.offset < run.n_statics ? use.offset : use.offset - dynamic;
    report.size = use.size;
    report.access = use.access;
    report.pc = use.pc;
}

void report_race(const Slot &before, const Use &use)
{
    Report &report = report_start(RACE, run.current);
    report.has_other = 1;
    memcpy(report.other, &run.fibers[before.thread].thread, sizeof report.other);
    place_in(report, use);
    report.other_access = before.access;
    report.other_pc = run.image + before.pc;
    if (before.access != WRITE || use.access != WRITE || use.size > sizeof run.suspect_bytes)
        stop();
    // Threads that write the same do no harm. What is written is known when the thread does something next.
    run.suspect = report;
    report = Report{};
    run.has_suspect = true;
    run.suspect_at = use.at;
    memcpy(run.suspect_bytes, use.at, use.size);
}

void note(Cell &cell, const Use &use)
{
    const Access access = use.access;
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
            if (slot.access == WRITE && slot.clock == clock) // which conflicts with all that another access does
                return;
            own = &slot;
            continue;
        }
        bool conflict = (access != READ || slot.access != READ) && !(access == ATOMIC && slot.access == ATOMIC);
        if (conflict && !ordered(slot, fiber))
            report_race(slot, use);
    }
    // A write that comes after everything before makes it irrelevant: what is not ordered after the write is reported.
    if (access == WRITE) {
        for (Slot &slot : cell.slots)
            slot.epoch = 0;
        own = &cell.slots[0];
    } else if (own && own->access != READ && access == READ && own->clock == clock) {
        return;
    }
    unsigned victim = (~live & 15u) ? unsigned(__builtin_ctz(~live)) : (clock + fiber.index) % SLOTS;
    if (!own && live == 15u) {
        // Writes and atomics stay: losing one of several reads loses less.
        for (unsigned i = 0; i < SLOTS && cell.slots[victim].access != READ; i++)
            victim = (victim + 1) % SLOTS;
    }
    Slot &slot = own ? *own : cell.slots[victim];
    slot = {run.epoch, uint32_t(use.pc - run.image), clock, fiber.index, access};
}

void report_copy(unsigned copier, const Use &use, const char *at)
{
    Report &report = report_start(RACE, run.current);
    report.has_other = 1;
    memcpy(report.other, &run.fibers[copier].thread, sizeof report.other);
    place_in(report, use);
    report.other_access = COPY;
    report.other_pc = copies_place(copier, at);
    stop();
}

void check_written(const Use &use)
{
    for (size_t i = 0; i < use.size; i++) {
        if (shadow.written[use.offset + i] == run.serial)
            return;
    }
    if (run.has_unwritten)
        return;
    Report &report = report_start(UNINITIALISED, run.current);
    place_in(report, use);
    run.unwritten = report;
    report = Report{};
    run.has_unwritten = true;
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
    drop(shadow.copier, shadow.size);
    bool made = make(shadow.words, bytes / 4) && make(shadow.bytes, bytes) && make(shadow.split, bytes / 4) &&
                make(shadow.written, bytes) && make(shadow.copier, bytes);
    shadow.size = made ? bytes : 0;
    return made;
}

void races_check(const char *at, size_t offset, size_t size, Access access, uintptr_t pc)
{
    if (run.launch->checks & CHECK_UNINITIALISED) {
        if (access == READ || access == ATOMIC)
            check_written({at, offset, size, access, pc});
        for (size_t i = 0; access != READ && i < size; i++)
            shadow.written[offset + i] = run.serial;
    }
    if (!(run.launch->checks & CHECK_RACE))
        return;
    for (size_t i = 0; run.n_in_flight && i < size; i++) {
        if (shadow.copier[offset + i])
            report_copy(shadow.copier[offset + i] - 1u, {at, offset, size, access, pc}, at + i);
    }
    const Use use{at, offset, size, access == ATOMIC_STORE ? ATOMIC : access, pc};
    for (size_t byte = offset, end = offset + size; byte < end;) {
        size_t word = byte / 4, next = word * 4 + 4;
        if (shadow.split[word] != run.serial) {
            if (byte % 4 == 0 && next <= end) {
                note(shadow.words[word], use);
                byte = next;
                continue;
            }
            shadow.split[word] = run.serial;
            for (size_t i = 0; i < 4; i++)
                shadow.bytes[word * 4 + i] = shadow.words[word];
        }
        for (; byte < next && byte < end; byte++)
            note(shadow.bytes[byte], use);
    }
}

void races_in_flight(const char *at, size_t size, uint16_t copier)
{
    size_t offset = shared_offset(reinterpret_cast<uintptr_t>(at));
    if (offset == SIZE_MAX)
        return;
    for (size_t i = 0; i < size; i++)
        shadow.copier[offset + i] = copier;
    run.n_in_flight += copier ? size : -size;
}

void races_begin_block()
{
    if (run.n_in_flight)
        memset(shadow.copier, 0, shadow.size * sizeof *shadow.copier);
    run.n_in_flight = 0;
    for (uint64_t i = 0; i < run.launch->n_guards; i++) {
        for (size_t byte = 0; byte < 8; byte++)
            shadow.written[run.launch->guards[i] + byte] = run.serial;
    }
}

void races_settle()
{
    if (!run.has_suspect)
        return;
    run.has_suspect = false;
    if (memcmp(run.suspect_at, run.suspect_bytes, run.suspect.size) == 0)
        return;
    *run.report = run.suspect;
    stop();
}

void races_end_phase()
{
    if (run.has_unwritten)
        stop(); // says so
}

} // namespace kops
