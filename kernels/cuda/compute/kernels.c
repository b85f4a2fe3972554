/* Describes, loads and closes the kernels of one device. */
#include "kernels.h"

#include "blaslt/blaslt.h"
#include "driver/scratch.h"
#include "limits.h"

enum { WORKSPACE_BYTES = 32 << 20 /* cuBLASLt's best algorithms use as much on the largest devices */ };

void cuda_kernels_describe(struct cuda_kernels *k, struct cuda_device *d, bool have_blaslt,
                           const struct backend_config *config)
{
    const uint64_t workspace_bytes = config->cuda_workspace_bytes;

    k->device = d;
    k->tuning = config->tuning;
    cuda_limits_find(d, &k->limits);
    if (cuda_scratch_is_there(d))
        k->workspace_bytes = workspace_bytes ? workspace_bytes : WORKSPACE_BYTES;
    k->blaslt = have_blaslt ? blaslt_new(d, k->workspace_bytes) : NULL;
    cuda_variants_init(&k->variants, cuda_embedded_device(&d->base.info).level, k->blaslt != NULL,
                       d->repack_bytes != 0);
}

int cuda_kernels_load(struct cuda_kernels *k, struct error *e)
{
    return cuda_embedded_load(k->device, &k->embedded, e);
}

void cuda_kernels_unload(struct cuda_kernels *k)
{
    cuda_embedded_unload(k->device, &k->embedded);
}

void cuda_kernels_close(struct cuda_kernels *k)
{
    k->blaslt = blaslt_free(k->blaslt);
    cuda_kernels_unload(k);
}
