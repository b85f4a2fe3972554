#include "tally.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/process.h"
#include "wire/mp.h"

enum { FIRST_TIMED = 1 };
static const uint64_t TELL_EVERY_NS = 1000000000;

/* Launches with the same shapes. */
struct row {
    uint64_t count;
    unsigned n_words, n_us;
    double us[TALLY_SAMPLES];
    int64_t *words; /* owned; for each operand its rank, then its shape */
};

struct here_tally {
    atomic_uint launches;
    pthread_mutex_t lock; /* of all below */
    pid_t process;        /* whose launches these are: a forked child tells of none of its parent's */
    uint64_t told_ns;     /* when the daemon was told last */
    struct row rows[TALLY_ROWS];
    unsigned n_rows, last, n_operands;
    /* A timed launch whose end is not read yet, or none. */
    const struct cuda_driver *driver;
    cuda_context context; /* of the events */
    cuda_event start, end;
    bool begun, ended;
    unsigned timed; /* its row */
};

struct here_tally *here_tally_new(void)
{
    struct here_tally *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->told_ns = clock_ns();
    t->process = process_id();
    return t;
}

static void drop_rows(struct here_tally *t)
{
    for (unsigned i = 0; i < t->n_rows; i++)
        free(t->rows[i].words);
    t->n_rows = t->last = 0;
}

/* Events of a context that is gone are gone as well: the driver then refuses, which does no harm. */
static void drop_events(struct here_tally *t)
{
    if (t->start)
        t->driver->event_destroy(t->start);
    if (t->end)
        t->driver->event_destroy(t->end);
    t->start = t->end = NULL;
    t->begun = t->ended = false;
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

/* ---- times ---- */

static bool ask_time(struct here_tally *t, float *ret_ms)
{
    int mode = CUDA_CAPTURE_RELAXED;
    bool ended;

    cuda_exchange_capture_mode(t->driver, &mode);
    ended = !t->driver->event_query(t->end);
    if (ended && t->driver->event_elapsed(ret_ms, t->start, t->end))
        *ret_ms = NAN;
    cuda_exchange_capture_mode(t->driver, &mode);
    return ended;
}

/* Reads the launch that was timed, where it has ended. */
static void read_time(struct here_tally *t)
{
    float ms = 0;

    if (!t->ended || !ask_time(t, &ms))
        return;
    t->begun = t->ended = false;
    if (!isnan(ms) && t->timed < t->n_rows) {
        struct row *row = &t->rows[t->timed];

        if (row->n_us < TALLY_SAMPLES)
            row->us[row->n_us++] = (double)ms * 1e3;
    }
}

static void make_events(struct here_tally *t, const struct cuda_driver *d, cuda_context context)
{
    int mode = CUDA_CAPTURE_RELAXED;

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
}

static bool has_events(struct here_tally *t, const struct cuda_driver *d, cuda_context context)
{
    if (!t->end || t->context != context)
        make_events(t, d, context);
    return t->end != NULL;
}

bool here_tally_begin(struct here_tally *t, const struct cuda_driver *d, cuda_context context, cuda_queue stream)
{
    int capturing = 0;
    bool timed;

    if (atomic_fetch_add_explicit(&t->launches, 1, memory_order_relaxed) % TALLY_EVERY != FIRST_TIMED)
        return false;
    if (d->stream_is_capturing(stream, &capturing) || capturing)
        return false;
    pthread_mutex_lock(&t->lock);
    read_time(t);
    timed = !t->begun && has_events(t, d, context) && !d->event_record(t->start, stream);
    t->begun |= timed;
    pthread_mutex_unlock(&t->lock);
    return timed;
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
}

static bool is(const struct row *row, const int64_t *words, unsigned n)
{
    return row->n_words == n && !memcmp(row->words, words, n * sizeof(words[0]));
}

/* TALLY_ROWS: there is no room, or no memory. */
static unsigned find_or_add(struct here_tally *t, const int64_t *words, unsigned n)
{
    struct row *row;

    if (t->last < t->n_rows && is(&t->rows[t->last], words, n))
        return t->last;
    for (unsigned i = 0; i < t->n_rows; i++)
        if (is(&t->rows[i], words, n))
            return i;
    if (t->n_rows == TALLY_ROWS)
        return TALLY_ROWS;
    row = &t->rows[t->n_rows];
    *row = (struct row){.n_words = n, .words = malloc((n ? n : 1) * sizeof(words[0]))};
    if (!row->words)
        return TALLY_ROWS;
    memcpy(row->words, words, n * sizeof(words[0]));
    return t->n_rows++;
}

/* Lock held. */
static unsigned count(struct here_tally *t, const struct here_shapes *shapes)
{
    const unsigned found = find_or_add(t, shapes->words, shapes->n_words);

    t->n_operands = shapes->n_operands;
    if (found == TALLY_ROWS)
        return found;
    t->last = found;
    t->rows[found].count++;
    return found;
}

static bool is_due(const struct here_tally *t)
{
    return t->n_rows == TALLY_ROWS || clock_ns() - t->told_ns >= TELL_EVERY_NS;
}

bool here_tally_count(struct here_tally *t, const struct here_shapes *shapes, double us)
{
    bool due;
    unsigned row;

    pthread_mutex_lock(&t->lock);
    row = count(t, shapes);
    if (!isnan(us) && row < TALLY_ROWS && t->rows[row].n_us < TALLY_SAMPLES)
        t->rows[row].us[t->rows[row].n_us++] = us;
    due = is_due(t);
    pthread_mutex_unlock(&t->lock);
    return due;
}

bool here_tally_end(struct here_tally *t, const struct cuda_driver *d, cuda_queue stream,
                    const struct here_shapes *shapes)
{
    bool due;

    pthread_mutex_lock(&t->lock);
    t->ended = !d->event_record(t->end, stream);
    t->begun = t->ended;
    t->timed = count(t, shapes);
    due = is_due(t);
    pthread_mutex_unlock(&t->lock);
    return due;
}

/* ---- telling ---- */

static void write_row(struct bytes *out, const struct row *row, unsigned n_operands)
{
    const int64_t *word = row->words;

    mp_map(out, row->n_us ? 3 : 2);
    mp_key(out, "shapes");
    mp_array(out, n_operands);
    for (unsigned i = 0; i < n_operands; i++) {
        int64_t rank = *word++;

        mp_array(out, (size_t)rank);
        while (rank--)
            mp_int(out, *word++);
    }
    mp_pair_uint(out, "count", row->count);
    if (!row->n_us)
        return;
    mp_key(out, "us");
    mp_array(out, row->n_us);
    for (unsigned i = 0; i < row->n_us; i++)
        mp_double(out, row->us[i]);
}

static bool has_news(const struct row *row)
{
    return row->count || row->n_us;
}

/* The shapes stay, for a time that comes later, unless there is no room for others. */
static void empty(struct here_tally *t)
{
    for (unsigned i = 0; i < t->n_rows; i++)
        t->rows[i].count = t->rows[i].n_us = 0;
    if (t->n_rows < TALLY_ROWS)
        return;
    drop_rows(t);
    t->timed = TALLY_ROWS;
}

bool here_tally_take(struct here_tally *t, struct bytes *out)
{
    unsigned n = 0;

    if (t->process != process_id())
        return false;
    pthread_mutex_lock(&t->lock);
    read_time(t);
    t->told_ns = clock_ns();
    for (unsigned i = 0; i < t->n_rows; i++)
        n += has_news(&t->rows[i]);
    if (n)
        mp_array(out, n);
    for (unsigned i = 0; i < t->n_rows; i++)
        if (has_news(&t->rows[i]))
            write_row(out, &t->rows[i], t->n_operands);
    empty(t);
    pthread_mutex_unlock(&t->lock);
    return n > 0;
}
