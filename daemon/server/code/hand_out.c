/* The method code: a module's binary for a client that loads it itself. The memory is the client's, as all that both
 * share, so nothing is kept here for it; writing and sealing it run on the pool. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "backend/memfd.h"
#include "server/code/code.h"
#include "server/code/kernel.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/work.h"

struct hand_out {
    struct work work;
    struct compiled *compiled; /* a reference */
    int fd;                    /* owned; closed on the pool */
    bool written;
    struct error error; /* where it was not */
};
const size_t hand_out_state_bytes = sizeof(struct hand_out);

static struct hand_out *hand_out_of(const struct request *r)
{
    return request_state(r);
}

static int fd_error(struct error *e, const char *what, int number)
{
    error_set(e, ERROR_INVALID_FD, "%s: %s", what, strerror(number));
    return error_detail_text(e, "key", "fd");
}

static int write_all(int fd, const unsigned char *from, size_t size, struct error *e)
{
    for (size_t at = 0; at < size;) {
        ssize_t n = pwrite(fd, from + at, size - at, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fd_error(e, "the binary cannot be written to the memfd", n ? errno : EIO);
        at += (size_t)n;
    }
    return 0;
}

static int write_sealed(const struct hand_out *h, struct error *e)
{
    if (memfd_check(h->fd, h->compiled->image_size, true, e) < 0 ||
        write_all(h->fd, h->compiled->image, h->compiled->image_size, e) < 0)
        return -1;
    if (fcntl(h->fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return fd_error(
            e, "the memfd cannot be sealed; unmap it, and leave out F_SEAL_SEAL until it has been handed back", errno);
    return 0;
}

static void hand_out_run(struct work *work)
{
    struct hand_out *h = list_entry(work, struct hand_out, work);

    h->written = write_sealed(h, &h->error) == 0;
    close(h->fd);
}

static void hand_out_done(struct work *work)
{
    struct hand_out *h = list_entry(work, struct hand_out, work);
    struct request *r = request_of(h);
    const uint64_t bytes = h->compiled->image_size;
    struct rpc_output *out;

    compiled_unref(h->compiled);
    if (r->connection->closed) {
        request_abandon(r);
        return;
    }
    if (!h->written) {
        request_end_error(r, &h->error);
        return;
    }
    out = request_result(r);
    if (out) {
        rpc_write_map(out, 1);
        rpc_write_entry_uint(out, "bytes", bytes);
    }
    request_end(r);
}

static int begin(struct request *r, const struct rpc_arg *args, struct request_fds *fds, struct error *e)
{
    struct connection *c = r->connection;
    const struct client_module *m;

    if (user_code_check_hand_out(c, e) < 0)
        return -1;
    m = idtable_get(&c->code->modules, args[CODE_module].u);
    if (!m) {
        error_set(e, ERROR_UNKNOWN_KERNEL, "this connection has no module %llu",
                  (unsigned long long)args[CODE_module].u);
        return error_detail_text(e, "key", "module");
    }
    if (args[CODE_fd].u >= fds->count || fds->fds[args[CODE_fd].u] < 0)
        return error_at(e, ERROR_INVALID_FD, "", "fd", "the message brought no such descriptor");
    hand_out_of(r)->compiled = compiled_ref(m->module->compiled);
    hand_out_of(r)->fd = fds->fds[args[CODE_fd].u];
    fds->fds[args[CODE_fd].u] = -1;
    return 0;
}

void handle_code(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct error e;

    if (begin(r, args, fds, &e) < 0)
        request_end_error(r, &e);
    else
        work_submit(&r->connection->server->loop, &hand_out_of(r)->work, hand_out_run, hand_out_done);
}
