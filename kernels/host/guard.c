#include "guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    GUARDS = 64,
    STACK_BYTES = 64 << 10 /* stack of the handler, where the system saves up to 11 KiB of registers (AMX) */
};

struct range {
    _Atomic uintptr_t start, end; /* the announced range; end 0: none */
    _Atomic uintptr_t patched;    /* the handler replaced pages from here to the page end of `end`; 0: none */
};

struct guard {
    atomic_bool used;
    atomic_bool faulted;
    struct range ranges[GUARD_MAX_RANGES];
};

/* Static, since the handler may read them on any thread at any time. */
static struct guard guards[GUARDS];
static struct sigaction previous;
static uintptr_t page_mask;
static int pageless_fd = -1; /* an empty file: mapping it gives addresses that fault */
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint patched_ranges; /* patched ranges of all guards; 0: guard_begin() skips other guards */

static uintptr_t page_end(uintptr_t address)
{
    return (address + page_mask) & ~page_mask;
}

/* Maps by a system call, which is async-signal-safe, unlike libc's wrapper under sanitizers. */
static bool map_at(uintptr_t start, uintptr_t end, int flags, int fd)
{
    return syscall(SYS_mmap, start, end - start, PROT_READ | PROT_WRITE, flags | MAP_FIXED | MAP_NORESERVE, fd, 0L) ==
           (long)start;
}

/* Marks all executing jobs that may have read [start, end). */
static void mark(uintptr_t start, uintptr_t end)
{
    for (unsigned g = 0; g < GUARDS; g++)
        for (unsigned r = 0; r < GUARD_MAX_RANGES; r++)
            if (guards[g].ranges[r].start < end && guards[g].ranges[r].end > start)
                atomic_store(&guards[g].faulted, true);
}

/* Maps anonymous memory from the page of `at` to the end of the announced range with `at`. False: no range has it. */
static bool patch(uintptr_t at)
{
    for (unsigned g = 0; g < GUARDS; g++)
        for (unsigned r = 0; r < GUARD_MAX_RANGES; r++) {
            struct range *range = &guards[g].ranges[r];
            uintptr_t end = page_end(range->end), from = at & ~page_mask, old;

            if ((range->start & ~page_mask) > at || at >= end)
                continue;
            /* Published before mark() reads other guards: a job that begins meanwhile is marked there, or sees
             * `patched` in guard_begin(). */
            atomic_fetch_add(&patched_ranges, 1);
            old = atomic_load(&range->patched);
            while ((!old || old > from) && !atomic_compare_exchange_weak(&range->patched, &old, from))
                ;
            if (old)
                atomic_fetch_sub(&patched_ranges, 1);
            mark(from, end);
            return map_at(from, end, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        }
    return false;
}

static void on_sigbus(int signal, siginfo_t *info, void *context)
{
    int saved = errno;
    bool patched = patch((uintptr_t)info->si_addr);

    errno = saved;
    if (patched)
        return;
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(signal, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(signal);
    else
        sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* the fault comes again and is fatal */
}

/* Installs the handler, also if other code has replaced it. */
static int install(struct error *e)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK}, current;
    int result = 0;

    pthread_mutex_lock(&install_lock);
    sigemptyset(&action.sa_mask);
    page_mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    if (pageless_fd < 0)
        pageless_fd = memfd_create("kopsd-pageless", MFD_CLOEXEC);
    if (pageless_fd < 0 || sigaction(SIGBUS, NULL, &current) < 0) {
        result = error_set(e, ERROR_OUT_OF_MEMORY, "installing the SIGBUS guard: %s", strerror(errno));
    } else if (!(current.sa_flags & SA_SIGINFO) || current.sa_sigaction != on_sigbus) {
        previous = current;
        sigaction(SIGBUS, &action, NULL);
    }
    pthread_mutex_unlock(&install_lock);
    return result;
}

/* ---- a stack for the handler ---- */

static pthread_key_t stack_key;
static bool have_key;

static void free_stack(void *stack)
{
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    munmap(stack, STACK_BYTES);
}

static void make_key(void)
{
    have_key = pthread_key_create(&stack_key, free_stack) == 0;
}

bool guard_own_stack(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    stack_t stack = {.ss_size = STACK_BYTES}, present;

    pthread_once(&once, make_key);
    if (have_key && pthread_getspecific(stack_key))
        return true;
    /* Sanitizers give each thread a stack. */
    if (sigaltstack(NULL, &present) == 0 && !(present.ss_flags & SS_DISABLE))
        return true;
    if (!have_key)
        return false;
    stack.ss_sp = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack.ss_sp == MAP_FAILED)
        return false;
    if (pthread_setspecific(stack_key, stack.ss_sp) == 0) {
        if (sigaltstack(&stack, NULL) == 0)
            return true;
        pthread_setspecific(stack_key, NULL);
    }
    munmap(stack.ss_sp, STACK_BYTES);
    return false;
}

int guard_new(struct guard **ret_guard, struct error *e)
{
    if (install(e) < 0)
        return -1;
    for (unsigned g = 0; g < GUARDS; g++)
        if (!atomic_exchange(&guards[g].used, true)) {
            *ret_guard = &guards[g];
            return 0;
        }
    return error_set(e, ERROR_LIMIT_EXCEEDED, "more than %d guarded executions at once", GUARDS);
}

struct guard *guard_free(struct guard *guard)
{
    if (guard)
        atomic_store(&guard->used, false);
    return NULL;
}

void guard_begin(struct guard *guard, const struct guard_range *ranges, unsigned count)
{
    atomic_store_explicit(&guard->faulted, false, memory_order_relaxed);
    for (unsigned r = 0; r < count; r++) {
        atomic_store_explicit(&guard->ranges[r].start, ranges[r].start, memory_order_relaxed);
        atomic_store_explicit(&guard->ranges[r].end, ranges[r].end, memory_order_release);
    }
    atomic_thread_fence(memory_order_seq_cst);
    /* Memory that the handler has patched for another job no longer faults, so this job is marked here. */
    if (!atomic_load_explicit(&patched_ranges, memory_order_relaxed))
        return;
    for (unsigned g = 0; g < GUARDS; g++) {
        if (&guards[g] == guard)
            continue;
        for (unsigned r = 0; r < GUARD_MAX_RANGES; r++) {
            uintptr_t from = atomic_load_explicit(&guards[g].ranges[r].patched, memory_order_relaxed);

            if (from)
                mark(from, page_end(guards[g].ranges[r].end));
        }
    }
}

bool guard_end(struct guard *guard)
{
    for (unsigned r = 0; r < GUARD_MAX_RANGES; r++) {
        struct range *range = &guard->ranges[r];
        uintptr_t patched = atomic_load_explicit(&range->patched, memory_order_relaxed);

        if (patched) {
            map_at(patched, page_end(range->end), MAP_SHARED, pageless_fd);
            atomic_store(&range->patched, 0);
            atomic_fetch_sub(&patched_ranges, 1);
        }
        if (range->end) {
            atomic_store_explicit(&range->end, 0, memory_order_release);
            atomic_store_explicit(&range->start, 0, memory_order_relaxed);
        }
    }
    return atomic_load(&guard->faulted);
}
