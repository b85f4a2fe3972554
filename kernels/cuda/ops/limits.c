#include "limits.h"

#include <stdlib.h>

#include "launch.h"

/* Values of CUdevice_attribute. */
enum {
    MAX_THREADS_PER_BLOCK = 1,
    MAX_BLOCK_DIM_X = 2, /* Y and Z follow */
    MAX_GRID_DIM_X = 5,  /* Y and Z follow */
    MULTIPROCESSOR_COUNT = 16,
    COMPUTE_CAPABILITY_MAJOR = 75,
    COOPERATIVE_LAUNCH = 95,
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CLUSTER_LAUNCH = 120,
};

enum { MAPS_FROM = 9, EARLY_FROM = 9 /* major compute capabilities */ };

static unsigned ask(cuda_limits_attribute *attribute, const void *device, int which)
{
    const int value = attribute(device, which);

    return value > 0 ? (unsigned)value : 0;
}

void cuda_limits_of(cuda_limits_attribute *attribute, const void *device, struct cuda_limits_driver driver,
                    struct kernel_limits *ret)
{
    const unsigned major = ask(attribute, device, COMPUTE_CAPABILITY_MAJOR);

    *ret = (struct kernel_limits){
        .max_threads = ask(attribute, device, MAX_THREADS_PER_BLOCK),
        .max_shared = ask(attribute, device, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        .multiprocessors = ask(attribute, device, MULTIPROCESSOR_COUNT),
    };
    /* Compute capabilities 9 and 10 allow clusters of 16 blocks, if the kernel does; others with clusters allow 8. */
    ret->cooperative = driver.attributes && driver.occupancy && ask(attribute, device, COOPERATIVE_LAUNCH);
    ret->pdl = driver.attributes && major >= EARLY_FROM;
    if (driver.maps && major >= MAPS_FROM)
        ret->max_map_rank = PLAN_MAP_RANK;
    if (driver.attributes && ask(attribute, device, CLUSTER_LAUNCH))
        ret->max_cluster = major == 9 || major == 10 ? CLUSTER_LARGE : CLUSTER_PORTABLE;
    for (int i = 0; i < 3; i++) {
        ret->max_block[i] = ask(attribute, device, MAX_BLOCK_DIM_X + i);
        ret->max_grid[i] = ask(attribute, device, MAX_GRID_DIM_X + i);
    }
}

static enum cuda_ops_level level_of_code(unsigned number)
{
    return number >= 90 ? CUDA_OPS_SM90 : number >= 80 ? CUDA_OPS_SM80 : CUDA_OPS_ANY;
}

/* Machine code runs on its own major capability, from its own number on; with the suffix "a" only on its own number.
 * PTX runs on all newer devices. */
enum cuda_ops_level cuda_ops_level_of(const char *architectures, unsigned capability)
{
    enum cuda_ops_level level = CUDA_OPS_ANY;
    unsigned best = 0, first = 0;
    bool first_is_plain = false;
    char *end;

    if (!architectures)
        return capability == 90 ? CUDA_OPS_SM90A : level_of_code(capability);
    for (const char *next = architectures; *next; next = *end ? end + 1 : end) {
        const unsigned number = (unsigned)strtoul(next, &end, 10);
        const bool own = *end == 'a', plain = *end == ',' || *end == '\0';

        while (*end && *end != ',')
            end++;
        if (next == architectures) {
            first = number;
            first_is_plain = plain;
        }
        /* Between equal numbers the plain architecture wins, so that the level is never overestimated. */
        if (own ? number == capability && number > best
                : plain && number / 10 == capability / 10 && number <= capability && number >= best) {
            best = number;
            level = own && number == 90 ? CUDA_OPS_SM90A : level_of_code(number);
        }
    }
    if (!best && first_is_plain && first <= capability)
        level = level_of_code(first);
    return level;
}
