# Debian packages, by `make package` or cpack: kopsd (the daemon, kopsctl, units, manual pages), libkops0 (the C client's
# library), libkops-dev (its headers) and python3-kops (the Python client, where its compiled part is built). What the programs
# depend on is computed from their symbols.
set(KOPS_PACKAGE_VERSION ${PROJECT_VERSION} CACHE STRING "Version of the Debian packages")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kops)
set(CPACK_PACKAGE_VERSION ${KOPS_PACKAGE_VERSION})
# Whoever packs for others says who answers for it, as for Debian's own tools: DEBFULLNAME and DEBEMAIL in the environment.
set(KOPS_PACKAGE_MAINTAINER "kopsd developers <kopsd@localhost>")
if(DEFINED ENV{DEBEMAIL})
    set(KOPS_PACKAGE_MAINTAINER "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(CPACK_PACKAGE_CONTACT "${KOPS_PACKAGE_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "kernel server for the GPUs of one machine")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/package)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL service library client)
if(TARGET kops_python)
    list(APPEND CPACK_COMPONENTS_ALL python)
endif()
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_SERVICE_PACKAGE_NAME kopsd)
set(CPACK_DEBIAN_SERVICE_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_SERVICE_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers")
# Both are loaded at run time for gemm on the host. oneDNN is 40 MB, and about as fast
# as OpenBLAS but for bf16. libcurl speaks to a cache of many nodes, where one is set.
set(CPACK_DEBIAN_SERVICE_PACKAGE_RECOMMENDS libopenblas0-pthread)
set(CPACK_DEBIAN_SERVICE_PACKAGE_SUGGESTS "libdnnl2 | libdnnl3, libcurl4 | libcurl3-gnutls")
set(CPACK_COMPONENT_SERVICE_DESCRIPTION
"Any process hands kopsd tensors by reference over a Unix socket; it runs
compiled kernels on them. The daemon, its command-line tool kopsctl, and the
units that run it. NVIDIA's driver, cuBLASLt and NVRTC are loaded where they
are there; without them everything runs on the host's processors.")
set(CPACK_DEBIAN_SERVICE_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_SOURCE_DIR}/debian/postinst"
    "${CMAKE_CURRENT_SOURCE_DIR}/debian/prerm" "${CMAKE_CURRENT_SOURCE_DIR}/debian/postrm"
    "${CMAKE_CURRENT_SOURCE_DIR}/debian/conffiles")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libkops${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS kopsd)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The C client's library.")

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME libkops-dev)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SHLIBDEPS OFF)
# With the version that is packed, which may be given to cpack alone.
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_SOURCE_DIR}/debian/versions.cmake)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION
"The C client's headers, and what CMake and pkg-config need to find it.")

# One file for every version of Python: its stable ABI.
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-kops)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.10), python3-msgpack")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS "kopsd, python3-numpy")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION
"The Python client, with its compiled part: ops and kernels on NumPy arrays,
torch tensors and what else has a buffer or a CUDA array interface.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_SOURCE_DIR}/debian/python/postinst"
    "${CMAKE_CURRENT_SOURCE_DIR}/debian/python/prerm")

# What a package has beside the installation's files: settings in /etc (an installation by hand leaves an
# administrator's alone), and what Debian's readers look for.
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/debian/contents.cmake)
set(CPACK_KOPS_SOURCE ${PROJECT_SOURCE_DIR})
set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/debian/repack.cmake)
include(CPack)
