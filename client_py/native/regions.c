/* Device memory that the daemon knows of, found by address. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "fast.h"

/* ---- the driver ---- */

int (*fast_stream_synchronize)(void *stream);

const struct cuda_driver *fast_driver(void)
{
    static const struct cuda_driver *loaded;
    struct kops_error unwanted;

    if (!loaded) {
        const char *path = getenv("KOPS_CUDA_DRIVER");
        void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);

        if (library)
            fast_stream_synchronize = (int (*)(void *))(uintptr_t)dlsym(library, "cuStreamSynchronize");
        if (fast_stream_synchronize)
            loaded = cuda_load(&unwanted);
    }
    return loaded;
}

/* ---- registered memory ---- */

/* The first region whose end lies beyond the address. */
static size_t place_of(const struct link *link, uint64_t address)
{
    size_t low = 0, high = link->n_regions;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (link->regions[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct region *fast_region(struct link *link, const struct cuda_driver *d, uint64_t pointer)
{
    size_t i = link->last_region;
    unsigned long long id = 0;

    if (i >= link->n_regions || pointer < link->regions[i].base || pointer >= link->regions[i].end) {
        i = place_of(link, pointer);
        if (i == link->n_regions || pointer < link->regions[i].base)
            return NULL;
        link->last_region = i;
    }
    if (d->pointer_attribute(&id, CUDA_ATTRIBUTE_BUFFER_ID, pointer) || id != link->regions[i].alloc_id)
        return NULL;
    return &link->regions[i];
}

static void remove_region(struct link *link, size_t i)
{
    memmove(&link->regions[i], &link->regions[i + 1], (link->n_regions - i - 1) * sizeof(link->regions[0]));
    link->n_regions--;
}

PyObject *link_remember(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    unsigned long long base, size, id, buffer, context;
    size_t i;

    if (!PyArg_ParseTuple(arguments, "KKKKK", &base, &size, &id, &buffer, &context))
        return NULL;
    for (i = place_of(link, base); i < link->n_regions && link->regions[i].base < base + size;)
        remove_region(link, i); /* the earlier allocation there is gone */
    if (link->n_regions == link->regions_room) {
        size_t room = link->regions_room ? 2 * link->regions_room : 16;
        struct region *grown = realloc(link->regions, room * sizeof(*grown));

        if (!grown)
            return PyErr_NoMemory();
        link->regions = grown;
        link->regions_room = room;
    }
    memmove(&link->regions[i + 1], &link->regions[i], (link->n_regions - i) * sizeof(link->regions[0]));
    link->regions[i] = (struct region){base, base + size, id, buffer, (void *)(uintptr_t)context};
    link->n_regions++;
    Py_RETURN_NONE;
}

PyObject *link_forget(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    unsigned long long buffer;

    if (!PyArg_ParseTuple(arguments, "K", &buffer))
        return NULL;
    for (size_t i = 0; i < link->n_regions; i++)
        if (link->regions[i].buffer == buffer) {
            remove_region(link, i);
            break;
        }
    Py_RETURN_NONE;
}
