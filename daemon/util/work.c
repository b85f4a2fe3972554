#include "util/work.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/priority.h"

static void run(uv_work_t *request)
{
    static _Thread_local bool begun;
    struct work *work = request->data;

    if (!begun)
        priority_lower();
    begun = true;
    work->run(work);
}

static void done(uv_work_t *request, int status)
{
    struct work *work = request->data;

    (void)status; /* nothing here is ever cancelled */
    work->done(work);
}

void work_submit(uv_loop_t *loop, struct work *work, void (*run_function)(struct work *),
                 void (*done_function)(struct work *))
{
    work->request.data = work;
    work->run = run_function;
    work->done = done_function;
    uv_queue_work(loop, &work->request, run, done);
}

struct closing {
    struct work work; /* first: freed as the whole */
    unsigned count;
    int fds[];
};

static void close_run(struct work *work)
{
    struct closing *c = (struct closing *)work;

    for (unsigned i = 0; i < c->count; i++)
        close(c->fds[i]);
}

static void close_done(struct work *work)
{
    free(work);
}

void work_close_fds(uv_loop_t *loop, const int *fds, unsigned count)
{
    struct closing *c;

    if (!count)
        return;
    c = malloc(sizeof(*c) + count * sizeof(c->fds[0]));
    if (!c) {
        for (unsigned i = 0; i < count; i++)
            close(fds[i]);
        return;
    }
    c->count = count;
    memcpy(c->fds, fds, count * sizeof(c->fds[0]));
    work_submit(loop, &c->work, close_run, close_done);
}
