/* The jobs that executors have on each GPU, and turns of domains there. Few domains have work on a GPU at a time, since
 * contexts share it by time slices. The domain that has had least of the GPU goes next. A turn whose jobs do not end in
 * time is late: the next turn begins beside it. Thread: loop. */
#include "backend/memory.h"
#include "executor/front.h"
#include "util/clock.h"

/* ---- loads ---- */

uint32_t front_load_gpus(const struct front_device *gpu, const struct backend_job *job)
{
    uint32_t gpus = 1U << gpu->number;

    for (unsigned i = 0; gpu->front->n_devices > 1 && i < job->n_steps; i++)
        for (unsigned o = 0; o < step_operands(&job->steps[i]); o++) {
            const struct step_operand *operand = &job->steps[i].operands[o];
            const struct backend_memory *memory = operand->extent ? memory_by_id(operand->memory) : NULL;

            if (memory && memory->kind != MEMORY_MEMFD)
                gpus |= 1U << front_device(memory->device)->number;
        }
    return gpus;
}

void front_load_add(struct executor *x, const struct front_job *own)
{
    struct front_load *load = &x->loads[own->stream->device->number];

    if (!x->unfinished++)
        x->busy_ns = own->submitted_ns;
    if (!load->jobs++)
        load->in_a_row = 0;
    for (unsigned i = 0; i < x->front->n_devices; i++)
        x->loads[i].users += own->gpus >> i & 1;
}

void front_load_remove(struct executor *x, const struct front_job *own)
{
    struct front *f = x->front;
    const struct front_device *gpu = own->stream->device;
    struct front_load *load = &x->loads[gpu->number];
    const uint64_t now_ns = clock_now_ns(), job_ns = now_ns - own->first_ns;
    bool news = false;

    load->in_a_row++;
    if (!x->common && own->first_ns) /* about the mean of the last jobs */
        load->job_ns = load->job_ns ? (3 * load->job_ns + job_ns) / 4 : job_ns;
    if (--load->jobs == 0)
        news = gpu->turns.n_waiting != 0; /* another domain's turn */
    for (unsigned i = 0; i < f->n_devices; i++)
        if (own->gpus >> i & 1 && --x->loads[i].users == 0) {
            x->loads[i].used_ns = now_ns;
            news = news || f->devices[i]->hold.holder;
        }
    if (--x->unfinished == 0) {
        x->used_ns = load->used_ns;
        x->device_ns += x->used_ns - x->busy_ns;
        news = news || (x->domain && x->domain->leaving_ns); /* another domain's place */
        front_domain_rests(x);
    }
    if (news)
        front_tell(f);
}

/* ---- turns ---- */

enum {
    TURN_NS = 3000000, /* a domain sends for this time while others wait; its turn ends with its last job */
    /* Jobs that a domain may have in its executor: */
    AHEAD = 8,          /* while others wait */
    AHEAD_ALONE = 32,   /* while none waits: these jobs go on when one comes */
    AHEAD_FIRST = 4,    /* before the first of them has ended: each end allows one more */
    AHEAD_LEAST = 2,    /* where jobs last long: one follows another at once */
    AHEAD_NS = 20000000 /* time of the jobs together, where there are more than AHEAD_LEAST */
};

uint64_t front_longest_ns(const struct front *f)
{
    return (f->config.executors_longest_s ? f->config.executors_longest_s : 2) * UINT64_C(1000000000);
}

/* Returns the time that others wait for a turn that is over, before they go beside it. */
static uint64_t late_ns(const struct front *f)
{
    return (f->config.executors_late_ms ? f->config.executors_late_ms : 25) * UINT64_C(1000000);
}

static unsigned max_turns(const struct front *f)
{
    return f->config.executors_active ? f->config.executors_active : 1;
}

static struct front_turn *turn_of(struct front_domain *d, const struct front_device *gpu)
{
    return &d->turns[gpu->number];
}

static const struct front_load *load_of(const struct front_domain *d, const struct front_device *gpu)
{
    static const struct front_load none;

    return d->executor ? &d->executor->loads[gpu->number] : &none;
}

/* The domain that has had least of those that wait and have an executor; NULL: none. */
static struct front_domain *next_of(const struct front_device *gpu)
{
    struct front_domain *next = NULL;

    list_each (struct front_domain, d, link, &gpu->front->domains) {
        const struct front_turn *turn = turn_of(d, gpu);

        if (turn->waiting_ns && d->executor && d->executor->ready &&
            (!next || turn->had_ns < turn_of(next, gpu)->had_ns))
            next = d;
    }
    return next;
}

/* Whether there are more turns than there would be without late ones. */
static bool has_more_turns(const struct front_device *gpu)
{
    return gpu->turns.n > max_turns(gpu->front);
}

/* To be called before the number of turns, or of domains that wait, changes. */
static void count_time(struct front_device *gpu, uint64_t now_ns)
{
    if (gpu->turns.n_waiting || has_more_turns(gpu))
        gpu->turns.wanted_ns += now_ns - gpu->turns.counted_ns;
    gpu->turns.counted_ns = now_ns;
}

/* A domain that comes anew has no claim on the time before. */
static void lift(const struct front_device *gpu, struct front_turn *turn)
{
    if (turn->had_ns < gpu->turns.least_ns)
        turn->had_ns = gpu->turns.least_ns;
}

static void wait_in_line(struct front_device *gpu, struct front_turn *turn, uint64_t now_ns)
{
    if (turn->waiting_ns)
        return;
    count_time(gpu, now_ns);
    lift(gpu, turn);
    turn->waiting_ns = now_ns;
    gpu->turns.n_waiting++;
}

static void leave_line(struct front_device *gpu, struct front_turn *turn, uint64_t now_ns)
{
    if (!turn->waiting_ns)
        return;
    count_time(gpu, now_ns);
    turn->waiting_ns = 0;
    gpu->turns.n_waiting--;
}

/* Domains that pause for less than this still count as working beside a late turn. It is longer than the time between
 * two looks. */
static uint64_t gap_ns(const struct front *f)
{
    return front_longest_ns(f) / 4;
}

/* Others wait now, or work beside a late turn. */
static void note_others(struct front_device *gpu, uint64_t now_ns)
{
    if (now_ns - gpu->turns.seen_ns > gap_ns(gpu->front))
        gpu->turns.beside_ns = now_ns;
    gpu->turns.seen_ns = now_ns;
}

static void begin_turn(struct front_device *gpu, struct front_turn *turn, uint64_t now_ns)
{
    leave_line(gpu, turn, now_ns);
    count_time(gpu, now_ns);
    lift(gpu, turn);
    gpu->turns.least_ns = turn->had_ns;
    turn->has = true;
    turn->since_ns = now_ns;
    turn->wanted_at_ns = gpu->turns.wanted_ns;
    gpu->turns.n++;
    if (has_more_turns(gpu))
        note_others(gpu, now_ns);
    if (gpu->turns.n_waiting) /* end_turns() has to look again: jobs of this turn may never end */
        front_set_timer(gpu->front, now_ns + TURN_NS);
}

/* Charges the domain only for time in which others wanted the GPU: an idle turn costs nobody anything. */
static void end_turn(struct front_device *gpu, struct front_turn *turn, uint64_t now_ns)
{
    count_time(gpu, now_ns);
    gpu->turns.n_late -= turn->late_ns != 0;
    turn->late_ns = 0;
    turn->has = false;
    turn->had_ns += gpu->turns.wanted_ns - turn->wanted_at_ns;
    gpu->turns.n--;
}

/* How many of its jobs the domain may have on the GPU: nobody knows how long the first ones take. */
static unsigned ahead(const struct front_domain *d, const struct front_device *gpu, unsigned most)
{
    const uint64_t job_ns = load_of(d, gpu)->job_ns;
    const unsigned ended = load_of(d, gpu)->in_a_row;

    if (ended < most && ended + AHEAD_FIRST < most)
        most = ended + AHEAD_FIRST;
    if (job_ns * most <= AHEAD_NS)
        return most;
    return job_ns * AHEAD_LEAST >= AHEAD_NS ? AHEAD_LEAST : (unsigned)(AHEAD_NS / job_ns);
}

/* Late turns take no place. find_late() bounds their number, since each takes its part of the GPU. */
static bool has_free_turn(const struct front_device *gpu)
{
    return gpu->turns.n - gpu->turns.n_late < max_turns(gpu->front);
}

static bool goes_on(const struct front_device *gpu, const struct front_domain *d)
{
    const struct front_turn *turn = &d->turns[gpu->number];

    if (turn->late_ns && (gpu->turns.n_waiting || has_more_turns(gpu)))
        return false;
    if (!gpu->turns.n_waiting)
        return load_of(d, gpu)->jobs < ahead(d, gpu, AHEAD_ALONE);
    return load_of(d, gpu)->jobs < ahead(d, gpu, AHEAD) && clock_now_ns() < turn->since_ns + TURN_NS;
}

bool front_turn_take(struct front_device *gpu, struct front_domain *d)
{
    struct front_turn *turn = turn_of(d, gpu);

    if (d->key == DOMAIN_COMMON)
        return true;
    if (d->leaving_ns)
        return false;
    if (turn->late_ns && !load_of(d, gpu)->jobs)
        end_turn(gpu, turn, clock_now_ns());
    if (turn->has && goes_on(gpu, d)) {
        if (!turn->late_ns && has_more_turns(gpu))
            note_others(gpu, clock_now_ns());
        return true;
    }
    if (turn->has || turn->waiting_ns)
        return false;
    if (has_free_turn(gpu) && (!gpu->turns.n_waiting || next_of(gpu) == d)) {
        begin_turn(gpu, turn, clock_now_ns());
        return true;
    }
    wait_in_line(gpu, turn, clock_now_ns());
    front_tell(gpu->front); /* the one that has the turn may be idle */
    return false;
}

void front_turn_drop(struct front *f, struct front_domain *d)
{
    for (unsigned i = 0; i < f->n_devices; i++) {
        struct front_device *gpu = f->devices[i];
        struct front_turn *turn = turn_of(d, gpu);

        leave_line(gpu, turn, clock_now_ns());
        if (turn->has)
            end_turn(gpu, turn, clock_now_ns());
    }
}

/* Since when a domain waits that could go on; UINT64_MAX: none does. */
static uint64_t waiting_since(const struct front_device *gpu)
{
    uint64_t since_ns = UINT64_MAX;

    list_each (struct front_domain, d, link, &gpu->front->domains) {
        uint64_t own_ns = d->turns[gpu->number].waiting_ns;

        if (!own_ns || !d->executor || !d->executor->ready)
            continue;
        own_ns = d->place_ns > own_ns ? d->place_ns : own_ns;
        own_ns = d->executor->ready_ns > own_ns ? d->executor->ready_ns : own_ns;
        since_ns = own_ns < since_ns ? own_ns : since_ns;
    }
    return since_ns;
}

/* Finds out whether the turn is late: its jobs do not end in time, and others, who wait since `since_ns` (UINT64_MAX:
 * nobody does), go beside it. Returns when to look again; UINT64_MAX: need not. */
static uint64_t find_late(struct front_device *gpu, struct front_turn *turn, uint64_t since_ns, uint64_t now_ns)
{
    const uint64_t until_ns = turn->since_ns + TURN_NS;
    uint64_t late_at_ns;

    if (now_ns < until_ns)
        return until_ns;
    if (turn->late_ns || since_ns == UINT64_MAX)
        return UINT64_MAX;
    late_at_ns = (since_ns > until_ns ? since_ns : until_ns) + late_ns(gpu->front);
    if (now_ns < late_at_ns)
        return late_at_ns;
    if (gpu->turns.n_late < max_turns(gpu->front)) {
        turn->late_ns = now_ns;
        gpu->turns.n_late++;
    }
    return UINT64_MAX;
}

/* Looks after a turn whose jobs go on. After a long time in which others waited, or worked beside them, the longest job
 * is ended. */
static void keep_turn(struct front_device *gpu, struct front_domain *d, uint64_t since_ns, uint64_t now_ns)
{
    struct front_turn *turn = turn_of(d, gpu);
    const uint64_t longest_ns = front_longest_ns(gpu->front), look_ns = now_ns + longest_ns / 8;
    const uint64_t late_look_ns = find_late(gpu, turn, since_ns, now_ns);
    uint64_t beside_ns = UINT64_MAX;

    if (turn->late_ns && now_ns - gpu->turns.seen_ns <= gap_ns(gpu->front))
        beside_ns = turn->late_ns > gpu->turns.beside_ns ? turn->late_ns : gpu->turns.beside_ns;
    if (beside_ns < since_ns)
        since_ns = beside_ns;
    if (since_ns != UINT64_MAX)
        front_end_late(d->executor, gpu, since_ns, longest_ns);
    front_set_timer(gpu->front, late_look_ns < look_ns ? late_look_ns : look_ns);
}

static void end_turns(struct front_device *gpu, uint64_t now_ns)
{
    const uint64_t since_ns = waiting_since(gpu);

    if (since_ns != UINT64_MAX)
        note_others(gpu, now_ns);
    list_each (struct front_domain, d, link, &gpu->front->domains) {
        struct front_turn *turn = turn_of(d, gpu);

        if (!turn->has)
            continue;
        if (!load_of(d, gpu)->jobs &&
            (list_empty(&turn->blocked) || now_ns >= turn->since_ns + TURN_NS || !d->executor)) {
            end_turn(gpu, turn, now_ns);
            if (!list_empty(&turn->blocked))
                wait_in_line(gpu, turn, now_ns);
        } else if (d->executor) {
            if (!turn->late_ns && has_more_turns(gpu))
                note_others(gpu, now_ns);
            keep_turn(gpu, d, since_ns, now_ns);
        }
    }
}

void front_turns_turn(struct front_device *gpu)
{
    if (!gpu->turns.n_waiting && !gpu->turns.n_late)
        return;
    list_each (struct front_domain, d, link, &gpu->front->domains)
        if (list_empty(&turn_of(d, gpu)->blocked)) /* the domain's jobs were cancelled meanwhile */
            leave_line(gpu, turn_of(d, gpu), clock_now_ns());
    end_turns(gpu, clock_now_ns());
}

struct front_domain *front_turn_next(struct front_device *gpu)
{
    struct front_domain *d = gpu->turns.n_waiting && has_free_turn(gpu) ? next_of(gpu) : NULL;

    if (d)
        begin_turn(gpu, turn_of(d, gpu), clock_now_ns());
    return d;
}
