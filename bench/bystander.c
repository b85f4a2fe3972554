/* A client that works beside others that do harm: small blocking adds in shared memory on a device, each of other
 * numbers and each checked, until stdin ends. Orders come as lines on stdin, and each is answered with a line of JSON:
 * `mark` forgets all calls until now, `report` tells of those since. kopsbench/isolation/bystander.py does the same. */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "measure.h"
#include "options.h"

enum { SAMPLES = 4096 };

struct setting {
    struct bench_connection connection;
    const char *device;
    size_t elements, pause_us, stall_us;
};

struct tally {
    uint64_t start_ns;
    uint64_t waiting_ns; /* since when for a right answer; 0: it has come */
    size_t calls, errors, wrong;
    double longest_us, stalled_us; /* waits for a right answer: the longest; the sum of those of stall_us and more */
    char first_error[64];
    double samples[SAMPLES]; /* the latest ones, microseconds a call */
};

struct bystander {
    const struct setting *setting;
    kops_client *client;
    kops_buffer *buffers[3];
    struct kops_tensor tensors[3];
    float *data[3];
    uint32_t round;
    struct tally tally;
};

static void mark(struct tally *tally)
{
    *tally = (struct tally){.start_ns = now_ns()};
}

static void report(const struct tally *tally)
{
    const size_t n = tally->calls < SAMPLES ? tally->calls : SAMPLES;

    printf("{\"calls\": %zu, \"errors\": %zu, \"wrong\": %zu, \"first_error\": \"%s\", \"longest_us\": %.1f, "
           "\"stalled_us\": %.1f, \"elapsed_us\": %.1f, \"us\": [",
           tally->calls, tally->errors, tally->wrong, tally->first_error, tally->longest_us, tally->stalled_us,
           (double)(now_ns() - tally->start_ns) * 1e-3);
    for (size_t i = 0; i < n; i++)
        printf("%s%.1f", i ? ", " : "", tally->samples[i]);
    printf("]}\n");
}

static bool is_right(const struct bystander *b)
{
    for (size_t i = 0; i < b->setting->elements; i++) {
        if (b->data[2][i] != b->data[0][i] + b->data[1][i])
            return false;
    }
    return true;
}

static void note_right(struct tally *tally, uint64_t end_ns, size_t stall_us)
{
    const double waited_us = (double)(end_ns - tally->waiting_ns) * 1e-3;

    tally->waiting_ns = 0;
    tally->longest_us = fmax(tally->longest_us, waited_us);
    if (waited_us >= (double)stall_us)
        tally->stalled_us += waited_us;
}

static void add(struct bystander *b)
{
    struct kops_request request = {.op = "add",
                                   .inputs = b->tensors,
                                   .n_inputs = 2,
                                   .outputs = &b->tensors[2],
                                   .n_outputs = 1,
                                   .options = {.device = b->setting->device, .no_timing = true}};
    struct tally *tally = &b->tally;
    enum kops_code code;
    struct kops_error error;
    uint64_t start, end;

    b->round++;
    for (size_t i = 0; i < b->setting->elements; i++) {
        b->data[0][i] = (float)(b->round % 1000 + i % 100);
        b->data[2][i] = NAN;
    }
    start = now_ns();
    if (!tally->waiting_ns)
        tally->waiting_ns = start;
    code = kops_run(b->client, &request, NULL, &error);
    end = now_ns();
    tally->samples[tally->calls++ % SAMPLES] = (double)(end - start) * 1e-3;
    if (code) {
        if (!tally->errors++)
            snprintf(tally->first_error, sizeof(tally->first_error), "%s", kops_code_name(code));
    } else if (is_right(b)) {
        note_right(tally, end, b->setting->stall_us);
    } else {
        tally->wrong++;
    }
}

/* Pauses between two calls. False: its standard input says that it is to end. */
static bool obey(struct bystander *b)
{
    const size_t pause_us = b->setting->pause_us;
    const struct timespec pause = {(time_t)(pause_us / 1000000), (long)(pause_us % 1000000) * 1000};
    struct pollfd orders = {.fd = 0, .events = POLLIN};
    char order[16];

    if (ppoll(&orders, 1, &pause, NULL) <= 0)
        return true;
    if (!fgets(order, sizeof(order), stdin))
        return false;
    if (!strcmp(order, "report\n")) {
        report(&b->tally);
    } else {
        mark(&b->tally);
        printf("{}\n");
    }
    fflush(stdout);
    return true;
}

static int prepare(struct bystander *b)
{
    const int64_t shape = (int64_t)b->setting->elements;
    struct kops_error error;

    for (size_t i = 0; i < 3; i++) {
        if (check_kops(
                kops_buffer_alloc_shared(b->client, b->setting->elements * sizeof(float), &b->buffers[i], &error),
                &error, "alloc"))
            return -1;
        b->data[i] = kops_buffer_data(b->buffers[i]);
        b->tensors[i] = kops_tensor_of(b->buffers[i], KOPS_F32, 1, &shape);
    }
    for (size_t i = 0; i < b->setting->elements; i++)
        b->data[1][i] = 3;
    return 0;
}

int main(int argc, char **argv)
{
    struct setting setting = {.elements = 1024, .pause_us = 500, .stall_us = 5000};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "device", .text = &setting.device},
        {.name = "elements", .count = &setting.elements},
        {.name = "pause-us", .count = &setting.pause_us},
        {.name = "stall-us", .count = &setting.stall_us},
        {0},
    };
    static struct bystander b;
    int r = 1;

    options_read(argc, argv, options);
    b.setting = &setting;
    b.client = connect_or_exit(&setting.connection);
    mark(&b.tally);
    if (prepare(&b) < 0)
        goto close_client;
    add(&b);
    if (b.tally.errors || b.tally.wrong) {
        fprintf(stderr, "bench_bystander: the first add: %s\n", b.tally.errors ? b.tally.first_error : "is wrong");
        goto close_client;
    }
    printf("{\"ready\": true}\n");
    fflush(stdout);
    mark(&b.tally);
    while (obey(&b))
        add(&b);
    r = 0;

close_client:
    for (size_t i = 0; i < 3; i++)
        b.buffers[i] = kops_buffer_release(b.buffers[i]);
    kops_close(b.client);
    return r;
}
