/* adds SOCKET FILE COUNT: makes a connection warm, then switches counting on for so many adds, one after the other. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <kops/kops.h>

#include "table.h"

enum { LENGTH = 1024, WARM = 200 };

static void die(const char *what, const struct kops_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error ? error->message : "failed");
    exit(EXIT_FAILURE);
}

int main(int argc, char **argv)
{
    const long count = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    const int fd = argc > 3 ? open(argv[2], O_RDWR) : -1;
    struct calls_table *table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const struct kops_connect_options options = {.socket = argc > 3 ? argv[1] : NULL,
                                                 .transport = KOPS_TRANSPORT_SOCKET};
    struct kops_tensor a, b, out;
    struct kops_error error;
    kops_client *client;
    kops_buffer *memory;

    if (table == MAP_FAILED)
        die("usage: adds SOCKET FILE COUNT", NULL);
    if (kops_connect(&options, &client, &error))
        die("connecting", &error);
    if (kops_buffer_alloc_shared(client, 3 * LENGTH * sizeof(float), &memory, &error))
        die("allocating", &error);
    a = b = out = kops_vector(memory, KOPS_F32, LENGTH);
    b.offset = LENGTH * sizeof(float);
    out.offset = 2 * LENGTH * sizeof(float);
    for (long i = 0; i < WARM + count; i++) {
        if (i == WARM)
            atomic_store(&table->on, 1);
        if (kops_add(client, &a, &b, &out, NULL, NULL, &error))
            die("add", &error);
    }
    atomic_store(&table->on, 0);
    kops_buffer_release(memory);
    kops_close(client);
    return 0;
}
