/* A oneDNN that refuses to compute, as the real one does where the system lets no program make code of its own. */
#include <stdint.h>

__attribute__((visibility("default"))) int dnnl_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k,
                                                      float alpha, const float *a, int64_t lda, const float *b,
                                                      int64_t ldb, float beta, float *c, int64_t ldc);
__attribute__((visibility("default"))) void omp_set_num_threads(int threads);
__attribute__((visibility("default"))) int omp_get_max_threads(void);

int dnnl_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
               const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    return 3; /* dnnl_unimplemented */
}

void omp_set_num_threads(int threads)
{
}

int omp_get_max_threads(void)
{
    return 1;
}
