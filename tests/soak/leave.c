/* Programs that end in the middle of their work: with calls under way, some just cancelled. */
#include <err.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soak.h"

enum { MOST = 32, LEFT = 10, REST_US = 4000, LEAVE_TIMEOUT_MS = 300000 };

/* ---- a connection of its own ---- */

static void submit_and_cancel(kops_client *client, kops_buffer *buffer, struct random *dice)
{
    const struct kops_tensor t = kops_vector(buffer, KOPS_F32, WITNESS);
    struct kops_request request = {.op = "square", .inputs = &t, .n_inputs = 1, .outputs = &t, .n_outputs = 1};
    const unsigned n = random_between(dice, 1, MOST);
    kops_ticket tickets[MOST];
    struct kops_error e;
    unsigned sent = 0;

    while (sent < n) {
        request.options.stream = random_below(dice, 4);
        if (kops_submit(client, &request, &tickets[sent], &e))
            break;
        sent++;
    }
    for (unsigned i = random_below(dice, 2 * n); i && sent; i--)
        kops_cancel(client, tickets[random_below(dice, sent)], &e);
}

static void leave_connection(struct soak *s)
{
    const struct kops_connect_options options = {
        .socket = s->socket, .name = "leaves", .timeout_ms = LEAVE_TIMEOUT_MS, .connect_timeout_ms = LEAVE_TIMEOUT_MS};
    kops_buffer *buffer = NULL;
    kops_client *client;
    struct kops_error e;

    s->requests++;
    if (kops_connect(&options, &client, &e)) {
        count_failure(s, EXPECT_FIRST, "a connection", &e);
        return;
    }
    if (memory_made(client, WITNESS * sizeof(float), &buffer, &e))
        count_failure(s, EXPECT_AGAIN | EXPECT_BEGUN_ANEW, "memory", &e);
    else
        submit_and_cancel(client, buffer, &s->random);
    kops_close(client);
    kops_buffer_release(buffer);
}

/* ---- a child that goes on with its parent's client ---- */

/* Part `i` of the memory. */
static struct kops_tensor part(const struct kops_tensor *t, unsigned i)
{
    struct kops_tensor one = *t;

    one.offset += i * WITNESS * sizeof(float);
    return one;
}

/* A child goes on with the buffer, and ends with work under way: none of it is done without what it asked for before,
 * unless that was lost with a daemon or its process, which the child does not wait to learn. The second call waits
 * while the first one is busy, and the others wait for it. */
static void leave_work(struct soak *s, const struct kops_tensor *parts)
{
    struct kops_request request = {.op = "add", .inputs = s->kept, .n_inputs = 2, .n_outputs = 1};
    struct kops_tensor out = part(parts, 0);
    kops_ticket ticket;
    struct kops_error e;

    request.outputs = &out;
    if (kops_run(s->client, &request, NULL, &e)) {
        if (!explained(e.code))
            warnx("a child: %s", e.message);
        _exit(!explained(e.code));
    }
    request.options = (struct kops_options){.stream = 1, .repeat = random_between(&s->random, 20, 200)};
    kops_submit(s->client, &request, &ticket, &e);
    request.options = (struct kops_options){.stream = 2, .priority = KOPS_PRIORITY_LOW};
    for (unsigned i = 1; i < LEFT && !e.code; i++) {
        out = part(parts, i);
        kops_submit(s->client, &request, &ticket, &e);
        request.options.priority = KOPS_PRIORITY_NORMAL;
    }
    _exit(0);
}

static bool is_written(const struct kops_tensor *t)
{
    const float *data = vector_data(t);

    for (unsigned i = 0; i < WITNESS; i++)
        if (data[i] != 0)
            return true;
    return false;
}

static void check_left(struct soak *s, const struct kops_tensor *parts)
{
    bool before = true;

    s->checked++;
    for (unsigned i = 1; i < LEFT; i++) {
        const struct kops_tensor out = part(parts, i);
        const bool written = is_written(&out);

        if (written && !before && expect_nothing(&s->since)) {
            complain(s, "a client that left", "a later call was done, and an earlier one was not");
            return;
        }
        before = written;
    }
}

static void leave_as_child(struct soak *s)
{
    struct kops_tensor parts = kops_vector(NULL, KOPS_F32, WITNESS);
    struct kops_error e;
    int status;
    pid_t child;

    if (kops_buffer_alloc_shared(s->client, LEFT * WITNESS * sizeof(float), &parts.buffer, &e)) {
        refuse_memory(s, &e);
        return;
    }
    s->requests += LEFT;
    child = fork();
    if (child < 0)
        err(EXIT_FAILURE, "fork");
    if (!child)
        leave_work(s, &parts);
    if (waitpid(child, &status, 0) != child || (WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) != SIGKILL))
        complain(s, "a child", "it did not end well");
    usleep(REST_US);
    check_left(s, &parts);
    kops_buffer_release(parts.buffer);
}

void leave_turn(struct soak *s)
{
    if (s->forks && random_chance(&s->random, 70))
        leave_as_child(s);
    else
        leave_connection(s);
}
