/* The method cancel, for the requests of all rooms that can be cancelled. */
#include "server/code/code.h"
#include "server/exec/exec.h"
#include "server/peer/connection.h"
#include "server/tune/tune.h"

static void cancel_compile(struct request *r)
{
    struct error e;

    error_set(&e, ERROR_CANCELLED, "the compile was cancelled");
    compile_cancel(r, &e);
}

static const struct {
    bool (*can)(const struct request *r);
    void (*cancel)(struct request *r);
} kinds[] = {{exec_can_cancel, exec_cancel}, {compile_can_cancel, cancel_compile}, {tune_can_cancel, tune_cancel}};

void handle_cancel(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    const size_t n = sizeof(kinds) / sizeof(kinds[0]);
    struct request *target = request_find(r->connection, (uint32_t)args[CANCEL_msgid].u);
    struct rpc_output *out = request_result(r);
    size_t kind = target && target != r ? 0 : n;

    (void)fds;
    while (kind < n && !kinds[kind].can(target))
        kind++;
    /* The answer to cancel comes first. */
    if (out) {
        rpc_write_map(out, 1);
        rpc_write_entry_bool(out, "cancelled", kind < n);
    }
    if (kind < n)
        kinds[kind].cancel(target);
    request_end(r);
}
