/* Opens and closes the kernels of one device. */
#include "kernels.h"

#include "blaslt/blaslt.h"
#include "driver/scratch.h"
#include "limits.h"

enum { WORKSPACE_BYTES = 32 << 20 /* cuBLASLt's best algorithms use as much on the largest devices */ };

int cuda_kernels_open(struct cuda_kernels *k, struct cuda_device *d, bool have_blaslt, uint64_t workspace_bytes,
                      struct error *e)
{
    k->device = d;
    if (cuda_embedded_load(d, &k->embedded, e) < 0)
        return -1;
    cuda_limits_find(d, &k->limits);
    if (cuda_scratch_is_there(d))
        k->workspace_bytes = workspace_bytes ? workspace_bytes : WORKSPACE_BYTES;
    k->blaslt = have_blaslt ? blaslt_new(d, k->workspace_bytes) : NULL;
    cuda_variants_init(&k->variants, k->blaslt != NULL);
    return 0;
}

void cuda_kernels_close(struct cuda_kernels *k)
{
    k->blaslt = blaslt_free(k->blaslt);
    cuda_embedded_unload(k->device, &k->embedded);
}
