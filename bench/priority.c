/* A small add beside another client that always has large gemms queued. Prints JSON.
 *
 * `alone`, then with the other one at work `high` (the add's priority is high, the gemms' normal) and `normal` (both
 * normal), in alternating blocks. Whoever asks for no priority gets what the daemon gives it. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"
#include "operands.h"
#include "options.h"
#include "team.h"

enum {
    DEPTH = 4,
    SIDES = 3,
    BLOCK_SECONDS = 4 /* no block takes much longer: without priorities a call may wait for several gemms */
};

struct setting {
    struct bench_connection connection;
    size_t blocks, calls, elements, side;
};

struct shared {
    _Atomic bool busy, stop;
    _Atomic size_t gemms;
    double gemm_us;
    size_t n[SIDES];
    double samples[]; /* alone, high, normal: room for all calls of each */
};

/* The client that fills the GPU. */
static int saturate(struct team *team, const struct setting *setting, kops_client *client, struct shared *shared)
{
    const int64_t shape[] = {(int64_t)setting->side, (int64_t)setting->side};
    kops_ticket tickets[DEPTH] = {0};
    struct kops_result result;
    struct operands operands;
    struct kops_error error;
    int r = 1;

    if (operands_make(&operands, client, "gemm", KOPS_F32, 2, shape))
        return 1;
    if (check_kops(kops_run(client, &operands.request, &result, &error), &error, "gemm") ||
        check_kops(kops_run(client, &operands.request, &result, &error), &error, "gemm"))
        goto release;
    shared->gemm_us = result.gpu_us > 0 ? result.gpu_us : result.host_us;
    team_meet(team); /* the other measures alone */
    team_meet(team);
    for (size_t i = 0; !atomic_load(&shared->stop); i = (i + 1) % DEPTH) {
        if (tickets[i]) {
            if (check_kops(kops_wait(client, tickets[i], 0, NULL, &error), &error, "gemm"))
                goto release;
            atomic_fetch_add(&shared->gemms, 1);
            atomic_store(&shared->busy, true);
        }
        if (check_kops(kops_submit(client, &operands.request, &tickets[i], &error), &error, "gemm"))
            goto release;
    }
    r = 0;

release:
    operands_release(&operands);
    return r;
}

enum { ALONE, HIGH, NORMAL };

/* `keep` false: only warms up. */
static int add_block(kops_client *client, struct operands *operands, struct shared *shared, unsigned side, size_t calls,
                     bool keep, size_t room)
{
    uint64_t until = now_ns() + BLOCK_SECONDS * UINT64_C(1000000000);
    struct kops_error error;

    operands->request.options.priority = side == NORMAL ? KOPS_PRIORITY_NORMAL : KOPS_PRIORITY_HIGH;
    for (size_t i = 0; i < calls && now_ns() < until; i++) {
        uint64_t start = now_ns();

        if (check_kops(kops_run(client, &operands->request, NULL, &error), &error, "add"))
            return -1;
        if (keep)
            shared->samples[side * room + shared->n[side]++] = (double)(now_ns() - start) * 1e-3;
    }
    return 0;
}

static int add_beside(struct team *team, const struct setting *setting, kops_client *client, struct shared *shared)
{
    size_t room = setting->blocks * setting->calls;
    int64_t elements = (int64_t)setting->elements;
    struct operands operands;
    int r = 1;

    if (operands_make(&operands, client, "add", KOPS_F32, 1, &elements))
        return 1;
    team_meet(team);
    if (add_block(client, &operands, shared, NORMAL, 20, false, room) ||
        add_block(client, &operands, shared, ALONE, 20, false, room) ||
        add_block(client, &operands, shared, ALONE, room, true, room))
        goto release;
    team_meet(team);
    while (!atomic_load(&shared->busy)) {
        if (add_block(client, &operands, shared, HIGH, 1, false, room))
            goto release;
    }
    for (size_t block = 0; block < setting->blocks; block++) {
        for (unsigned side = HIGH; side <= NORMAL; side++) {
            if (add_block(client, &operands, shared, side, 2, false, room) ||
                add_block(client, &operands, shared, side, setting->calls, true, room))
                goto release;
        }
    }
    r = 0;

release:
    atomic_store(&shared->stop, true);
    operands_release(&operands);
    return r;
}

static int work(struct team *team, size_t member, void *context)
{
    const struct setting *setting = context;
    kops_client *client = connect_or_exit(&setting->connection);
    int r;

    if (member == 0)
        need_feature(client, "priority");
    r = (member ? saturate : add_beside)(team, setting, client, team_shared(team));
    kops_close(client);
    return r;
}

static void print(const struct shared *shared, size_t each)
{
    static const char *const names[SIDES] = {"alone", "high", "normal"};
    struct series series[SIDES], *all[SIDES];

    for (size_t side = 0; side < SIDES; side++) {
        series_init(&series[side], names[side], each);
        all[side] = &series[side];
        for (size_t i = 0; i < shared->n[side]; i++)
            series_add_us(&series[side], shared->samples[side * each + i]);
    }
    printf("{\"gemms\": %zu, \"gemm_us\": %.1f, \"series\": ", atomic_load(&shared->gemms), shared->gemm_us);
    series_print(all, SIDES);
    printf("}\n");
    for (size_t side = 0; side < SIDES; side++)
        series_deinit(&series[side]);
}

int main(int argc, char **argv)
{
    struct setting setting = {.blocks = 3, .calls = 100, .elements = 1024, .side = 8192};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "blocks", .count = &setting.blocks},
        {.name = "calls", .count = &setting.calls},
        {.name = "elements", .count = &setting.elements},
        {.name = "side", .count = &setting.side},
        {0},
    };
    struct team *team;
    size_t each;
    int r;

    options_read(argc, argv, options);
    each = setting.blocks * setting.calls;
    team = team_new(2, sizeof(struct shared) + SIDES * each * sizeof(double));
    if (!team)
        return 1;
    r = team_run(team, work, &setting);
    if (!r)
        print(team_shared(team), each);
    team_free(team);
    return r;
}
