#include "server/observe/late.h"

#include "server/observe/room.h"
#include "server/observe/trace.h"

void late_expect(struct connection *c, const struct run *run, uint64_t row)
{
    c->server->observe->late[run->job.token % LATE_MAX] =
        (struct late){.token = run->job.token, .row = row, .of = c, .op = latency_op_of(c->server, run)};
}

void late_timed(struct server *s, uint64_t token, const struct backend_times *times)
{
    struct late *late = &s->observe->late[token % LATE_MAX];

    if (!token)
        return;
    trace_timed(s, token, times);
    if (late->token != token)
        return;
    late->token = 0;
    profile_time(s->observe->profile, late->row, times->us);
    latency_note_device(s, late->of, late->op, times->us);
}

void late_forget(const struct connection *c)
{
    for (unsigned i = 0; i < LATE_MAX; i++)
        if (c->server->observe->late[i].of == c)
            c->server->observe->late[i].of = NULL;
}
