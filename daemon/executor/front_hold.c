/* Holds: while one executor reads a GPU's counters, or has an exclusive job there, no job on that GPU, or with memory
 * of it, is sent to another one, since what others do there is counted, or disturbs it. Jobs that executors have end
 * first. Other GPUs go on. Thread: loop. */
#include "executor/front.h"
#include "util/clock.h"

enum {
    LOOKED_AT = 64, /* waiting streams, when the next one is chosen */
    DEFAULT_EXCLUSIVE_MS = 50
};

#define QUIET_NS                                                                                                       \
    UINT64_C(2000000000) /* longest wait of a hold for the jobs of others; then it is given up for a while */
#define JUST_NOW_NS UINT64_C(500000000)  /* an executor that had work within this time will likely have more */
#define COUNTING_NS UINT64_C(5000000000) /* longest wait of others while it counts */
#define PATIENCE_NS UINT64_C(2000000000) /* longest wait of a job; then it runs beside others, and says so */

/* ---- exclusive jobs that wait: whose turn it is among users, and which have waited long enough ---- */

/* Returns when the user's last exclusive job began; 0: it is not remembered. */
static uint64_t last_of(const struct front_hold *h, uint64_t owner)
{
    for (unsigned i = 0; i < FRONT_HOLD_USERS; i++)
        if (h->users[i].last_ns && h->users[i].owner == owner)
            return h->users[i].last_ns;
    return 0;
}

static void note_user(struct front_hold *h, uint64_t owner, uint64_t now_ns)
{
    struct front_hold_user *at = &h->users[0], *user = at;

    for (; user < h->users + FRONT_HOLD_USERS && !(user->last_ns && user->owner == owner); user++)
        at = user->last_ns < at->last_ns ? user : at;
    at = user < h->users + FRONT_HOLD_USERS ? user : at;
    *at = (struct front_hold_user){.owner = owner, .last_ns = now_ns};
}

/* The stream's domain may have lost the executor meanwhile, or the server may keep its job for now. `asking`: the
 * stream whose job is submitted. */
static bool can_begin(const struct front_stream *s, const struct front_stream *asking)
{
    const struct executor *x = s->domain ? s->domain->executor : NULL;

    return x && x->ready && !atomic_load(&x->gone) && (s == asking || !list_empty(&s->blocked_link));
}

/* The stream of the user whose last exclusive job was the longest ago; of those, the one that waits for longest. */
static struct front_stream *choose(const struct front_hold *h, const struct front_stream *asking)
{
    struct front_stream *next = NULL;
    uint64_t least_ns = UINT64_MAX;
    unsigned n = 0;

    list_each (struct front_stream, s, alone_link, &h->alone) {
        const uint64_t last_ns = can_begin(s, asking) ? last_of(h, s->next->owner) : UINT64_MAX;

        if (last_ns < least_ns) {
            next = s;
            least_ns = last_ns;
        }
        if (++n == LOOKED_AT)
            break;
    }
    return next;
}

static void leave_alone(struct front_stream *s)
{
    struct front_hold *h = &s->device->hold;

    list_remove(&s->alone_link);
    if (h->next == s)
        h->next = NULL;
}

/* Streams that have waited for long go, beside others. Whether there were any. */
static bool give_up_waiting(struct front_device *gpu, uint64_t now_ns)
{
    bool any = false;
    struct list *node;

    while ((node = list_first(&gpu->hold.alone))) {
        struct front_stream *s = list_entry(node, struct front_stream, alone_link);

        if (now_ns < s->alone_ns + PATIENCE_NS) {
            front_set_timer(gpu->front, s->alone_ns + PATIENCE_NS);
            break;
        }
        leave_alone(s);
        s->beside = any = true;
    }
    return any;
}

/* ---- holds ---- */

void front_hold_init(struct front_hold *h)
{
    *h = (struct front_hold){.holder = NULL};
    list_init(&h->alone);
}

/* How long jobs of other users wait at most for an exclusive job, from when the first of them could go on. */
static uint64_t exclusive_ns(const struct front_device *gpu)
{
    const unsigned ms = gpu->front->config.executors_exclusive_ms;

    return (ms ? ms : DEFAULT_EXCLUSIVE_MS) * UINT64_C(1000000);
}

/* Whether an executor but `except` has work on the GPU, or had some since then. */
static bool is_used(const struct front_device *gpu, const struct executor *except, uint64_t since_ns)
{
    list_each (struct executor, x, link, &gpu->front->executors)
        if (x != except && (x->loads[gpu->number].users || x->loads[gpu->number].used_ns > since_ns))
            return true;
    return false;
}

/* The hold of an exclusive job ends: the job goes on, if it still runs, and others beside it. */
static void end_alone(struct front_device *gpu, uint64_t now_ns)
{
    struct front_stream *s = gpu->hold.stream;
    struct front_job *own = s ? front_first_of(s) : NULL;

    if (!own || !gpu->hold.counting)
        return;
    own->alone = false;
    s->on->loads[gpu->number].outlasts_ns = now_ns;
    gpu->hold.outlasted = true;
    front_set_timer(gpu->front, now_ns);
}

/* Exclusive jobs that outlast their hold last no longer beside others than jobs may while somebody waits. */
static void end_outlasting(struct front_device *gpu, uint64_t now_ns)
{
    gpu->hold.outlasted = false;
    list_each (struct executor, x, link, &gpu->front->executors) {
        struct front_load *load = &x->loads[gpu->number];

        if (!load->outlasts_ns)
            continue;
        if (!load->users) {
            load->outlasts_ns = 0;
            continue;
        }
        if (!is_used(gpu, x, now_ns - JUST_NOW_NS))
            load->outlasts_ns = now_ns;
        else if (!x->common)
            front_end_late(x, gpu, load->outlasts_ns, front_longest_ns(gpu->front));
        gpu->hold.outlasted = true;
        front_set_timer(gpu->front, now_ns + front_longest_ns(gpu->front) / 8);
    }
}

/* Ends the hold. For as long as jobs waited for it nobody holds them again; where none waited, the next hold may begin
 * at once. */
static void release(struct front_device *gpu)
{
    struct front_hold *h = &gpu->hold;
    const uint64_t now_ns = clock_now_ns();

    if (h->kept_ns)
        h->again_ns = now_ns + (now_ns - h->kept_ns);
    end_alone(gpu, now_ns);
    h->kept_ns = h->asked_ns = 0;
    h->holder = NULL;
    h->stream = NULL;
    h->ended = true;
    front_tell(gpu->front);
}

bool front_hold_is_wanted(const struct front_stream *s, const struct backend_job *job)
{
    return job->counters || (job->exclusive && !s->beside);
}

/* A job waits for the end of a hold. Jobs of the same user in the same executor bound no exclusive one. */
static void note_waiting(const struct front_device *gpu, const struct front_stream *s, const struct backend_job *job,
                         uint64_t *since_ns, uint64_t now_ns)
{
    const bool own = job->owner == gpu->hold.owner && s->domain->key == gpu->hold.key;

    if (*since_ns || (gpu->hold.exclusive && own))
        return;
    *since_ns = now_ns;
    if (gpu->hold.exclusive)
        front_set_timer(gpu->front, now_ns + exclusive_ns(gpu) / 2);
}

static bool is_kept(struct front *f, const struct front_stream *s, const struct backend_job *job, uint32_t gpus)
{
    bool kept = false;

    for (unsigned i = 0; i < f->n_devices; i++) {
        struct front_device *gpu = f->devices[i];

        if (!(gpus >> i & 1) || !gpu->hold.holder)
            continue;
        note_waiting(gpu, s, job, &gpu->hold.kept_ns, clock_now_ns());
        kept = true;
    }
    return kept;
}

static bool begin(struct front_stream *s, const struct backend_job *job, uint64_t now_ns)
{
    struct front *f = s->device->front;
    struct front_hold *h = &s->device->hold;

    if (!job->counters && (!h->next || !can_begin(h->next, s)))
        h->next = choose(h, s);
    if (!job->counters && h->next != s)
        return false;
    if (now_ns < h->again_ns) {
        front_set_timer(f, h->again_ns);
        h->wanted = true;
        return false;
    }
    h->holder = s->domain->executor;
    h->key = s->domain->key;
    h->stream = s;
    h->owner = job->owner;
    h->exclusive = !job->counters;
    h->since_ns = now_ns;
    h->counting = false;
    front_set_timer(f, now_ns + QUIET_NS);
    return true;
}

bool front_hold_take(struct front_stream *s, const struct backend_job *job, uint32_t gpus)
{
    struct front_device *gpu = s->device;
    struct front_hold *h = &gpu->hold;
    uint64_t now_ns;

    if (!front_hold_is_wanted(s, job))
        return !is_kept(gpu->front, s, job, gpus);
    now_ns = clock_now_ns();
    if (!job->counters && list_empty(&s->alone_link)) {
        s->alone_ns = now_ns;
        list_append(&h->alone, &s->alone_link);
        front_set_timer(gpu->front, now_ns + PATIENCE_NS);
    }
    if (h->holder && h->stream != s) {
        note_waiting(gpu, s, job, &h->asked_ns, now_ns);
        return false;
    }
    /* The job may disturb one that is alone on another GPU. Only a job that is not kept begins a hold: no two wait for
     * each other's end. */
    if (is_kept(gpu->front, s, job, gpus & ~(1U << gpu->number)))
        return false;
    if ((!h->holder && !begin(s, job, now_ns)) || is_used(gpu, NULL, UINT64_MAX))
        return false;
    h->counting = true;
    h->since_ns = now_ns;
    if (h->exclusive) {
        note_user(h, job->owner, now_ns);
        leave_alone(s);
    } else {
        front_set_timer(gpu->front, now_ns + COUNTING_NS);
    }
    return true;
}

void front_hold_sent(const struct front_stream *s, struct front_job *own)
{
    const struct front_hold *h = &s->device->hold;

    own->alone = own->job->exclusive && h->stream == s && h->counting;
}

void front_hold_took_back(const struct front_job *own)
{
    struct front_hold *h = &own->stream->device->hold;

    if (h->stream == own->stream && h->counting)
        h->stream = NULL;
}

void front_hold_forget(struct front_stream *s)
{
    struct front_hold *h = &s->device->hold;

    s->beside = false;
    if (!list_empty(&s->alone_link)) {
        leave_alone(s);
        h->ended = true; /* the stream may have been the next one */
        front_tell(s->device->front);
    }
    if (h->stream != s || h->counting)
        return;
    h->stream = NULL;
    front_tell(s->device->front);
}

/* When an exclusive job has no hold any more; UINT64_MAX: as long as nobody waits. Half of the time that others may
 * wait is for the jobs that had begun before. */
static uint64_t exclusive_until(const struct front_device *gpu)
{
    const struct front_hold *h = &gpu->hold;
    const bool asked = h->asked_ns && (!h->kept_ns || h->asked_ns < h->kept_ns);
    const uint64_t since_ns = asked ? h->asked_ns : h->kept_ns;
    const uint64_t bound_ns = since_ns ? since_ns + exclusive_ns(gpu) / (h->counting ? 1 : 2) : UINT64_MAX;

    return !h->counting && h->since_ns + QUIET_NS < bound_ns ? h->since_ns + QUIET_NS : bound_ns;
}

static bool is_over(const struct front_device *gpu, uint64_t now_ns)
{
    const struct front_hold *h = &gpu->hold;
    const struct executor *x = h->holder; /* front_hold_end() comes before it is freed */
    /* An executor that may read counters by a privilege never works beside others on its GPU. */
    const bool privileged = x->counts >= 0;

    if (!privileged && (!x->domain || x->key != h->key || atomic_load(&x->gone)))
        return true;
    if (h->exclusive)
        return (h->counting ? !x->loads[gpu->number].users : !h->stream) || now_ns >= exclusive_until(gpu);
    if (privileged && (h->counting || !x->domain))
        return false;
    if (h->counting)
        return !x->loads[gpu->number].users;
    /* No stream waits: the job was cancelled. */
    return list_empty(&x->domain->turns[gpu->number].blocked) || now_ns >= h->since_ns + QUIET_NS;
}

static void keep(struct front_device *gpu, uint64_t now_ns)
{
    const struct front_hold *h = &gpu->hold;
    struct executor *x = h->holder;

    if (h->counting && !h->exclusive) {
        if (x->counts < 0 || x->unfinished) {
            front_end_late(x, gpu, h->since_ns, COUNTING_NS);
            front_set_timer(gpu->front, now_ns + COUNTING_NS / 8);
        } else if (x->domain) {
            front_executor_dismiss(x);
        }
        return;
    }
    if (!h->exclusive)
        front_set_timer(gpu->front, h->since_ns + QUIET_NS);
    else if (exclusive_until(gpu) != UINT64_MAX)
        front_set_timer(gpu->front, exclusive_until(gpu));
}

bool front_hold_turn(struct front_device *gpu)
{
    struct front_hold *h = &gpu->hold;
    const bool any = h->holder || h->ended || h->wanted || h->outlasted || !list_empty(&h->alone);
    const uint64_t now_ns = any ? clock_now_ns() : 0;

    if (!any)
        return false;
    if (give_up_waiting(gpu, now_ns))
        h->ended = true;
    if (h->outlasted)
        end_outlasting(gpu, now_ns);
    if (h->holder && is_over(gpu, now_ns))
        release(gpu);
    else if (h->holder)
        keep(gpu, now_ns);
    if (h->wanted && now_ns < h->again_ns)
        front_set_timer(gpu->front, h->again_ns);
    if (h->holder || (!h->ended && (!h->wanted || now_ns < h->again_ns)))
        return false;
    h->ended = h->wanted = false;
    return true;
}

struct front_domain *front_hold_next(const struct front_device *gpu)
{
    return gpu->hold.holder && !gpu->hold.counting ? gpu->hold.holder->domain : NULL;
}

void front_hold_end(const struct executor *x)
{
    const struct front *f = x->front;

    for (unsigned i = 0; i < f->n_devices; i++)
        if (f->devices[i]->hold.holder == x)
            release(f->devices[i]);
}
