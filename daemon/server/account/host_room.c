#include "server/account/host_room.h"

#include <malloc.h>

#include "server/account/account.h"
#include "util/clock.h"
#include "util/host_memory.h"
#include "util/list.h"

/* The kernel's numbers are asked for again after this time. */
enum { FRESH_MS = 100 };
/* A part of all memory that is left to other programs, at most this many bytes: a busy machine has little available
 * memory and must go on. */
enum { RESERVE_PART = 16, RESERVE_MOST = 256 << 20 };
/* Half of that reserve is for users with no more host memory than this, when others have taken the rest. */
enum { MODEST = 16 << 20 };

static void ask(struct host_room *room)
{
    const uint64_t now = clock_now_ns();

    if (room->asked_ns && now - room->asked_ns < FRESH_MS * UINT64_C(1000000))
        return;
    if (!room->asked_ns)
        room->total = host_memory_total();
    room->available = host_memory_available();
    room->resident = host_memory_resident();
    room->asked_ns = now;
}

/* Returns the available memory that is left when every mapped hole has got its page. A hole whose page the daemon made
 * lowers the available memory and counts as resident from then on, so it is not counted twice. */
static uint64_t left_for(const struct host_room *room, const struct account *a)
{
    const uint64_t part = room->total / RESERVE_PART, reserve = part < RESERVE_MOST ? part : RESERVE_MOST;
    const uint64_t absent = room->mapped > room->resident ? room->mapped - room->resident : 0;
    const uint64_t holes = room->holes < absent ? room->holes : absent;
    const uint64_t taken = holes + (a->used[QUOTA_HOST] <= MODEST ? reserve / 2 : reserve);

    return room->available > taken ? room->available - taken : 0;
}

int host_room_take(struct host_room *room, struct account *a, uint64_t size, uint64_t holes, struct host_part *part,
                   struct error *e)
{
    uint64_t may = UINT64_MAX;

    *part = (struct host_part){0};
    if (!size)
        return 0;
    if (holes) {
        ask(room);
        may = account_share(left_for(room, a), a->holes);
    }
    if (holes > may)
        return error_set(e, ERROR_OUT_OF_MEMORY,
                         "%llu bytes without pages are asked for, and the user may have %llu more of such, a share of "
                         "the memory that is available to the daemon; ask for less, or touch the memory in your own "
                         "process before you register it",
                         (unsigned long long)holes, (unsigned long long)may);
    *part = (struct host_part){.account = account_ref(a), .holes = holes, .mapped = size};
    a->holes += holes;
    room->holes += holes;
    room->mapped += size;
    return 0;
}

void host_room_give(struct host_room *room, struct host_part *part)
{
    struct host_part old = host_part_move(part);

    if (!old.account)
        return;
    old.account->holes -= old.holes;
    room->holes -= old.holes;
    room->mapped -= old.mapped;
    account_unref(old.account);
}

/* ---- trimming ---- */

#ifdef __GLIBC__

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
