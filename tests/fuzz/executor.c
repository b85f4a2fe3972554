/* The daemon's side of an executor, where the input is what the executor writes: records, or any bytes and words.
 *
 * An input is a list of steps, one byte each with what it takes behind it; see enum input_step. Beyond memory errors it
 * checks that every job ends exactly once, with its executor if not before, and that texts end. */
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/unit/executor/front_fixture.h"
#include "util/log.h"

enum input_step {
    SUBMIT, /* which stream */
    RECORD, /* which job's slot and serial go behind the kind; n, then n bytes: a record */
    DONE,   /* which job, samples that it claims: a sound end */
    WORD,   /* 8 bytes: the position that the executor claims to have written */
    RAW,    /* 2 bytes: offset; n, then n bytes: into the ring */
    POLL,
    STEPS
};

struct input {
    const uint8_t *data;
    size_t size;
};

static uint8_t next(struct input *in)
{
    if (!in->size)
        return 0;
    in->size--;
    return *in->data++;
}

static uint32_t take(struct input *in, unsigned char *into, uint32_t size)
{
    if (size > in->size)
        size = (uint32_t)in->size;
    memcpy(into, in->data, size);
    in->data += size;
    in->size -= size;
    return size;
}

static void put_record(struct front_fixture *f, struct input *in, unsigned n)
{
    unsigned char bytes[256 + 12] = {0};
    const uint8_t which = next(in);
    uint32_t size = next(in);

    size = take(in, bytes, size);
    if (n && size >= 12 && f->sent[which % n].kind == RECORD_SUBMIT) {
        memcpy(bytes + 4, &f->sent[which % n].slot, 4);
        memcpy(bytes + 8, &f->sent[which % n].serial, 4);
    }
    front_fixture_put(f, bytes, size);
}

static void put_done(struct front_fixture *f, struct input *in, unsigned n)
{
    const uint8_t which = next(in);
    struct record_done record = {.kind = RECORD_DONE, .n_samples = next(in)};

    if (!n)
        return;
    record.slot = f->sent[which % n].slot;
    record.serial = f->sent[which % n].serial;
    front_fixture_put(f, &record, sizeof(record));
}

static void step(struct front_fixture *f, struct input *in, unsigned *n)
{
    uint8_t position[8] = {0};
    uint64_t written;
    uint32_t offset;

    switch ((enum input_step)(next(in) % STEPS)) {
    case SUBMIT:
        if (*n < JOBS)
            front_fixture_submit(f, (*n)++, next(in) % STREAMS);
        break;
    case RECORD:
        put_record(f, in, *n);
        break;
    case DONE:
        put_done(f, in, *n);
        break;
    case WORD:
        take(in, position, sizeof(position));
        memcpy(&written, position, sizeof(written));
        if (f->x)
            atomic_store(&f->region->to_daemon.written, written);
        break;
    case RAW:
        offset = next(in) | (uint32_t)next(in) << 8;
        if (f->x)
            take(in, f->region->to_daemon_bytes + offset, next(in));
        break;
    default:
        front_fixture_poll(f);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct front_fixture *f = front_fixture_new();
    struct input in = {data, size};
    unsigned n = 0;

    log_set_level((enum log_level) - 1); /* nothing: nearly every input ends an executor */
    while (in.size)
        step(f, &in, &n);
    front_fixture_poll(f);
    front_fixture_end(f);
    for (unsigned i = 0; i < n; i++) {
        FUZZ_CHECK(f->done[i] == 1);
        FUZZ_CHECK(strnlen(f->steps[i].variant_used, STEP_VARIANT_BYTES) < STEP_VARIANT_BYTES);
        FUZZ_CHECK(f->jobs[i].n_samples <= REPEAT);
        if (f->jobs[i].failed)
            FUZZ_CHECK(memchr(f->jobs[i].error.message, 0, sizeof(f->jobs[i].error.message)));
    }
    front_fixture_free(f);
    return 0;
}
