/* kops_soak_client: a client that works at random for long and checks every answer.
 *
 *     kops_soak_client --socket PATH --seed N --requests N [--seconds S] [--kernels] [--forks]
 *                      [--threads] [--stream] [--think S] [--small-quotas]
 *
 * Runs ops of several kinds, dtypes and shapes on the daemon's first device, blocking and pipelined, alone, in
 * sequences and as programs, cancels some, gives buffers back and makes others; with --kernels it launches one of its
 * own, with --forks children go on with the client, with --threads several use it, with --stream it puts ops on a CUDA
 * stream of its own, with --think it pauses for up to S seconds between bursts, connected or not. --small-quotas: its
 * user may have all that a quota allows, so that it is refused some. The daemon may be killed and started anew
 * meanwhile: what it ends is counted, everything else must be right. Ends after so many requests or seconds (0: no such
 * limit), with a line of JSON: what was done, what went wrong, how often which error came, and how long a turn
 * took. Exit status 1 when an answer was wrong or did not come, or an error came that nothing here explains. */
#include <err.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "soak.h"

enum { TIMEOUT_S = 300, CONNECT_TRIES = 300, CONNECT_PAUSE_US = 100000, LONG_PAUSES = 4000 };

/* ---- begin and end ---- */

void soak_begin(struct soak *s)
{
    const struct kops_connect_options options = {.socket = s->socket,
                                                 .name = "soak in C",
                                                 .timeout_ms = s->timeout_s * 1000,
                                                 .connect_timeout_ms = s->timeout_s * 1000};
    const useconds_t pause_us =
        CONNECT_PAUSE_US * (useconds_t)(s->think_s < LONG_PAUSES ? 1 + s->think_s : LONG_PAUSES);
    unsigned tries = 0;
    struct kops_error e;
    float *data;

    while (kops_connect(&options, &s->client, &e) && explained(e.code) && ++tries < CONNECT_TRIES)
        usleep(pause_us);
    while (!e.code && memory_made(s->client, sizeof(float) * WITNESS * 4, &s->witness, &e) && explained(e.code) &&
           ++tries < CONNECT_TRIES) {
        e.code = KOPS_OK;
        usleep(pause_us); /* others may have all of a quota, and think */
    }
    if (e.code && explained(e.code))
        exit(EXIT_SUCCESS); /* others, who think, keep all of it */
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
    if (s->streams && kops_info_feature(s->client, "ordered"))
        stream_begin(s);
}

void soak_end(struct soak *s)
{
    check_kept(s);
    memory_drop(&s->memory);
    s->program = kops_program_release(s->program);
    s->kernel = kops_kernel_free(s->kernel);
    s->witness = kops_buffer_release(s->witness);
    stream_end(s);
    s->stream = NULL;
    kops_close(s->client);
    s->client = NULL;
    s->known = 0;
}

static void report(struct soak *s)
{
    const char *comma = "";

    fflush(stderr);
    printf("{\"requests\": %llu, \"checked\": %llu, \"wrong\": %llu, \"errors\": {", (unsigned long long)s->requests,
           (unsigned long long)s->checked, (unsigned long long)s->wrong);
    for (unsigned i = 0; i < CODES; i++)
        if (s->errors[i]) {
            printf("%s\"%s\": %llu", comma, kops_code_name((enum kops_code)i), (unsigned long long)s->errors[i]);
            comma = ", ";
        }
    printf("}, \"lost\": %llu, \"longest_us\": %.1f}\n", (unsigned long long)s->lost, s->longest_us);
}

int main(int argc, char **argv)
{
    static struct soak soak;
    struct soak *s = &soak;
    int small_quotas = 0, slow_starts = 0, option;
    const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                     {"seed", required_argument, NULL, 'e'},
                                     {"requests", required_argument, NULL, 'r'},
                                     {"seconds", required_argument, NULL, 't'},
                                     {"kernels", no_argument, &s->kernels, 1},
                                     {"forks", no_argument, &s->forks, 1},
                                     {"threads", no_argument, &s->threads, 1},
                                     {"stream", no_argument, &s->streams, 1},
                                     {"think", required_argument, NULL, 'i'},
                                     {"small-quotas", no_argument, &small_quotas, 1},
                                     {"slow-starts", no_argument, &slow_starts, 1},
                                     {"timeout", required_argument, NULL, 'm'},
                                     {NULL, 0, NULL, 0}};
    uint64_t requests = 0;
    const char *socket = NULL;
    double seconds = 0, end;

    s->timeout_s = TIMEOUT_S;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 's')
            socket = optarg;
        else if (option == 'e')
            s->random.state = strtoull(optarg, NULL, 10);
        else if (option == 'r')
            requests = strtoull(optarg, NULL, 10);
        else if (option == 't')
            seconds = strtod(optarg, NULL);
        else if (option == 'i')
            s->think_s = strtod(optarg, NULL);
        else if (option == 'm')
            s->timeout_s = (int)strtol(optarg, NULL, 10);
        else if (option)
            return 2;
    }
    if (!socket || optind != argc || (!requests && seconds <= 0))
        errx(2, "usage: kops_soak_client --socket PATH --seed N --requests N [--seconds S] [--kernels] [--forks] "
                "[--threads] [--stream] [--think S] [--small-quotas] [--slow-starts] [--timeout S]");
    expect_open(small_quotas, slow_starts);
    end = now_us() + seconds * 1e6;
    s->socket = socket;
    soak_begin(s);
    s->kernels = s->kernels && kops_info_feature(s->client, "kernels");
    while ((!requests || s->requests < requests) && (seconds <= 0 || now_us() < end)) {
        turn(s);
        think(s);
    }
    soak_end(s);
    report(s);
    return s->wrong || s->lost;
}
