/* kops_soak_client: a client that works at random for long and checks every answer.
 *
 *     kops_soak_client --socket PATH --seed N --requests N [--seconds S]
 *
 * Runs ops of several kinds, dtypes and shapes on the daemon's first device, blocking and pipelined, alone, in
 * sequences and as programs, cancels some, gives buffers back and makes others. The daemon may be killed and started
 * anew meanwhile: what it ends is counted, everything else must be right. Ends after so many requests or seconds (0: no
 * such limit), with a line of JSON: what was done, what went wrong, how often which error came, and how long a blocking
 * call took. Exit status 1 when an answer was wrong or did not come, or an error came that nothing here explains. */
#include <err.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "work.h"

enum {
    PIPELINE = 16,
    CODES = 128,
    SAMPLES = 1 << 16, /* of latencies, picked at random */
    WITNESS = 1000,    /* elements of each of its tensors */
    TOLD = 10,         /* wrong answers that are described */
    TIMEOUT_MS = 300000,
    CONNECT_TRIES = 100,
    CONNECT_PAUSE_US = 100000
};

struct soak {
    kops_client *client;
    struct random random;
    struct memory memory;
    struct work work[PIPELINE];
    kops_buffer *witness; /* kept for all of the time, over every restart: a, b, and what a program needs */
    struct kops_tensor kept[4];
    kops_program *program; /* NULL: none now */

    bool spoiled; /* a daemon that hung up may go on with what it began: it shall not meet what comes */
    uint64_t requests, checked, wrong, lost, errors[CODES], timed;
    double samples[SAMPLES];
    double longest_us; /* of a turn in which nothing was lost */
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- outcomes ---- */

static void complain(struct soak *s, const char *what, const char *why)
{
    if (s->wrong++ < TOLD)
        warnx("%s: %s", what, why);
}

/* What a daemon that ends, or one at its limits, may answer. */
static bool explained(enum kops_code code)
{
    switch (code) {
    case KOPS_ERR_CONNECTION_LOST:
    case KOPS_ERR_CONNECT_FAILED:
    case KOPS_ERR_DEVICE_LOST:
    case KOPS_ERR_SHUTTING_DOWN:
    case KOPS_ERR_CANCELLED:
    case KOPS_ERR_QUOTA_EXCEEDED:
    case KOPS_ERR_OUT_OF_MEMORY:
        return true;
    default:
        return false;
    }
}

static void count_error(struct soak *s, const char *what, const struct kops_error *e)
{
    s->errors[(unsigned)e->code < CODES ? e->code : 0]++;
    if (e->code == KOPS_ERR_TIMEOUT)
        s->lost++;
    else if (!explained(e->code))
        complain(s, what, e->message);
    s->spoiled |= e->code != KOPS_ERR_CANCELLED;
}

static void check(struct soak *s, const struct work *w)
{
    char told[256];

    s->checked++;
    if (work_check(w))
        return;
    work_tell(w, told, sizeof(told));
    complain(s, "a wrong answer", told);
}

static void take_time(struct soak *s, double us)
{
    const uint64_t n = s->timed++;
    const uint64_t at = n < SAMPLES ? n : random_bits(&s->random) % (n + 1);

    if (at < SAMPLES)
        s->samples[at] = us;
}

/* ---- turns ---- */

static void blocking(struct soak *s)
{
    struct work *w = &s->work[0];
    struct kops_error e;
    double begin;
    bool made;

    if (work_make(w, &s->memory, &made, &e)) {
        count_error(s, "memory", &e);
        return;
    }
    if (!made)
        return;
    s->requests++;
    begin = now_us();
    if (w->kind == WORK_SEQUENCE ? kops_sequence_run(s->client, &w->sequence, NULL, NULL, &e)
                                 : kops_run(s->client, &w->request, NULL, &e)) {
        count_error(s, "a run", &e);
        return;
    }
    take_time(s, now_us() - begin);
    check(s, w);
}

static enum kops_code submit(struct soak *s, struct work *w, kops_ticket *ret_ticket, struct kops_error *e)
{
    struct kops_options options = {.stream = random_below(&s->random, 4)};

    s->requests++;
    if (w->kind == WORK_SEQUENCE)
        return kops_sequence_submit(s->client, &w->sequence, &options, ret_ticket, e);
    w->request.options.stream = options.stream;
    return kops_submit(s->client, &w->request, ret_ticket, e);
}

static void pipelined(struct soak *s)
{
    const unsigned wanted = random_between(&s->random, 2, PIPELINE);
    unsigned order[PIPELINE], n = 0;
    kops_ticket tickets[PIPELINE];
    struct kops_error e, failed = {.code = KOPS_OK};
    bool made = true, done;

    while (n < wanted && made && !failed.code) {
        if (work_make(&s->work[n], &s->memory, &made, &failed) || !made || submit(s, &s->work[n], &tickets[n], &failed))
            break;
        if (random_chance(&s->random, 8) && kops_cancel(s->client, tickets[n], &e))
            complain(s, "cancelling", e.message);
        order[n] = n;
        n++;
    }
    /* Each ends once, in whatever order it is asked for. */
    for (unsigned i = n; i > 0; i--) {
        const unsigned pick = random_below(&s->random, i), k = order[pick];

        order[pick] = order[i - 1];
        if (random_chance(&s->random, 20) && kops_poll(s->client, tickets[k], &done, &e))
            complain(s, "asking for a ticket", e.message);
        if (!kops_wait(s->client, tickets[k], 0, NULL, &e))
            check(s, &s->work[k]);
        else if (e.code == KOPS_ERR_CANCELLED)
            s->errors[e.code]++;
        else if (failed.code)
            count_error(s, "a ticket", &e);
        else
            failed = e;
    }
    if (failed.code)
        count_error(s, "a pipeline", &failed);
}

static double kept_value(unsigned tensor, unsigned i)
{
    return (double)((i * 7 + tensor * 3) % 17) - 8;
}

/* What was written once is there, whichever daemon it is now. */
static void check_kept(struct soak *s)
{
    const float *data = kops_buffer_data(s->witness);

    s->checked++;
    for (unsigned i = 0; i < 2 * WITNESS; i++)
        if ((double)data[i] != kept_value(i / WITNESS, i % WITNESS)) {
            complain(s, "memory that is kept", "it is not what it was");
            return;
        }
}

/* d = (a + b)², into memory of its own. */
static void check_program(struct soak *s, const float *d)
{
    s->checked++;
    for (unsigned i = 0; i < WITNESS; i++) {
        const double sum = kept_value(0, i) + kept_value(1, i);

        if ((double)d[i] != sum * sum) {
            complain(s, "a wrong answer", "of a program");
            return;
        }
    }
}

static void run_program(struct soak *s)
{
    static const uint32_t places[] = {0, 1, 2, 3};
    const struct kops_step steps[] = {
        {.op = "add", .inputs = places, .n_inputs = 2, .outputs = places + 2, .n_outputs = 1},
        {.op = "square", .inputs = places + 2, .n_inputs = 1, .outputs = places + 3, .n_outputs = 1}};
    const struct kops_sequence sequence = {s->kept, 4, steps, 2};
    struct kops_binding binding = {.tensor = 3};
    struct kops_error e;

    if (memory_take(&s->memory, WITNESS * sizeof(float), &binding.buffer, &binding.offset, &e)) {
        count_error(s, "memory", &e);
        return;
    }
    if (!binding.buffer)
        return;
    s->requests += s->program ? 0 : 1;
    if (!s->program && kops_program_define(s->client, &sequence, NULL, &s->program, &e)) {
        count_error(s, "a program", &e);
        return;
    }
    s->requests++;
    if (kops_program_run(s->program, &binding, 1, NULL, NULL, &e))
        count_error(s, "a program", &e);
    else
        check_program(s, (const float *)((const char *)kops_buffer_data(binding.buffer) + binding.offset));
    check_kept(s);
    if (random_chance(&s->random, 10))
        s->program = kops_program_release(s->program);
}

static void refused(struct soak *s)
{
    struct kops_tensor t[3] = {s->kept[0], s->kept[1], s->kept[2]};
    struct kops_error e;

    t[1].shape[0] -= 1;
    s->requests++;
    if (kops_add(s->client, &t[0], &t[1], &t[2], NULL, NULL, &e) == KOPS_ERR_SHAPE_MISMATCH)
        s->checked++;
    else if (e.code)
        count_error(s, "a refusal", &e);
    else
        complain(s, "a refusal", "shapes that do not fit were added");
}

static void allocate(struct soak *s)
{
    const size_t bytes = random_between(&s->random, 1, 100000);
    struct kops_error e;
    kops_buffer *buffer;
    const char *data;

    s->requests++;
    if (memory_made(s->client, bytes, &buffer, &e)) {
        count_error(s, "an allocation", &e);
        return;
    }
    s->checked++;
    data = kops_buffer_data(buffer);
    for (size_t i = 0; i < bytes; i++)
        if (data[i]) {
            complain(s, "an allocation", "it is not zeroed");
            break;
        }
    kops_buffer_release(buffer);
}

static void ping(struct soak *s)
{
    struct kops_error e;

    s->requests++;
    if (kops_ping(s->client, 0, &e))
        count_error(s, "a ping", &e);
}

static void turn(struct soak *s)
{
    const unsigned what = random_below(&s->random, 100);
    const double begin_us = now_us();

    if (what < 50)
        blocking(s);
    else if (what < 70)
        pipelined(s);
    else if (what < 85)
        run_program(s);
    else if (what < 90)
        refused(s);
    else if (what < 93)
        allocate(s);
    else
        ping(s);
    if (!memory_reuse(&s->memory))
        complain(s, "memory", "something was written outside of a tensor");
    if (s->spoiled)
        memory_drop(&s->memory);
    else if (now_us() - begin_us > s->longest_us)
        s->longest_us = now_us() - begin_us;
    s->spoiled = false;
    if (random_chance(&s->random, 4))
        memory_drop_one(&s->memory);
}

/* ---- begin and end ---- */

static void begin(struct soak *s, const char *socket)
{
    const struct kops_connect_options options = {
        .socket = socket, .name = "soak in C", .timeout_ms = TIMEOUT_MS, .connect_timeout_ms = TIMEOUT_MS};
    unsigned tries = 0;
    struct kops_error e;
    float *data;

    while (kops_connect(&options, &s->client, &e) && explained(e.code) && ++tries < CONNECT_TRIES)
        usleep(CONNECT_PAUSE_US);
    while (!e.code && memory_made(s->client, sizeof(float) * WITNESS * 4, &s->witness, &e) && explained(e.code) &&
           ++tries < CONNECT_TRIES)
        e.code = KOPS_OK;
    if (e.code)
        errx(EXIT_FAILURE, "%s", e.message);
    data = kops_buffer_data(s->witness);
    for (unsigned i = 0; i < 4; i++) {
        s->kept[i] = kops_vector(s->witness, KOPS_F32, WITNESS);
        s->kept[i].offset = i * WITNESS * sizeof(float);
        for (unsigned k = 0; k < WITNESS && i < 2; k++)
            data[i * WITNESS + k] = (float)kept_value(i, k);
    }
    s->memory = (struct memory){.client = s->client, .random = &s->random};
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(struct soak *s)
{
    const size_t n = s->timed < SAMPLES ? (size_t)s->timed : SAMPLES;
    const char *comma = "";

    qsort(s->samples, n, sizeof(s->samples[0]), by_value);
    fflush(stderr);
    printf("{\"requests\": %llu, \"checked\": %llu, \"wrong\": %llu, \"errors\": {", (unsigned long long)s->requests,
           (unsigned long long)s->checked, (unsigned long long)s->wrong);
    for (unsigned i = 0; i < CODES; i++)
        if (s->errors[i]) {
            printf("%s\"%s\": %llu", comma, kops_code_name((enum kops_code)i), (unsigned long long)s->errors[i]);
            comma = ", ";
        }
    printf("}, \"lost\": %llu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"longest_us\": %.1f}\n",
           (unsigned long long)s->lost, n ? s->samples[n / 2] : 0.0, n ? s->samples[n - 1 - n / 100] : 0.0,
           s->longest_us);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                            {"seed", required_argument, NULL, 'e'},
                                            {"requests", required_argument, NULL, 'r'},
                                            {"seconds", required_argument, NULL, 't'},
                                            {NULL, 0, NULL, 0}};
    struct soak *s = calloc(1, sizeof(*s));
    const char *socket = NULL;
    uint64_t requests = 0;
    double seconds = 0, end;
    int option, status;

    if (!s)
        errx(EXIT_FAILURE, "no memory");
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 's')
            socket = optarg;
        else if (option == 'e')
            s->random.state = strtoull(optarg, NULL, 10);
        else if (option == 'r')
            requests = strtoull(optarg, NULL, 10);
        else if (option == 't')
            seconds = strtod(optarg, NULL);
        else
            return 2;
    }
    if (!socket || optind != argc || (!requests && seconds <= 0))
        errx(2, "usage: kops_soak_client --socket PATH --seed N --requests N [--seconds S]");
    end = now_us() + seconds * 1e6;
    begin(s, socket);
    while ((!requests || s->requests < requests) && (seconds <= 0 || now_us() < end))
        turn(s);
    check_kept(s);
    memory_drop(&s->memory);
    kops_program_release(s->program);
    kops_buffer_release(s->witness);
    kops_close(s->client);
    report(s);
    status = s->wrong || s->lost;
    free(s);
    return status;
}
