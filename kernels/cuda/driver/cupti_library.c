#include "cupti_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "util/packages.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below */
static const char *chosen;
static bool beside_named_driver;
static void *library;

/* Names for the loader, which searches LD_LIBRARY_PATH and the system's folders. */
static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};

/* Patterns for folders of toolkits, and of pip's package nvidia-cuda-cupti. Of the matches the last is the newest. */
static const char *const places[] = {
    "/usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/usr/local/cuda*/targets/*/lib/libcupti.so.1[23]",
    "/usr/local/cuda*/lib*/libcupti.so.1[23]",
    "/opt/cuda/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/usr/lib/*-linux-gnu/libcupti.so.1[23]",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]",
    "/usr/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]",
};

void cupti_choose(const char *setting, const char *driver)
{
    pthread_mutex_lock(&lock);
    chosen = setting;
    beside_named_driver = driver && !setting;
    pthread_mutex_unlock(&lock);
}

static void *load(const char *path, char *why, size_t why_size)
{
    void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!found)
        snprintf(why, why_size, "%s", dlerror());
    return found;
}

static void *load_from_place(const char *place, char *why, size_t why_size)
{
    void *loaded = NULL;
    glob_t found;

    if (glob(place, 0, NULL, &found) != 0)
        return NULL;
    for (size_t i = found.gl_pathc; !loaded && i > 0; i--)
        loaded = load(found.gl_pathv[i - 1], why, why_size);
    globfree(&found);
    return loaded;
}

static void *load_usual(char *why, size_t why_size)
{
    char packaged[PATH_MAX];
    void *loaded = NULL;

    if (packages_find_library(names, sizeof(names) / sizeof(names[0]), packaged))
        loaded = load(packaged, why, why_size);
    for (size_t i = 0; !loaded && i < sizeof(names) / sizeof(names[0]); i++)
        loaded = load(names[i], why, why_size);
    if (!loaded)
        snprintf(why, why_size, "it is in no usual place");
    for (size_t i = 0; !loaded && i < sizeof(places) / sizeof(places[0]); i++)
        loaded = load_from_place(places[i], why, why_size);
    return loaded;
}

void *cupti_library(char *why, size_t why_size)
{
    void *loaded;

    pthread_mutex_lock(&lock);
    if (chosen && !strcmp(chosen, "off"))
        snprintf(why, why_size, "it is switched off by the daemon's setting executors.cupti");
    else if (beside_named_driver)
        snprintf(why, why_size, "the daemon's setting cuda.driver names a driver, and executors.cupti no CUPTI for it");
    else if (!library)
        library = chosen ? load(chosen, why, why_size) : load_usual(why, why_size);
    loaded = library;
    pthread_mutex_unlock(&lock);
    return loaded;
}
