// Copies to shared memory that run beside the thread: __pipeline_memcpy_async and what is made of it.
//
// Such a copy is made when its thread waits for its group, when a thread waits for the barrier object's phase that it
// belongs to, or when its thread returns. Till then an access of where it goes to is a race.
#include "host.h"

#include <cstring>
#include <vector>

namespace kops
{

namespace
{

struct Copy {
    char *to;
    const char *from;
    size_t size, zeros;             // the last bytes are zeros
    const kops_host_phase *barrier; // or NULL
    uint32_t group;                 // of the thread's, or the barrier's phase
    uintptr_t pc;
};

std::vector<Copy> copies[MAX_THREADS]; // by thread
size_t n_copies;

void make(const Copy &copy)
{
    races_in_flight(copy.to, copy.size, 0);
    if (!copy.barrier && run.current) // a barrier orders the copy before all that follows
        access_range(copy.to, copy.size, WRITE, copy.pc);
    memcpy(copy.to, copy.from, copy.size - copy.zeros);
    memset(copy.to + copy.size - copy.zeros, 0, copy.zeros);
}

template <typename F> void make_those(unsigned thread, F is_over)
{
    std::vector<Copy> &all = copies[thread];
    size_t kept = 0, n = all.size();
    for (size_t i = 0; i < n; i++) {
        const Copy copy = all[i];
        if (is_over(copy))
            make(copy);
        else
            all[kept++] = copy;
    }
    all.resize(kept);
    n_copies -= n - kept;
}

} // namespace

void copies_begin_block()
{
    for (unsigned i = 0; i < run.n_threads; i++)
        run.fibers[i].groups = 0;
    for (unsigned i = 0; n_copies && i < MAX_THREADS; i++) // of a run that was stopped
        copies[i].clear();
    n_copies = 0;
}

void copies_end_thread(unsigned thread)
{
    make_those(thread, [](const Copy &) { return true; });
}

void copies_end_phase(const kops_host_phase *barrier)
{
    for (unsigned i = 0; n_copies && i < run.n_threads; i++)
        make_those(i, [&](const Copy &copy) { return copy.barrier == barrier && copy.group != barrier->phase; });
}

uintptr_t copies_place(unsigned thread, const char *at)
{
    for (const Copy &copy : copies[thread]) {
        if (at >= copy.to && at < copy.to + copy.size)
            return copy.pc;
    }
    return 0;
}

} // namespace kops

extern "C" {

void kops_host_copy(void *to, const void *from, size_t size, size_t zeros, const kops_host_phase *barrier)
{
    kops::Fiber &fiber = *kops::run.current;
    kops::access_range(from, size - zeros, kops::READ, KOPS_PC);
    kops::access_range(to, size, kops::WRITE, KOPS_PC);
    kops::copies[fiber.index].push_back({static_cast<char *>(to), static_cast<const char *>(from), size, zeros, barrier,
                                         barrier ? barrier->phase : fiber.groups, KOPS_PC});
    kops::n_copies++;
    kops::races_in_flight(static_cast<const char *>(to), size, uint16_t(fiber.index + 1));
}

void kops_host_copies_commit()
{
    kops::run.current->groups++;
}

void kops_host_copies_wait(unsigned prior)
{
    const kops::Fiber &fiber = *kops::run.current;
    kops::make_those(fiber.index,
                     [&](const kops::Copy &copy) { return !copy.barrier && copy.group + prior < fiber.groups; });
}
}
