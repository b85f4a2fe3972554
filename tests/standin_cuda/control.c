/* What every exported function does first and last, handles, the reporting of misuse, and the control page: this
 * process's row, the switches, the gates. Without KOPS_STANDIN_CONTROL the page is private.
 *
 * Handles are numbers, not addresses: a table entry, its generation and its kind. So a destroyed handle is known for
 * what it is, however late it is used, and never reaches freed memory. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

/* ---- the control page ---- */

static struct standin_control *page;
static struct standin_row *row;

__attribute__((visibility("default"))) uint64_t standin_control_size(void)
{
    return sizeof(struct standin_control);
}

/* Also one that nobody has waited for. */
static bool has_ended(pid_t pid)
{
    char path[32], line[128] = "";
    const char *state;
    int fd;

    if (kill(pid, 0) < 0 && errno == ESRCH)
        return true;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    if (read(fd, line, sizeof(line) - 1) < 0)
        line[0] = '\0';
    close(fd);
    state = strrchr(line, ')'); /* a name of at most 15 bytes comes before */
    return state && (strncmp(state, ") Z", 3) == 0 || strncmp(state, ") X", 3) == 0);
}

/* How long the row can be done without: free ones least, then the latest; what tells of misuse most. */
static uint64_t row_value(const struct standin_row *r)
{
    if (!r->pid)
        return 0;
    return r->order + (r->counters[STANDIN_COUNTER_misuse] ? (uint64_t)1 << 32 : 0);
}

static void take_row(void)
{
    struct standin_row *oldest = NULL;
    int fd;

    for (unsigned i = 0; i < STANDIN_ROWS; i++) {
        struct standin_row *r = &page->rows[i];

        if (oldest && row_value(r) >= row_value(oldest))
            continue;
        if (!r->pid || r->pid == getpid() || has_ended(r->pid))
            oldest = r;
    }
    if (!oldest)
        return; /* every row belongs to a live process: this one counts in private */
    memset(oldest, 0, sizeof(*oldest));
    fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, oldest->command, sizeof(oldest->command) - 1);

        if (n > 0)
            oldest->command[n - 1] = '\0';
        close(fd);
    }
    oldest->order = ++page->row_order;
    oldest->pid = getpid();
    row = oldest;
}

static struct standin_control *map_page(const char *path)
{
    void *mapped = MAP_FAILED;
    struct stat status;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0)
        return NULL;
    if (flock(fd, LOCK_EX) == 0 && fstat(fd, &status) == 0 &&
        ((size_t)status.st_size >= sizeof(struct standin_control) ||
         ftruncate(fd, sizeof(struct standin_control)) == 0))
        mapped = mmap(NULL, sizeof(struct standin_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) {
        page = mapped;
        page->version = STANDIN_VERSION;
        page->magic = STANDIN_MAGIC;
        take_row();
    }
    flock(fd, LOCK_UN); /* the mapping would keep it */
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

void control_attach(void)
{
    static struct standin_control private_page;
    const char *path = getenv("KOPS_STANDIN_CONTROL");

    page = path && *path ? map_page(path) : NULL;
    if (path && *path && !page)
        fprintf(stderr, "cuda_standin: cannot map the control page %s: %s\n", path, strerror(errno));
    if (!page)
        page = &private_page;
    if (!row)
        row = &private_page.rows[0];
}

void count(enum standin_counter_id id, int64_t by)
{
    if (row)
        atomic_fetch_add(&row->counters[id], by);
}

/* Under the mutex, so only this thread adds names. */
void count_call(const char *function)
{
    unsigned hash = 5381;

    for (const char *c = function; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    for (unsigned i = 0; i < STANDIN_CALLS; i++) {
        struct standin_calls *calls = &row->calls[(hash + i) % STANDIN_CALLS];

        if (!calls->function[0])
            snprintf(calls->function, sizeof(calls->function), "%s", function);
        if (strcmp(calls->function, function) == 0) {
            atomic_fetch_add(&calls->count, 1);
            return;
        }
    }
}

CUresult control_fault(const char *function, bool *ret_sticky)
{
    for (unsigned i = 0; i < STANDIN_FAULTS; i++) {
        struct standin_fault *fault = &page->faults[i];
        CUresult error;

        if (!fault->armed || (fault->pid && fault->pid != getpid()) ||
            strncmp(fault->function, function, STANDIN_NAME) != 0)
            continue;
        if (fault->countdown > 1) {
            fault->countdown--;
            continue;
        }
        error = (CUresult)fault->error;
        *ret_sticky = fault->sticky != 0;
        if (fault->times > 1)
            fault->times--;
        else
            fault->armed = 0;
        count(STANDIN_COUNTER_faults, 1);
        if ((int)error == STANDIN_CRASH)
            __builtin_trap();
        return error;
    }
    return CUDA_SUCCESS;
}

bool control_channels(uint32_t *ret_entries)
{
    *ret_entries = page->channel_entries ? page->channel_entries : CHANNEL_ENTRIES;
    return page->channels != 0;
}

uint64_t control_memory_limit(void)
{
    const char *text = getenv("KOPS_STANDIN_MEMORY");
    uint64_t limit = page->memory_limit;

    if (limit)
        return limit;
    limit = text ? strtoull(text, NULL, 0) : 0;
    return limit ? limit : (uint64_t)8 << 30;
}

static bool take_ticket(struct standin_gate *gate)
{
    uint32_t tickets = gate->tickets;

    while (tickets)
        if (atomic_compare_exchange_weak(&gate->tickets, &tickets, tickets - 1))
            return true;
    return false;
}

static bool is_closed(const struct standin_gate *gate)
{
    const int32_t pid = gate->pid;

    return gate->closed && (!pid || pid == row->pid);
}

void gate_pass(enum standin_gate_id id, const _Atomic bool *give_up)
{
    const struct timespec pause = {.tv_nsec = 200000};
    struct standin_gate *gate = &page->gates[id];

    if (is_closed(gate) && !take_ticket(gate)) {
        atomic_fetch_add(&row->gate_waiting[id], 1);
        /* The other side is another process, often a Python one: polled, so that it needs only to write. */
        while (is_closed(gate) && !take_ticket(gate) && !(give_up && *give_up))
            nanosleep(&pause, NULL);
        atomic_fetch_sub(&row->gate_waiting[id], 1);
    }
    atomic_fetch_add(&row->gate_passed[id], 1);
}

void gate_pass_call(enum standin_gate_id gate)
{
    pthread_mutex_unlock(&standin_lock);
    gate_pass(gate, NULL);
    pthread_mutex_lock(&standin_lock);
}

/* ---- calls and misuse ---- */

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t standin_progress = PTHREAD_COND_INITIALIZER;

static _Atomic pid_t initialised_by;
static _Thread_local const char *current_function = "?";

uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

void state_initialised(void)
{
    initialised_by = getpid();
}

bool state_is_initialised(void)
{
    return initialised_by == getpid();
}

/* After a fork the child has the parent's memory but none of its threads; a real driver refuses it as well. Must come
 * before the mutex, which another thread of the parent may have held. */
static bool is_forked_child(void)
{
    pid_t by = initialised_by;

    return by && by != getpid();
}

CUresult enter_uninitialised(const char *name)
{
    bool sticky = false;
    CUresult fault;

    if (is_forked_child())
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&standin_lock);
    current_function = name;
    if (!state_is_initialised())
        return CUDA_SUCCESS;
    count_call(name);
    fault = control_fault(name, &sticky);
    if (fault == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (sticky) {
        struct context *context;

        if (context_current(&context) == CUDA_SUCCESS)
            context_break(context, fault);
    }
    return leave(fault);
}

CUresult enter(const char *name)
{
    if (!state_is_initialised())
        return CUDA_ERROR_NOT_INITIALIZED;
    return enter_uninitialised(name);
}

CUresult enter_context(const char *name, struct context **ret_context)
{
    struct context *context;
    CUresult r;

    ENTER(enter(name));
    r = context_current(&context);
    if (r == CUDA_SUCCESS && context->broken)
        r = context->error;
    if (r == CUDA_SUCCESS)
        r = capture_check_call(name, context);
    if (r != CUDA_SUCCESS)
        return leave(r);
    if (ret_context)
        *ret_context = context;
    return CUDA_SUCCESS;
}

CUresult leave(CUresult result)
{
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult misuse(CUresult result, const char *format, ...)
{
    char text[STANDIN_TEXT];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fprintf(stderr, "cuda_standin: misuse (pid %d): %s: %s\n", (int)getpid(), current_function, text);
    if (row) {
        snprintf(row->last_misuse, sizeof(row->last_misuse), "%.50s: %.140s", current_function, text);
        count(STANDIN_COUNTER_misuse, 1);
    }
    return result;
}

void wait_for_progress(bool *counted)
{
    if (!*counted)
        count(STANDIN_COUNTER_blocking_waits, 1);
    *counted = true;
    pthread_cond_wait(&standin_progress, &standin_lock);
}

/* ---- the profiler ---- */

const struct standin_profiler *standin_profiler;

void standin_set_profiler(const struct standin_profiler *profiler)
{
    pthread_mutex_lock(&standin_lock);
    standin_profiler = profiler;
    pthread_mutex_unlock(&standin_lock);
}

/* ---- handles ---- */

struct entry {
    void *object; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
    enum handle_kind kind;
};

static struct entry *entries;
static uint32_t n_entries, capacity, first_free = UINT32_MAX;

static const char *const kind_names[] = {"",           "context",           "stream", "event",      "module",
                                         "function",   "allocation handle", "graph",  "graph node", "graph exec",
                                         "memory pool"};

void *handle_new(enum handle_kind kind, void *object)
{
    uint32_t index = first_free;

    if (index != UINT32_MAX) {
        first_free = entries[index].next_free;
    } else {
        if (n_entries == capacity) {
            uint32_t more = capacity ? capacity * 2 : 1024;
            struct entry *grown = more < 1U << 24 ? realloc(entries, more * sizeof(*entries)) : NULL;

            if (!grown)
                return NULL;
            entries = grown;
            capacity = more;
        }
        index = n_entries++;
        entries[index].generation = 0;
    }
    entries[index].generation = (entries[index].generation + 1) & 0xffffff;
    entries[index].object = object;
    entries[index].kind = kind;
    return (void *)(uintptr_t)((uint64_t)(0x1c0 + kind) << 48 | (uint64_t)entries[index].generation << 24 | index);
}

void *handle_get(enum handle_kind kind, const void *handle)
{
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    uint32_t index = bits & 0xffffff, generation = bits >> 24 & 0xffffff;

    if (bits >> 48 != (uint64_t)(0x1c0 + kind) || index >= n_entries) {
        misuse(0, "%p is no %s", handle, kind_names[kind]);
        return NULL;
    }
    if (!entries[index].object || entries[index].kind != kind || entries[index].generation != generation) {
        misuse(0, "%s %p was destroyed", kind_names[kind], handle);
        return NULL;
    }
    return entries[index].object;
}

void handle_free(const void *handle)
{
    uint32_t index = (uint64_t)(uintptr_t)handle & 0xffffff;

    entries[index].object = NULL;
    entries[index].next_free = first_free;
    first_free = index;
}
