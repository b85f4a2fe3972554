/* The embedded candidates; see ops/images.c for the form. */
#include "gpu.h"

#define LAB_IMAGES(X)                                                                                                  \
    X(candidates_elementwise)                                                                                          \
    X(candidates_gemm)

#define NAME(image) "lab_name_" #image ": .asciz \"" #image "\"\n"
#define DATA(image)                                                                                                    \
    ".balign 64\n"                                                                                                     \
    "lab_data_" #image ": .incbin \"" KOPS_CUDA_IMAGES "/" #image ".fatbin\"\n"                                        \
    "lab_end_" #image ":\n"
#define ENTRY(image) ".quad lab_name_" #image ", lab_data_" #image ", lab_end_" #image " - lab_data_" #image "\n"
#define COUNT(image) +1

__asm__(".pushsection .rodata.lab, \"a\", %progbits\n" LAB_IMAGES(NAME)
            LAB_IMAGES(DATA) ".popsection\n"
                             ".pushsection .data.rel.ro.lab, \"aw\", %progbits\n"
                             ".balign 8\n"
                             ".globl lab_images\n"
                             ".hidden lab_images\n"
                             "lab_images:\n" LAB_IMAGES(ENTRY) ".popsection\n");

const unsigned lab_image_count = 0 LAB_IMAGES(COUNT);
