/* Calls that others' ends hit: which of them are made again, which are not, and never twice what must be done once. */
#include <err.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "soak.h"

enum { VECTORS = 4, CALLS = 6, THREADS = 3, REST_US = 4000, SETTLE_US = 100000 };

/* ---- the connection ---- */

/* The connections of this process, and the requests that came by them. False: an error. */
static bool ask_for_connections(struct soak *s, unsigned *ret_n, uint64_t *ret_requests)
{
    struct kops_clients *clients;
    struct kops_error e;

    s->since = expect_now();
    *ret_n = 0;
    *ret_requests = 0;
    if (kops_clients(s->client, &clients, &e)) {
        count_failure(s, EXPECT_AGAIN, "a look at the clients", &e);
        return false;
    }
    check_error(s, &e);
    for (unsigned i = 0; clients->clients[i]; i++)
        if (clients->clients[i]->pid == getpid()) {
            *ret_requests += clients->clients[i]->requests;
            ++*ret_n;
        }
    kops_clients_free(clients);
    return true;
}

/* There is one, which stays as long as the daemon, whatever work is lost. */
void check_connection(struct soak *s)
{
    uint64_t requests;
    unsigned n;

    if (!ask_for_connections(s, &n, &requests)) {
        s->known = 0;
        return;
    }
    if (requests <= s->known && expect_steady(&s->connected) && !expect_times(&s->connected, HAPPENED_DAEMON_ENDS, 0))
        complain(s, "the connection", "it was given up, and the daemon goes on");
    s->connected = s->since;
    s->known = requests;
    if (n < 2)
        return;
    usleep(SETTLE_US); /* it may not have seen yet that one has ended */
    if (ask_for_connections(s, &n, &requests) && n > 1 && expect_steady(&s->since))
        complain(s, "the connection", "there are two");
    s->known = 0;
}

/* ---- sums in place ---- */

/* x += a, so many times, and each time y = a + b before, which may be made again. */
struct sum {
    kops_client *client;
    const struct kops_tensor *kept; /* a and b */
    struct kops_tensor x, y;
    pthread_t thread;
    unsigned wanted, done; /* done: a call went well */
    bool doubtful;         /* the last one failed, and may have run */
    struct expect since;   /* the begin of the last call, */
    unsigned promise;      /* and what it promised */
    struct kops_error error;
    const char *wrong; /* NULL: nothing */
};

static bool is_sum(const struct sum *m)
{
    const float *data = vector_data(&m->x);

    for (unsigned i = 0; i < WITNESS; i++) {
        const double one = kept_value(0, i), x = (double)data[i];

        if (x != one * m->done && !(m->doubtful && x == one * (m->done + 1)))
            return false;
    }
    return true;
}

/* False: it failed, or left an error. */
static bool call(struct sum *m, const struct kops_tensor *left, const struct kops_tensor *right,
                 const struct kops_tensor *out, unsigned promise)
{
    const struct kops_tensor inputs[] = {*left, *right};
    const struct kops_request request = {.op = "add", .inputs = inputs, .n_inputs = 2, .outputs = out, .n_outputs = 1};

    m->since = expect_now();
    m->promise = promise;
    if (kops_run(m->client, &request, NULL, &m->error))
        return false;
    if (m->error.code || m->error.message[0])
        m->wrong = "an error of a call that went well";
    return !m->wrong;
}

static void *add_up(void *p)
{
    struct sum *m = p;

    while (m->done < m->wanted && !m->wrong) {
        if (!call(m, &m->kept[0], &m->kept[1], &m->y, EXPECT_AGAIN | EXPECT_BEGUN_ANEW))
            break;
        for (unsigned i = 0; i < WITNESS; i++)
            if ((double)vector_data(&m->y)[i] != kept_sum(i))
                m->wrong = "a wrong answer";
        if (m->wrong || !call(m, &m->x, &m->kept[0], &m->x, EXPECT_ONCE)) {
            m->doubtful = !m->wrong && !expect_not_run(&m->error);
            break;
        }
        m->done++;
        if (!is_sum(m))
            m->wrong = "a call that was made once did not add once";
    }
    return NULL;
}

static void take_sum(struct soak *s, struct sum *m)
{
    s->checked++;
    if (m->wrong) {
        complain(s, "a sum in place", m->wrong);
    } else if (m->error.code) {
        s->since = m->since;
        count_failure(s, m->promise, "a sum in place", &m->error);
    }
    if (!m->wrong && !is_sum(m))
        complain(s, "a wrong answer", "of a sum in place");
}

static bool begin_sum(struct soak *s, struct sum *m)
{
    *m = (struct sum){.client = s->client, .kept = s->kept, .wanted = random_between(&s->random, 1, CALLS)};
    if (!take_vector(s, &m->x) || !take_vector(s, &m->y))
        return false;
    for (unsigned i = 0; i < WITNESS; i++)
        vector_data(&m->x)[i] = 0;
    s->requests += 2 * m->wanted;
    return true;
}

static void sum(struct soak *s)
{
    struct sum m;

    if (!begin_sum(s, &m))
        return;
    add_up(&m);
    take_sum(s, &m);
}

/* Of several threads at the same time, on one client. */
static void sums(struct soak *s)
{
    struct sum all[THREADS];
    unsigned n = 0;

    while (n < THREADS && begin_sum(s, &all[n])) {
        if (pthread_create(&all[n].thread, NULL, add_up, &all[n]))
            err(EXIT_FAILURE, "a thread");
        n++;
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(all[i].thread, NULL);
    for (unsigned i = 0; i < n; i++)
        take_sum(s, &all[i]);
}

/* ---- a chain ---- */

/* One stream's jobs, each v[into] = v[a] + v[b]: many write what an earlier one reads. */
struct link {
    unsigned a, b, into;
    kops_ticket ticket;
    bool ended, failed;
};

struct chain {
    struct kops_tensor v[VECTORS];
    float right[VECTORS][WITNESS];
    bool unknown[VECTORS]; /* what a job that failed wrote */
    struct link links[PIPELINE];
    unsigned n;
};

static bool begin_chain(struct soak *s, struct chain *c)
{
    for (unsigned i = 0; i < VECTORS; i++) {
        struct kops_tensor *v = &c->v[i];

        if (!take_vector(s, v))
            return false;
        for (unsigned k = 0; k < WITNESS; k++)
            vector_data(v)[k] = c->right[i][k] = (float)kept_value(i, k);
    }
    return true;
}

/* All jobs of a stream before one that has ended have, too. */
static void check_order(struct soak *s, const struct chain *c, unsigned ended)
{
    struct kops_error e;

    for (unsigned i = 0; i < ended; i++) {
        bool done = true;

        if (!c->links[i].ended && !kops_poll(s->client, c->links[i].ticket, &done, &e) && !done) {
            complain(s, "the order of a stream", "a later job has ended before an earlier one");
            return;
        }
    }
}

static void await_chain(struct soak *s, struct chain *c)
{
    struct kops_error e;

    for (unsigned left = c->n; left > 0; left--) {
        unsigned i = 0, at = random_chance(&s->random, 50) ? left - 1 : random_below(&s->random, left);
        struct link *l;

        while (c->links[i].ended || at--)
            i++;
        l = &c->links[i];
        l->failed = kops_wait(s->client, l->ticket, 0, NULL, &e);
        l->ended = true;
        if (l->failed)
            count_failure(s, EXPECT_TICKET, "a job of a chain", &e);
        else
            check_error(s, &e);
        if (!l->failed || e.code == KOPS_ERR_DEVICE_LOST)
            check_order(s, c, i);
    }
}

static void check_chain(struct soak *s, struct chain *c)
{
    s->checked++;
    for (unsigned i = 0; i < c->n; i++) {
        const struct link *l = &c->links[i];

        c->unknown[l->into] = l->failed || c->unknown[l->a] || c->unknown[l->b];
        for (unsigned k = 0; k < WITNESS; k++)
            c->right[l->into][k] = c->right[l->a][k] + c->right[l->b][k];
    }
    for (unsigned i = 0; i < VECTORS; i++)
        for (unsigned k = 0; k < WITNESS && !c->unknown[i]; k++)
            if (vector_data(&c->v[i])[k] != c->right[i][k]) {
                complain(s, "a wrong answer", "of a chain");
                return;
            }
}

static void chain(struct soak *s)
{
    struct chain *c = calloc(1, sizeof(*c));
    const unsigned wanted = random_between(&s->random, 2, PIPELINE), stream = random_between(&s->random, 4, 7);
    struct kops_error e = {.code = KOPS_OK};

    if (!c)
        err(EXIT_FAILURE, "memory");
    if (!begin_chain(s, c)) {
        free(c);
        return;
    }
    while (c->n < wanted) {
        struct link *l = &c->links[c->n];
        struct kops_request request = {.op = "add", .n_inputs = 2, .n_outputs = 1, .options = {.stream = stream}};
        struct kops_tensor inputs[2];

        *l = (struct link){.a = random_below(&s->random, VECTORS),
                           .b = random_below(&s->random, VECTORS),
                           .into = random_below(&s->random, VECTORS)};
        inputs[0] = c->v[l->a];
        inputs[1] = c->v[l->b];
        request.inputs = inputs;
        request.outputs = &c->v[l->into];
        s->requests++;
        if (kops_submit(s->client, &request, &l->ticket, &e))
            break;
        c->n++;
    }
    if (e.code)
        count_failure(s, EXPECT_TICKET, "a chain", &e);
    await_chain(s, c);
    check_chain(s, c);
    free(c);
}

void repeats_turn(struct soak *s)
{
    const unsigned what = random_below(&s->random, 100);

    if (what < 40 && s->threads)
        sums(s);
    else if (what < 50)
        chain(s);
    else if (what < 80)
        sum(s);
    else
        usleep(random_below(&s->random, REST_US)); /* others may end while nothing is asked of them */
}
