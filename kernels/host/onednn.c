#include "onednn.h"

/* Newest first. */
static const char *const usual[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so.1", NULL};

void onednn_init(struct onednn *onednn, const char *setting)
{
    *onednn = (struct onednn){0};
    library_init(&onednn->library, "oneDNN", "host_onednn", setting, usual);
    onednn->found = onednn->library.path[0] != '\0';
}

void onednn_deinit(struct onednn *onednn)
{
    library_deinit(&onednn->library);
}

int onednn_load(struct onednn *onednn, struct error *e)
{
    /* The last two are of the OpenMP library that it is linked with. A library with threads of another kind, which
     * could not be told to use one, has none of them and is refused. */
    const struct library_symbol symbols[] = {{"dnnl_sgemm", &onednn->sgemm, false},
                                             {"dnnl_gemm_bf16bf16f32", &onednn->bf16gemm, true},
                                             {"omp_set_num_threads", &onednn->set_threads, false},
                                             {"omp_get_max_threads", &onednn->threads, false}};

    if (!onednn->found)
        return error_set(e, ERROR_UNSUPPORTED, "oneDNN was not found; install libdnnl2 or set host_onednn");
    return library_load(&onednn->library, symbols, sizeof(symbols) / sizeof(symbols[0]), NULL, NULL, e);
}
