#include "tally.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "wire/put.h"

enum { FIRST_TIMED = 1, NOT_READY = 600 /* CUDA_ERROR_NOT_READY */ };
static const uint64_t TELL_EVERY_NS = 1000000000, TELL_FULL_EVERY_NS = 50000000;

/* Launches with the same shapes. */
struct row {
    uint64_t count;
    unsigned n_words, n_us;
    uint32_t flags;
    double us[TALLY_SAMPLES];
    int64_t *words; /* owned */
};

/* State of the events. TIMING_OWNED: a thread uses them, without the lock. TIMING_PENDING: both are on a stream, and
 * not read yet. */
enum timing { TIMING_IDLE, TIMING_OWNED, TIMING_PENDING };

struct here_tally {
    pthread_mutex_t lock; /* guards all members below except the events, which belong to the thread that owns them */
    unsigned launches;
    pid_t process;       /* process whose launches are counted: a forked child reports none of its parent's */
    uint64_t told_ns;    /* last time that a report was due, by the coarse clock */
    uint32_t generation; /* generation of the rows; never 0 */
    unsigned n_rows, last, n_operands;
    enum timing timing;
    struct here_row timed; /* row of the launch between the events */
    const struct cuda_driver *driver;
    cuda_context context; /* context of the events */
    cuda_event start, end;
    struct row rows[TALLY_ROWS];
};

struct here_tally *here_tally_new(void)
{
    struct here_tally *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->generation = 1;
    t->told_ns = clock_coarse_ns();
    t->process = process_id();
    return t;
}

static void drop_rows(struct here_tally *t)
{
    for (unsigned i = 0; i < t->n_rows; i++)
        free(t->rows[i].words);
    t->n_rows = t->last = 0;
    t->generation += t->generation == UINT32_MAX ? 2 : 1; /* a time that comes later finds no row */
}

/* The driver has destroyed the events of a destroyed context, and then refuses harmlessly. */
static void drop_events(struct here_tally *t)
{
    if (t->start)
        t->driver->event_destroy(t->start);
    if (t->end)
        t->driver->event_destroy(t->end);
    t->start = t->end = NULL;
}

struct here_tally *here_tally_free(struct here_tally *t)
{
    if (!t)
        return NULL;
    drop_rows(t);
    drop_events(t);
    pthread_mutex_destroy(&t->lock);
    free(t);
    return NULL;
}

void here_tally_lock(struct here_tally *t)
{
    pthread_mutex_lock(&t->lock);
}

void here_tally_unlock(struct here_tally *t)
{
    pthread_mutex_unlock(&t->lock);
}

/* Returns NULL where there is no row, or it is gone. Lock held. */
static struct row *find_row(struct here_tally *t, struct here_row row)
{
    return row.generation == t->generation && row.index < t->n_rows ? &t->rows[row.index] : NULL;
}

/* ---- times ---- */

/* Asks for the launch between the owned events. Returns TIMING_PENDING, or TIMING_IDLE with its time, NAN where the
 * time was lost. */
static enum timing ask_time(struct here_tally *t, double *ret_us)
{
    int mode = CUDA_CAPTURE_RELAXED;
    float ms = 0;
    cuda_status status;

    cuda_exchange_capture_mode(t->driver, &mode);
    status = t->driver->event_query(t->end);
    if (!status)
        status = t->driver->event_elapsed(&ms, t->start, t->end);
    if (status && status != NOT_READY)
        drop_events(t);
    cuda_exchange_capture_mode(t->driver, &mode);
    *ret_us = status ? (double)NAN : (double)ms * 1e3;
    return status == NOT_READY ? TIMING_PENDING : TIMING_IDLE;
}

/* Lock held. */
static void add_time(struct here_tally *t, struct here_row of, double us)
{
    struct row *row = find_row(t, of);

    if (!isnan(us) && row && row->n_us < TALLY_SAMPLES)
        row->us[row->n_us++] = us;
}

void here_tally_time(struct here_tally *t, struct here_row row, double us)
{
    pthread_mutex_lock(&t->lock);
    add_time(t, row, us);
    pthread_mutex_unlock(&t->lock);
}

/* Takes the events, reading the launch between them; false: another thread has them, or the launch goes on. */
static bool own(struct here_tally *t)
{
    enum timing before;
    double us = (double)NAN;

    pthread_mutex_lock(&t->lock);
    before = t->timing;
    if (before != TIMING_OWNED)
        t->timing = TIMING_OWNED;
    pthread_mutex_unlock(&t->lock);
    if (before != TIMING_PENDING)
        return before == TIMING_IDLE;
    before = ask_time(t, &us);
    pthread_mutex_lock(&t->lock);
    add_time(t, t->timed, us);
    if (before == TIMING_PENDING)
        t->timing = TIMING_PENDING;
    pthread_mutex_unlock(&t->lock);
    return before == TIMING_IDLE;
}

static void disown(struct here_tally *t)
{
    pthread_mutex_lock(&t->lock);
    t->timing = TIMING_IDLE;
    pthread_mutex_unlock(&t->lock);
}

/* Makes the events, which the caller owns. */
static bool make_events(struct here_tally *t, const struct cuda_driver *d, cuda_context context)
{
    int mode = CUDA_CAPTURE_RELAXED;

    if (t->end && t->context == context)
        return true;
    cuda_exchange_capture_mode(d, &mode);
    drop_events(t);
    t->driver = d;
    t->context = context;
    if (d->event_create(&t->start, 0))
        t->start = NULL;
    else if (d->event_create(&t->end, 0))
        t->end = NULL;
    if (!t->end)
        drop_events(t);
    cuda_exchange_capture_mode(d, &mode);
    return t->end != NULL;
}

bool here_tally_begin(struct here_tally *t, const struct cuda_driver *d, cuda_context context, cuda_queue stream)
{
    int capturing = 0;

    if (d->stream_is_capturing(stream, &capturing) || capturing || !own(t))
        return false;
    if (make_events(t, d, context) && !d->event_record(t->start, stream))
        return true;
    disown(t);
    return false;
}

void here_tally_end(struct here_tally *t, const struct cuda_driver *d, cuda_queue stream, struct here_row row)
{
    const bool recorded = !d->event_record(t->end, stream);

    pthread_mutex_lock(&t->lock);
    t->timing = recorded ? TIMING_PENDING : TIMING_IDLE;
    t->timed = row;
    pthread_mutex_unlock(&t->lock);
}

void here_tally_read(struct here_tally *t)
{
    bool pending;

    pthread_mutex_lock(&t->lock);
    pending = t->timing == TIMING_PENDING && t->process == process_id();
    pthread_mutex_unlock(&t->lock);
    if (pending && own(t))
        disown(t);
}

/* ---- counts ---- */

void here_shapes_of(const struct tensor *const *operands, unsigned n, struct here_shapes *ret)
{
    unsigned at = 0;

    for (unsigned i = 0; i < n; i++) {
        const unsigned rank = operands[i] ? operands[i]->rank : 0;

        ret->words[at++] = rank;
        for (unsigned d = 0; d < rank; d++)
            ret->words[at++] = operands[i]->shape[d];
    }
    ret->n_operands = n;
    ret->n_words = at;
    ret->flags = 0;
}

static bool is(const struct row *row, const struct here_shapes *shapes)
{
    return row->n_words == shapes->n_words && row->flags == shapes->flags &&
           !memcmp(row->words, shapes->words, shapes->n_words * sizeof(shapes->words[0]));
}

/* Returns TALLY_ROWS where there is no room, or no memory. */
static unsigned find_or_add(struct here_tally *t, const struct here_shapes *shapes)
{
    const size_t size = shapes->n_words * sizeof(shapes->words[0]);
    struct row *row;

    if (t->last < t->n_rows && is(&t->rows[t->last], shapes))
        return t->last;
    for (unsigned i = 0; i < t->n_rows; i++)
        if (is(&t->rows[i], shapes))
            return i;
    if (t->n_rows == TALLY_ROWS)
        return TALLY_ROWS;
    row = &t->rows[t->n_rows];
    *row = (struct row){.n_words = shapes->n_words, .flags = shapes->flags, .words = malloc(size ? size : 1)};
    if (!row->words)
        return TALLY_ROWS;
    memcpy(row->words, shapes->words, size);
    return t->n_rows++;
}

/* Lock held. */
static struct here_row row_of(struct here_tally *t, const struct here_shapes *shapes)
{
    const unsigned found = find_or_add(t, shapes);

    t->n_operands = shapes->n_operands;
    if (found != TALLY_ROWS)
        t->last = found;
    return (struct here_row){.generation = t->generation, .index = found};
}

/* Tells whether a report to the daemon is due. After true it is false for a while, whether the daemon could be told or
 * not. Lock held. */
static bool is_due(struct here_tally *t)
{
    const uint64_t now = clock_coarse_ns();

    if (now - t->told_ns < (t->n_rows == TALLY_ROWS ? TELL_FULL_EVERY_NS : TELL_EVERY_NS))
        return false;
    t->told_ns = now;
    return true;
}

/* Tells whether to time a launch that is counted in `row`, which may be NULL. Events cost launch time, and a row takes
 * a limited number of times until the daemon is told. Lock held. */
static bool is_timed(struct here_tally *t, const struct row *row)
{
    const bool turn = t->launches++ % TALLY_EVERY == FIRST_TIMED;

    return turn && row && row->n_us < TALLY_SAMPLES;
}

struct here_counted here_tally_count(struct here_tally *t, const struct here_shapes *shapes, struct here_row *row)
{
    struct row *counted;

    if (row->generation != t->generation)
        *row = row_of(t, shapes);
    counted = find_row(t, *row);
    if (counted)
        counted->count++;
    return (struct here_counted){.row = *row, .timed = is_timed(t, counted), .due = is_due(t)};
}

void here_tally_uncount(struct here_tally *t, struct here_row row)
{
    struct row *counted;

    pthread_mutex_lock(&t->lock);
    counted = find_row(t, row);
    if (counted && counted->count) /* 0: the daemon was told of it already */
        counted->count--;
    pthread_mutex_unlock(&t->lock);
}

/* ---- telling ---- */

static void write_attrs(struct bytes *out, const struct op *op, uint32_t flags)
{
    struct mp_pairs m = mp_open(out);

    for (unsigned i = 0; i < op->n_attrs; i++)
        if (flags >> i & 1)
            mp_bool(mp_key(&m, op->attrs[i].name), true);
    mp_close(&m);
}

static void write_row(struct bytes *out, const struct row *row, unsigned n_operands, const struct op *op)
{
    const int64_t *word = row->words;
    struct mp_pairs m = mp_open(out);

    put_launches_shapes(&m, n_operands);
    for (unsigned i = 0; i < n_operands; i++) {
        int64_t rank = *word++;

        mp_array(out, (size_t)rank);
        while (rank--)
            mp_int(out, *word++);
    }
    put_launches_count(&m, row->count);
    if (row->flags)
        write_attrs(key_launches_attrs(&m), op, row->flags);
    if (row->n_us)
        put_launches_us(&m, row->n_us);
    for (unsigned i = 0; i < row->n_us; i++)
        mp_double(out, row->us[i]);
    mp_close(&m);
}

static bool has_news(const struct row *row)
{
    return row->count || row->n_us;
}

/* Empties the counts. The shapes stay, for a time that comes later, unless there is no room for others. */
static void empty(struct here_tally *t)
{
    for (unsigned i = 0; i < t->n_rows; i++)
        t->rows[i].count = t->rows[i].n_us = 0;
    if (t->n_rows == TALLY_ROWS)
        drop_rows(t);
}

bool here_tally_take(struct here_tally *t, const struct op *op, struct bytes *out)
{
    unsigned n = 0;

    if (t->process != process_id())
        return false;
    pthread_mutex_lock(&t->lock);
    t->told_ns = clock_coarse_ns();
    for (unsigned i = 0; i < t->n_rows; i++)
        n += has_news(&t->rows[i]);
    if (n)
        mp_array(out, n);
    for (unsigned i = 0; i < t->n_rows; i++)
        if (has_news(&t->rows[i]))
            write_row(out, &t->rows[i], t->n_operands, op);
    empty(t);
    pthread_mutex_unlock(&t->lock);
    return n > 0;
}

/* ---- launches with a time ---- */

static cuda_status between(const struct cuda_driver *d, cuda_queue stream, here_enqueue *enqueue, void *work,
                           const cuda_event events[2], float *ret_ms)
{
    cuda_status status = d->event_record(events[0], stream);

    if (!status)
        status = enqueue(d, work, stream);
    if (!status)
        status = d->event_record(events[1], stream);
    if (!status)
        status = d->event_synchronize(events[1]);
    return status ? status : d->event_elapsed(ret_ms, events[0], events[1]);
}

static enum kops_code wait_for_time(const struct cuda_driver *d, cuda_queue stream, here_enqueue *enqueue, void *work,
                                    double *ret_us, struct kops_error *e)
{
    cuda_event events[2] = {NULL, NULL};
    int capturing = 0, mode = CUDA_CAPTURE_RELAXED;
    float ms = 0;
    cuda_status status = d->stream_is_capturing(stream, &capturing);

    if (!status && capturing)
        return fail(
            e, KOPS_ERR_CAPTURING,
            "a launch on a stream under capture runs when the graph does, so it has no time now: leave timing out");
    cuda_exchange_capture_mode(d, &mode); /* another thread may capture */
    for (int i = 0; !status && i < 2; i++)
        status = d->event_create(&events[i], 0);
    if (!status)
        status = between(d, stream, enqueue, work, events, &ms);
    for (int i = 0; i < 2; i++)
        if (events[i])
            d->event_destroy(events[i]);
    cuda_exchange_capture_mode(d, &mode);
    *ret_us = (double)ms * 1e3;
    return status ? cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "a timed launch") : KOPS_OK;
}

enum kops_code here_timed(struct here_tally *tally, const struct here_counted *counted, const struct cuda_driver *d,
                          cuda_queue stream, here_enqueue *enqueue, void *work, double *ret_us, struct kops_error *e)
{
    const enum kops_code r = wait_for_time(d, stream, enqueue, work, ret_us, e);

    if (tally && r)
        here_tally_uncount(tally, counted->row);
    else if (tally)
        here_tally_time(tally, counted->row, *ret_us);
    return r;
}
