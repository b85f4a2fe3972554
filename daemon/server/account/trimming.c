#include "server/account/trimming.h"

#ifdef __GLIBC__
#include <malloc.h>

#include "util/list.h"

#endif

/* Waits a second, so that much is given back at once. Less than WORTH_BYTES is not worth a search of the heap. Threads
 * that allocate meanwhile wait for the search, which is short where little has gathered. */
enum { AFTER_MS = 1000, WORTH_BYTES = 4 << 20 };

static void trim(struct work *work)
{
    (void)work;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static void trimmed(struct work *work)
{
    struct trimming *t = list_entry(work, struct trimming, work);

    t->busy = false;
    trimming_note(t, 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct trimming *t = timer->data;

    if (t->busy)
        return;
    t->busy = true;
    t->freed = 0;
    work_submit(t->loop, &t->work, trim, trimmed);
}

void trimming_note(struct trimming *t, uint64_t bytes)
{
    t->freed += bytes;
    if (t->freed >= WORTH_BYTES && !t->busy && !uv_is_active((uv_handle_t *)&t->timer) &&
        !uv_is_closing((uv_handle_t *)&t->timer))
        uv_timer_start(&t->timer, on_timer, AFTER_MS, 0);
}

void trimming_init(struct trimming *t, uv_loop_t *loop)
{
    t->loop = loop;
    uv_timer_init(loop, &t->timer);
    t->timer.data = t;
}

void trimming_stop(struct trimming *t)
{
    uv_close((uv_handle_t *)&t->timer, NULL);
}
