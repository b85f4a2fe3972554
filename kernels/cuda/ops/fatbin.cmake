# kops_cuda_fatbin(<source.cu> <output>): device code for every architecture of KOPS_CUDA_ARCHS, and PTX of the first,
# from which newer GPUs compile their own. With KOPS_CUDA_FATBINS it is that build's.
function(kops_cuda_fatbin source output)
    set(flags -std=c++17 -O3 --threads 2)
    if(KOPS_WERROR)
        list(APPEND flags -Werror all-warnings)
    endif()
    foreach(arch IN LISTS KOPS_CUDA_ARCHS)
        list(APPEND flags -gencode=arch=compute_${arch},code=sm_${arch})
    endforeach()
    list(GET KOPS_CUDA_ARCHS 0 oldest)
    list(APPEND flags -gencode=arch=compute_${oldest},code=compute_${oldest})
    list(JOIN KOPS_CUDA_ARCHS ", " archs)
    cmake_path(GET source FILENAME name)
    if(KOPS_CUDA_FATBINS)
        cmake_path(RELATIVE_PATH output BASE_DIRECTORY ${CMAKE_BINARY_DIR} OUTPUT_VARIABLE same)
        add_custom_command(OUTPUT ${output} COMMAND ${CMAKE_COMMAND} -E copy ${KOPS_CUDA_FATBINS}/${same} ${output}
            DEPENDS ${KOPS_CUDA_FATBINS}/${same} VERBATIM)
        return()
    endif()
    add_custom_command(
        OUTPUT ${output}
        COMMAND ${KOPS_NVCC} -fatbin ${flags} -MD -MF ${output}.d -MT ${output} -o ${output} ${source}
        DEPENDS ${source} ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
        DEPFILE ${output}.d
        COMMENT "Compiling ${name} for sm ${archs}"
        VERBATIM)
endfunction()
