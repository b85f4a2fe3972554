/* Every function of cuBLASLt that is called, once. X(Name): the symbol is "cublasLt<Name>". Those that work in a
 * context are given out by blaslt_on() alone. */
#ifndef KOPS_CUDA_BLASLT_TABLE_H
#define KOPS_CUDA_BLASLT_TABLE_H

#define BLASLT_FUNCTIONS(X)                                                                                            \
    X(GetStatusName)                                                                                                   \
    X(GetVersion)                                                                                                      \
    X(MatmulDescCreate)                                                                                                \
    X(MatmulDescDestroy)                                                                                               \
    X(MatmulDescSetAttribute)                                                                                          \
    X(MatmulPreferenceCreate)                                                                                          \
    X(MatmulPreferenceDestroy)                                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                                    \
    X(MatrixLayoutCreate)                                                                                              \
    X(MatrixLayoutDestroy)                                                                                             \
    X(MatrixLayoutSetAttribute)

#define BLASLT_CONTEXT_FUNCTIONS(X)                                                                                    \
    X(Create)                                                                                                          \
    X(Destroy)                                                                                                         \
    X(Matmul)                                                                                                          \
    X(MatmulAlgoCheck)                                                                                                 \
    X(MatmulAlgoGetHeuristic)

#endif
