#include "rpc/input.h"

#include <string.h>
#include <unistd.h>

enum { READ_ROOM = 16 * 1024, VALUES_A_CALL = 16 * 1024 };

void rpc_input_init(struct rpc_input *in, size_t limit)
{
    memset(in, 0, sizeof(*in));
    buffer_init(&in->bytes, limit + READ_ROOM);
    in->limit = limit;
}

void rpc_input_discard(const struct rpc_input *in, const int *fds, unsigned count)
{
    if (in->discard) {
        in->discard(in->context, fds, count);
        return;
    }
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
}

void rpc_input_free(struct rpc_input *in)
{
    for (unsigned i = 0; i < in->n_batches; i++)
        rpc_input_discard(in, in->batches[i].fds, in->batches[i].count);
    in->n_batches = 0;
    buffer_free(&in->bytes);
}

unsigned char *rpc_input_reserve(struct rpc_input *in, size_t *ret_room)
{
    unsigned char *at;

    /* A message under way may need more than one step's room. */
    at = buffer_reserve(&in->bytes, READ_ROOM);
    if (at)
        *ret_room = in->bytes.capacity - in->bytes.end;
    if (at && *ret_room > in->bytes.max - buffer_length(&in->bytes))
        *ret_room = in->bytes.max - buffer_length(&in->bytes);
    return at;
}

int rpc_input_commit(struct rpc_input *in, size_t n, const int *fds, unsigned n_fds, struct error *e)
{
    struct rpc_fd_batch batch = {.count = n_fds};

    batch.start = in->position + buffer_length(&in->bytes);
    batch.end = batch.start + n;
    in->bytes.end += n;
    if (!n_fds)
        return 0;
    memcpy(batch.fds, fds, n_fds * sizeof(fds[0]));
    if (in->n_batches == RPC_MAX_BATCHES) {
        rpc_input_discard(in, fds, n_fds);
        return error_set(e, ERROR_PROTOCOL_ERROR, "descriptors arrived that no message starts with");
    }
    in->batches[in->n_batches++] = batch;
    return 0;
}

int rpc_input_next(struct rpc_input *in, struct rpc_frame *ret_frame, struct error *e)
{
    const size_t length = buffer_length(&in->bytes);
    const unsigned char *data;
    enum scan_result r;

    in->paused = false;
    if (!length)
        return 0;
    data = in->bytes.data + in->bytes.start;
    /* A finished scan stands at the message's end until rpc_input_consume(). */
    r = in->scan.position && !in->scan.depth ? SCAN_COMPLETE
                                             : scan_some(&in->scan, data, length, in->limit, VALUES_A_CALL);
    in->paused = r == SCAN_PAUSED;
    if (r == SCAN_MORE || r == SCAN_PAUSED)
        return 0;
    if (r != SCAN_COMPLETE)
        return error_set(e, ERROR_PROTOCOL_ERROR, "%s", scan_result_text(r));
    *ret_frame = (struct rpc_frame){data, in->scan.position, in->scan.values};
    return 1;
}

static void drop_first_batch(struct rpc_input *in)
{
    in->n_batches--;
    memmove(&in->batches[0], &in->batches[1], in->n_batches * sizeof(in->batches[0]));
}

int rpc_input_claim(struct rpc_input *in, unsigned nfds, int *ret_fds, struct error *e)
{
    struct rpc_fd_batch *batch = &in->batches[0];

    if (!nfds)
        return 0;
    if (!in->n_batches || in->position < batch->start || in->position >= batch->end || batch->count != nfds)
        return error_set(e, ERROR_PROTOCOL_ERROR,
                         "nfds is %u, but another number of descriptors (or none) came with the start of the message",
                         nfds);
    memcpy(ret_fds, batch->fds, nfds * sizeof(ret_fds[0]));
    drop_first_batch(in);
    return 0;
}

int rpc_input_consume(struct rpc_input *in, struct error *e)
{
    in->position += in->scan.position;
    buffer_consume(&in->bytes, in->scan.position);
    scan_reset(&in->scan);
    if (in->n_batches && in->batches[0].end <= in->position)
        return error_set(e, ERROR_PROTOCOL_ERROR, "descriptors arrived that no message claims with nfds");
    return 0;
}
