/* The embedded candidates; see ops/embedded.c for the form. */
#include "gpu.h"

#define LAB_BINARIES(X)                                                                                                \
    X(candidates_elementwise)                                                                                          \
    X(candidates_gemm)

#define NAME(binary) "lab_name_" #binary ": .asciz \"" #binary "\"\n"
#define DATA(binary)                                                                                                   \
    ".balign 64\n"                                                                                                     \
    "lab_data_" #binary ": .incbin \"" KOPS_CUDA_BINARIES "/" #binary ".fatbin\"\n"                                    \
    "lab_end_" #binary ":\n"
#define ENTRY(binary) ".quad lab_name_" #binary ", lab_data_" #binary ", lab_end_" #binary " - lab_data_" #binary "\n"
#define COUNT(binary) +1

__asm__(".pushsection .rodata.lab, \"a\", %progbits\n" LAB_BINARIES(NAME)
            LAB_BINARIES(DATA) ".popsection\n"
                               ".pushsection .data.rel.ro.lab, \"aw\", %progbits\n"
                               ".balign 8\n"
                               ".globl lab_binaries\n"
                               ".hidden lab_binaries\n"
                               "lab_binaries:\n" LAB_BINARIES(ENTRY) ".popsection\n");

const unsigned lab_binary_count = 0 LAB_BINARIES(COUNT);
