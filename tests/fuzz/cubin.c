/* Bytes as a cubin, and as compiled code that holds one: what comes from a cache, an archive or a helper's process.
 *
 * Beyond memory errors it checks: whatever is read keeps the limits that who launches a kernel relies on, and compiled
 * code that was read is written again as it was. */
#include <string.h>

#include "compile/cubin.h"
#include "tests/fuzz/fuzz.h"

enum { MAX_KERNELS = 200 };

static void check_entry(const struct compiled_entry *entry)
{
    uint32_t end = 0;

    FUZZ_CHECK(entry->n_params <= COMPILED_MAX_PARAMS);
    for (unsigned i = 0; i < entry->n_params; i++) {
        FUZZ_CHECK(entry->param_offsets[i] >= end);
        end = entry->param_offsets[i] + entry->param_sizes[i];
        FUZZ_CHECK(end >= entry->param_offsets[i] && end <= COMPILED_MAX_PARAM_BYTES);
    }
}

static void as_cubin(const uint8_t *data, size_t size)
{
    struct cubin cubin;
    struct error e;
    const char *name;
    uint32_t at = 0;

    if (cubin_open(&cubin, data, size, &e) < 0) {
        FUZZ_CHECK(e.code != ERROR_NONE && e.message[0]);
        return;
    }
    for (int i = 0; i < MAX_KERNELS && (name = cubin_next_kernel(&cubin, &at)); i++) {
        struct compiled_entry entry = {.lowered = (char *)(uintptr_t)name};

        FUZZ_CHECK(strlen(name) > 0);
        if (cubin_describe(&cubin, &entry, &e) < 0)
            continue;
        check_entry(&entry);
        FUZZ_CHECK(entry.max_threads >= 1 && entry.max_threads <= 1024);
    }
}

static void as_compiled(const uint8_t *data, size_t size)
{
    struct compiled *c;
    struct buffer again;
    struct error e;

    if (compiled_parse(data, size, &c, &e) < 0) {
        FUZZ_CHECK(e.code != ERROR_NONE && e.message[0]);
        return;
    }
    for (unsigned i = 0; i < c->n_entries; i++)
        check_entry(&c->entries[i]);
    buffer_init(&again, size);
    compiled_serialize(c, &again);
    FUZZ_CHECK(!again.failed && buffer_length(&again) == size && !memcmp(again.data, data, size));
    buffer_free(&again);
    (void)compiled_verify(c, &e);
    compiled_unref(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    as_cubin(data, size);
    as_compiled(data, size);
    return 0;
}
