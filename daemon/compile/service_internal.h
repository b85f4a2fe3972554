/* Shared by the service's files: its state, requests for binaries (service.c), files on disk (service_files.c), the
 * administrator's actions (service_tasks.c). Thread: the loop's, except where a function says pool. */
#ifndef KOPS_COMPILE_SERVICE_INTERNAL_H
#define KOPS_COMPILE_SERVICE_INTERNAL_H

#include "compile/cache_disk.h"
#include "compile/cache_memory.h"
#include "compile/service.h"
#include "compile/turns.h"
#include "util/list.h"
#include "util/work.h"

struct code_service {
    uv_loop_t *loop;
    struct compiler *compiler; /* NULL once it is closed */
    struct cache_memory *memory;
    struct cache_disk *disk; /* NULL: none */
    uint64_t source_bytes, memory_bytes;
    struct list inflight, tasks;
    unsigned n_compiling, most; /* the compiler has so many sources, and is given at most so many */
    struct turns turns;         /* of requests that wait for the compiler */
    uint64_t n_requests;        /* so far */
    unsigned busy; /* work on the pool, callbacks that are running: the service stays as long as there is some */
    bool closing;
    void (*closed)(void *context);
    void *closed_context;
    struct code_counters counters;
};

static inline void service_hold(struct code_service *s)
{
    s->busy++;
}

/* May free the service, when it is closing. */
void service_let_go(struct code_service *s);

/* Copies an input with all it points at into one allocation for free(); NULL when memory is short. */
struct compile_input *service_copy_input(const struct compile_input *input);

/* Writes the module's file on the pool, or marks it as used. A failure is a line in the log. */
void service_store(struct code_service *s, struct compiled *compiled);
void service_touch(struct code_service *s, struct compiled *compiled);

/* Detaches the tasks from their owners; work on the pool ends by itself. */
void service_drop_tasks(struct code_service *s);

#endif
