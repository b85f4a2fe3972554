/* The method code: a module's binary, or one of a backend's own kernels, for a client that loads it itself. The memory
 * is the client's, as all that both share, so nothing is kept here for it; writing and sealing it run on the pool. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/memory.h"
#include "server/code/code.h"
#include "server/code/kernel.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/loop.h"

struct hand_out {
    struct work work;
    struct compiled *compiled;  /* a reference: the module's; NULL: an image of a backend */
    struct backend_image image; /* `layout` only without `compiled` */
    int fd;                     /* owned; closed on the pool */
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

/* Whether every page of the file is there. Nobody may be able to take pages away or to lengthen the file, or the answer
 * holds for no time. Cutting the file to the size that it has gives back pages behind its end, which count as blocks.
 */
static bool has_all_pages(int fd)
{
    enum { BLOCK = 512 }; /* unit of st_blocks */
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct stat st;

    return fstat(fd, &st) == 0 && ftruncate(fd, st.st_size) == 0 && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_blocks * BLOCK >= ((uint64_t)st.st_size + page - 1) / page * page;
}

/* The kernel charges a page to the process that makes it, so the daemon must make none. The client could take pages
 * away between a check and the write, in another thread. So the file is sealed first: F_SEAL_FUTURE_WRITE refuses holes
 * and writes to everybody, but for mappings that exist, such as the daemon's `at`. */
static int fill(int fd, void *at, const struct backend_image *image, struct error *e)
{
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_GROW) < 0) {
        const int error = errno;

        return fd_error(e,
                        error == EINVAL
                            ? "the kernel is older than Linux 5.1 and cannot seal the memfd while it is mapped"
                            : "the memfd cannot be sealed; leave out F_SEAL_SEAL until it has been handed back",
                        error);
    }
    if (!has_all_pages(fd)) {
        error_set(e, ERROR_INVALID_FD,
                  "the memfd has holes: make another one, and take its pages first, with posix_fallocate(fd, 0, %zu)",
                  image->size);
        return error_detail_text(e, "key", "fd");
    }
    memcpy(at, image->data, image->size);
    return 0;
}

static int write_sealed(const struct hand_out *h, struct error *e)
{
    const size_t size = h->image.size;
    void *at;
    int r;

    if (memfd_check(h->fd, size, true, e) < 0)
        return -1;
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);
    if (at == MAP_FAILED)
        return fd_error(e, "the memfd cannot be mapped for writing", errno);
    r = fill(h->fd, at, &h->image, e);
    munmap(at, size);
    if (r < 0)
        return -1;
    if (fcntl(h->fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return fd_error(e, "the memfd cannot be sealed; make another one, and unmap it before you hand it over", errno);
    return 0;
}

static void hand_out_run(struct work *work)
{
    struct hand_out *h = list_entry(work, struct hand_out, work);

    h->written = write_sealed(h, &h->error) == 0;
    close(h->fd);
}

static void answer(struct request *r, const struct backend_image *image, bool has_layout)
{
    request_end_record(r, RECORD(code_reply, .bytes = image->size, .layout = {has_layout, image->layout}));
}

static void hand_out_done(struct work *work)
{
    struct hand_out *h = list_entry(work, struct hand_out, work);
    struct request *r = request_of(h);

    if (h->compiled)
        compiled_unref(h->compiled);
    if (r->connection->closed) {
        request_abandon(r);
        return;
    }
    if (!h->written) {
        request_end_error(r, &h->error);
        return;
    }
    answer(r, &h->image, !h->compiled);
}

static int find_module(const struct connection *c, uint64_t id, struct hand_out *h, struct error *e)
{
    const struct client_module *m = idtable_get(&c->code->modules, id);

    if (!m) {
        error_set(e, ERROR_UNKNOWN_KERNEL, "this connection has no module %llu", (unsigned long long)id);
        return error_detail_text(e, "key", "module");
    }
    h->compiled = m->module->compiled;
    h->image = (struct backend_image){.data = h->compiled->image, .size = h->compiled->image_size};
    return 0;
}

static int find_image(const struct connection *c, const struct rpc_arg *name, struct hand_out *h, struct error *e)
{
    const struct backend *backend = user_code_image_backend(c->server);

    h->compiled = NULL;
    if (!backend) {
        error_set(e, ERROR_UNSUPPORTED, "no device of this daemon has kernels of its own that clients could load");
        return error_detail_text(e, "key", "image");
    }
    if (!backend->image(name->text, name->length, &h->image))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "image", "there is no such binary");
    return 0;
}

static int find(const struct connection *c, const struct rpc_arg *args, struct hand_out *h, struct error *e)
{
    if (args[CODE_module].present && args[CODE_image].present)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "image", "not beside `module`: one binary is handed out");
    if (args[CODE_image].present)
        return find_image(c, &args[CODE_image], h, e);
    if (!args[CODE_module].present)
        return error_at(e, ERROR_MISSING_KEY, "", "module", "required, or `image`");
    if (!args[CODE_fd].present)
        return error_at(e, ERROR_MISSING_KEY, "", "fd", "required beside `module`");
    return find_module(c, args[CODE_module].u, h, e);
}

/* *ret_writes: the binary is to be written. */
static int begin(struct request *r, const struct rpc_arg *args, struct request_fds *fds, bool *ret_writes,
                 struct error *e)
{
    struct connection *c = r->connection;
    struct hand_out *h = hand_out_of(r);

    if (user_code_check_hand_out(c, e) < 0 || find(c, args, h, e) < 0)
        return -1;
    *ret_writes = args[CODE_fd].present;
    if (!*ret_writes)
        return 0;
    if (args[CODE_fd].u >= fds->count || fds->fds[args[CODE_fd].u] < 0)
        return error_at(e, ERROR_INVALID_FD, "", "fd", "the message brought no such descriptor");
    if (h->compiled)
        compiled_ref(h->compiled);
    h->fd = fds->fds[args[CODE_fd].u];
    fds->fds[args[CODE_fd].u] = -1;
    return 0;
}

void handle_code(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct error e;
    bool writes;

    if (begin(r, args, fds, &writes, &e) < 0)
        request_end_error(r, &e);
    else if (writes)
        work_submit(&r->connection->server->loop, &hand_out_of(r)->work, hand_out_run, hand_out_done);
    else
        answer(r, &hand_out_of(r)->image, true);
}
