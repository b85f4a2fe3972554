/* Every function of cuBLASLt that is called, once. X(Name): the symbol is "cublasLt<Name>". */
#ifndef KOPS_CUDA_BLASLT_TABLE_H
#define KOPS_CUDA_BLASLT_TABLE_H

#define BLASLT_FUNCTIONS(X)                                                                                            \
    X(Create)                                                                                                          \
    X(Destroy)                                                                                                         \
    X(GetStatusName)                                                                                                   \
    X(Matmul)                                                                                                          \
    X(MatmulAlgoGetHeuristic)                                                                                          \
    X(MatmulDescCreate)                                                                                                \
    X(MatmulDescDestroy)                                                                                               \
    X(MatmulDescSetAttribute)                                                                                          \
    X(MatmulPreferenceCreate)                                                                                          \
    X(MatmulPreferenceDestroy)                                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                                    \
    X(MatrixLayoutCreate)                                                                                              \
    X(MatrixLayoutDestroy)                                                                                             \
    X(MatrixLayoutSetAttribute)

#endif
